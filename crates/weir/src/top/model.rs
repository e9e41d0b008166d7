//! How the user wants to see the reports: what is chosen, sorted, filtered, frozen.

use std::collections::BTreeSet;

use super::data::{Data, Report};
use super::rows::{self, ListenerRow, Sort, Wish};

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character, as it is typed.
    Char(char),
    /// Ctrl and a letter.
    Ctrl(char),
    /// An arrow.
    Up,
    /// An arrow.
    Down,
    /// An arrow.
    Left,
    /// An arrow.
    Right,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the next pane.
    Tab,
    /// To the pane before.
    BackTab,
    /// Ends the input of a filter; unfolds a listener.
    Enter,
    /// Ends what is open.
    Esc,
    /// Removes the last character of a filter.
    Backspace,
}

/// What is to be done after a key, besides drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Draw,
    /// Stop this process until the shell wakes it (Ctrl-Z).
    Suspend,
    /// End.
    Quit,
}

/// The lower part of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pane {
    /// What the guard decided, of the chosen listener.
    Verdicts,
    /// Classes of all listeners.
    Classes,
    /// Addresses and networks that are refused most.
    Sources,
    /// What the controller holds, and its decisions.
    Controller,
    /// Proxies and their backends.
    Proxies,
    /// Warnings, and what is not as configured.
    Notes,
}

impl Pane {
    /// All of them, as they stand on the screen.
    pub const ALL: [Pane; 6] = [
        Pane::Verdicts,
        Pane::Classes,
        Pane::Sources,
        Pane::Controller,
        Pane::Proxies,
        Pane::Notes,
    ];

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Pane::Verdicts => "verdicts",
            Pane::Classes => "classes",
            Pane::Sources => "sources",
            Pane::Controller => "controller",
            Pane::Proxies => "proxies",
            Pane::Notes => "notes",
        }
    }

    /// The pane so many places further.
    fn moved(self, by: usize) -> Pane {
        let at = Pane::ALL.iter().position(|pane| *pane == self).unwrap_or(0);
        Pane::ALL[(at + by) % Pane::ALL.len()]
    }
}

/// Lines that a page key scrolls.
const PAGE: usize = 5;
/// Workloads that follow an unfolded listener, at most; a filter finds the others.
const WORKLOADS: usize = 50;
/// Longest filter, in characters.
const FILTER: usize = 40;

/// The reports, and how they are shown.
#[derive(Debug, Clone)]
pub struct Model {
    /// Whom weir top asks.
    pub source: String,
    /// Time between two questions, as the title has it.
    pub every: String,
    /// The lower part.
    pub pane: Pane,
    /// What rows are sorted by.
    pub sort: Sort,
    /// Whether the order is turned round.
    pub reverse: bool,
    /// What rows must have in their names.
    pub filter: String,
    /// Whether keys go into the filter.
    pub is_typing: bool,
    /// Whether the help is open.
    pub has_help: bool,
    /// Lines of the lower part that are scrolled away.
    pub scroll: usize,
    data: Data,
    /// What is shown while the screen stands still.
    frozen: Option<Box<Data>>,
    /// The chosen listener or workload; by its key, so that it stays when the order changes.
    chosen: Option<String>,
    /// Listeners that are followed by their workloads.
    unfolded: BTreeSet<String>,
}

impl Model {
    /// Nothing is known yet.
    pub fn new(source: String, every: String) -> Model {
        Model {
            source,
            every,
            pane: Pane::Verdicts,
            sort: Sort::default(),
            reverse: false,
            filter: String::new(),
            is_typing: false,
            has_help: false,
            scroll: 0,
            data: Data::default(),
            frozen: None,
            chosen: None,
            unfolded: BTreeSet::new(),
        }
    }

    /// Takes a report. A frozen screen stays as it is; the history goes on.
    pub fn take(&mut self, report: Report) {
        let is_first = self.data.now().is_none();
        self.data.take(report);
        // Where weir runs proxies only, they are what there is to see.
        if is_first
            && self
                .data
                .status()
                .is_some_and(|status| status.listeners.is_empty() && status.quic.is_empty())
        {
            self.pane = Pane::Proxies;
        }
    }

    /// Takes a question that had no answer.
    pub fn fail(&mut self, why: String) {
        self.data.fail(why);
    }

    /// What is shown.
    pub fn data(&self) -> &Data {
        self.frozen.as_deref().unwrap_or(&self.data)
    }

    /// Whether the screen stands still.
    pub fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// The listeners as they are shown, with the workloads of those that are unfolded.
    pub fn listeners(&self) -> Vec<ListenerRow<'_>> {
        let data = self.data();
        let Some((pair, status)) = data.pair().zip(data.status()) else {
            return Vec::new();
        };
        let wish = Wish {
            filter: &self.filter,
            sort: self.sort,
            reverse: self.reverse,
            unfolded: Some(&self.unfolded),
            most: WORKLOADS,
        };
        rows::listeners(status, &pair, wish)
    }

    /// The place of the chosen listener among those that are shown; the first one if it is not there.
    pub fn chosen(&self, listeners: &[ListenerRow<'_>]) -> Option<usize> {
        let is_chosen = |row: &ListenerRow<'_>| Some(row.key()) == self.chosen;
        let at = listeners.iter().position(is_chosen).unwrap_or(0);
        (!listeners.is_empty()).then_some(at)
    }

    /// Takes a key.
    pub fn key(&mut self, key: Key) -> Then {
        match key {
            Key::Ctrl('c') => return Then::Quit,
            Key::Ctrl('z') => return Then::Suspend,
            key if self.is_typing => self.type_filter(key),
            _ if self.has_help => {
                self.has_help = false;
                // The help names this key.
                if key == Key::Char('q') {
                    return Then::Quit;
                }
            }
            key => return self.command(key),
        }
        Then::Draw
    }

    fn command(&mut self, key: Key) -> Then {
        match key {
            Key::Char('q') => return Then::Quit,
            Key::Char('?' | 'h') => self.has_help = true,
            Key::Char('/') => self.is_typing = true,
            Key::Char(' ' | 'f') => self.freeze(),
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('r') => self.reverse = !self.reverse,
            Key::Up | Key::Char('k') => self.choose(-1),
            Key::Down | Key::Char('j') => self.choose(1),
            Key::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            // What is too far the drawing brings back.
            Key::PageDown => self.scroll += PAGE,
            Key::Tab | Key::Right | Key::Char('l') => self.show(self.pane.moved(1)),
            Key::BackTab | Key::Left => self.show(self.pane.moved(Pane::ALL.len() - 1)),
            Key::Char(digit) => {
                let number = digit.to_digit(10).unwrap_or(0) as usize;
                let pane = number.checked_sub(1).and_then(|at| Pane::ALL.get(at));
                pane.into_iter().for_each(|pane| self.show(*pane));
            }
            Key::Esc => self.filter.clear(),
            Key::Enter => self.unfold(),
            Key::Ctrl(_) | Key::Backspace => {}
        }
        Then::Draw
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(c) if self.filter.chars().count() < FILTER => self.filter.push(c),
            Key::Backspace => drop(self.filter.pop()),
            Key::Ctrl('u') => self.filter.clear(),
            Key::Enter => self.is_typing = false,
            Key::Esc => {
                self.filter.clear();
                self.is_typing = false;
            }
            _ => {}
        }
    }

    /// Shows the workloads of the chosen listener, or hides them; then it is chosen again.
    fn unfold(&mut self) {
        let listeners = self.listeners();
        let chosen = self.chosen(&listeners).map(|at| &listeners[at]);
        let Some(row) = chosen.filter(|row| !row.workloads().is_empty()) else {
            return;
        };
        let name = row.name().to_owned();
        drop(listeners);
        if !self.unfolded.remove(&name) {
            self.unfolded.insert(name.clone());
        }
        self.chosen = Some(name);
    }

    fn freeze(&mut self) {
        self.frozen = match self.frozen {
            Some(_) => None,
            None => Some(Box::new(self.data.clone())),
        };
    }

    fn show(&mut self, pane: Pane) {
        self.pane = pane;
        self.scroll = 0;
    }

    fn choose(&mut self, by: isize) {
        let listeners = self.listeners();
        let Some(at) = self.chosen(&listeners) else {
            return;
        };
        let at = at.saturating_add_signed(by).min(listeners.len() - 1);
        let key = listeners[at].key();
        drop(listeners);
        self.chosen = Some(key);
        if self.pane == Pane::Verdicts {
            self.scroll = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_api::{Listener, Proxy, Status};

    use super::*;

    fn report(second: u64, refused: [u64; 3]) -> Report {
        let listener = |(name, refused): (&str, u64)| Listener {
            name: name.to_owned(),
            counters: [("syn_reset_full".to_owned(), refused)].into(),
            ..Listener::default()
        };
        let names = ["dns", "mail", "web"];
        Report {
            status: Status {
                running: true,
                process: Some(weir_api::Process::default()),
                listeners: names.into_iter().zip(refused).map(listener).collect(),
                ..Status::default()
            },
            at: Duration::from_secs(second),
            ..Report::default()
        }
    }

    fn model() -> Model {
        let mut model = Model::new("web1".into(), "1s".into());
        model.take(report(1, [0, 0, 0]));
        model.take(report(2, [1, 0, 9]));
        model
    }

    fn names(model: &Model) -> Vec<&str> {
        let rows = model.listeners().into_iter();
        rows.map(|row| row.name()).collect()
    }

    fn chosen(model: &Model) -> &str {
        let rows = model.listeners();
        let at = model.chosen(&rows).unwrap();
        rows[at].name()
    }

    fn press(model: &mut Model, keys: &str) {
        for c in keys.chars() {
            let key = match c {
                '\n' => Key::Enter,
                '\u{1b}' => Key::Esc,
                '\u{8}' => Key::Backspace,
                c => Key::Char(c),
            };
            assert_eq!(model.key(key), Then::Draw, "{c:?}");
        }
    }

    #[test]
    fn listeners_are_sorted_by_what_the_user_wants() {
        let mut model = model();
        assert_eq!(names(&model), ["web", "dns", "mail"]);
        press(&mut model, "r");
        assert_eq!(names(&model), ["mail", "dns", "web"]);
        press(&mut model, "r");
        for _ in 0..4 {
            press(&mut model, "s");
        }
        assert_eq!(model.sort, Sort::Name);
        assert_eq!(names(&model), ["dns", "mail", "web"]);
    }

    #[test]
    fn the_chosen_listener_stays_when_the_order_changes() {
        let mut model = model();
        assert_eq!(chosen(&model), "web");
        press(&mut model, "j");
        assert_eq!(chosen(&model), "dns");
        model.take(report(3, [90, 9, 9]));
        assert_eq!(names(&model), ["dns", "mail", "web"]);
        assert_eq!(chosen(&model), "dns");
        press(&mut model, "kkjjjjj");
        assert_eq!(chosen(&model), "web", "no further than the last");
    }

    #[test]
    fn a_filter_shows_what_has_it_and_escape_shows_all() {
        let mut model = model();
        press(&mut model, "/AI");
        assert_eq!(names(&model), ["mail"]);
        press(&mut model, "q\u{8}\n");
        assert_eq!((model.filter.as_str(), model.is_typing), ("AI", false));
        press(&mut model, "\u{1b}");
        assert_eq!(names(&model).len(), 3);
        press(&mut model, "/nothing");
        assert!(model.chosen(&model.listeners()).is_none());
        press(&mut model, "\n");
        assert_eq!(model.key(Key::Down), Then::Draw);
    }

    #[test]
    fn a_frozen_screen_stands_still_and_the_history_goes_on() {
        let mut model = model();
        press(&mut model, " ");
        model.take(report(3, [500, 0, 9]));
        assert_eq!(names(&model)[0], "web");
        assert_eq!(model.data().history("dns", 9).len(), 2);
        press(&mut model, " ");
        assert_eq!(names(&model)[0], "dns");
        assert_eq!(model.data().history("dns", 9).len(), 3);
    }

    #[test]
    fn q_and_ctrl_c_end_it_and_ctrl_c_while_a_filter_is_typed() {
        let mut model = model();
        assert_eq!(model.key(Key::Ctrl('z')), Then::Suspend);
        press(&mut model, "?");
        assert_eq!(model.clone().key(Key::Char('q')), Then::Quit);
        press(&mut model, "x/q");
        assert_eq!(model.key(Key::Ctrl('c')), Then::Quit);
        press(&mut model, "\n");
        assert_eq!(model.key(Key::Char('q')), Then::Quit);
    }

    #[test]
    fn panes_are_chosen_by_their_number_and_in_turn() {
        let mut model = model();
        press(&mut model, "4");
        assert_eq!(model.pane, Pane::Controller);
        press(&mut model, "097");
        assert_eq!(model.pane, Pane::Controller);
        for _ in Pane::ALL {
            model.key(Key::Tab);
        }
        model.key(Key::BackTab);
        assert_eq!(model.pane, Pane::Sources);
    }

    #[test]
    fn where_only_proxies_run_they_are_shown() {
        let mut model = Model::new(String::new(), String::new());
        model.take(Report {
            status: Status {
                proxies: vec![Proxy::default()],
                ..Status::default()
            },
            ..Report::default()
        });
        assert_eq!(model.pane, Pane::Proxies);
    }
}
