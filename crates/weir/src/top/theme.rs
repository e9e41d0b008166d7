//! Colours and weights. Without colour all is told apart by weight, signs and words.

use ratatui::style::{Color, Modifier, Style};

/// The 16 colours that each terminal has, in its user's own shades; or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    colour: bool,
}

impl Theme {
    /// With colour or without.
    pub fn new(colour: bool) -> Theme {
        Theme { colour }
    }

    fn with(self, colour: Color, modifier: Modifier) -> Style {
        let style = Style::new().add_modifier(modifier);
        match self.colour {
            true => style.fg(colour),
            false => style,
        }
    }

    /// What is as it should be.
    pub fn good(self) -> Style {
        self.with(Color::Green, Modifier::empty())
    }

    /// What is refused, over its target, or down.
    pub fn bad(self) -> Style {
        self.with(Color::Red, Modifier::BOLD)
    }

    /// What is held, or otherwise than asked.
    pub fn notable(self) -> Style {
        self.with(Color::Yellow, Modifier::empty())
    }

    /// Heads of columns.
    pub fn head(self) -> Style {
        self.with(Color::Cyan, Modifier::BOLD)
    }

    /// What helps to read the rest.
    pub fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The row or the pane that is chosen.
    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Names.
    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}
