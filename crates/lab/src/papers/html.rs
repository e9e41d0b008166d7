//! HTML that cannot be otherwise than well-formed: elements nest, and all text is escaped.
//!
//! It is XML too: elements without a content end in ` />`, and attributes have values.

/// A piece of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Html(String);

impl Html {
    /// As it stands in a file.
    pub fn into_string(self) -> String {
        self.0
    }

    /// What comes behind it.
    pub fn then(mut self, next: Html) -> Html {
        self.0 += &next.0;
        self
    }

    /// An SVG that this program has drawn, with a title for those who do not see it.
    pub fn picture(svg: &str, title: &str) -> Html {
        let name = escaped(title);
        let drawn = svg.trim_start().strip_prefix("<svg ");
        let drawn = drawn.and_then(|rest| rest.split_once('>'));
        let Some((attributes, rest)) = drawn else {
            return Html::default();
        };
        Html(format!(
            "<svg role=\"img\" aria-label=\"{name}\" {attributes}><title>{name}</title>{rest}\n"
        ))
    }
}

impl FromIterator<Html> for Html {
    fn from_iter<T: IntoIterator<Item = Html>>(pieces: T) -> Html {
        pieces.into_iter().fold(Html::default(), Html::then)
    }
}

/// Text.
pub fn text(text: &str) -> Html {
    Html(escaped(text))
}

/// Text in which what stands between backticks is code.
pub fn prose(words: &str) -> Html {
    let pieces = words.split('`').enumerate();
    let piece = |(index, piece): (usize, &str)| match index % 2 {
        0 => text(piece),
        _ => of_text("code", piece),
    };
    pieces.map(piece).collect()
}

/// An element with attributes and a content. Those that HTML has without a content get none.
pub fn element(name: &str, attributes: &[(&str, &str)], content: Html) -> Html {
    let attributes: String = attributes
        .iter()
        .map(|(name, value)| format!(" {name}=\"{}\"", escaped(value)))
        .collect();
    match name {
        "meta" | "br" => Html(format!("<{name}{attributes} />")),
        _ => Html(format!("<{name}{attributes}>{}</{name}>", content.0)),
    }
}

/// An element that has text alone.
pub fn of_text(name: &str, content: &str) -> Html {
    element(name, &[], text(content))
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            // XML 1.0 has no other control characters, not even escaped.
            control if control.is_control() && !matches!(control, '\n' | '\t') => {
                escaped.push('\u{fffd}')
            }
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped() {
        let piece = element("td", &[("title", "\"<'")], text("a < b & \u{1b}c"));
        assert_eq!(
            piece.into_string(),
            "<td title=\"&quot;&lt;&#39;\">a &lt; b &amp; \u{fffd}c</td>"
        );
    }

    #[test]
    fn code_in_prose_stands_between_backticks() {
        let expected = "a <code>b</code> &lt;c";
        assert_eq!(prose("a `b` <c").into_string(), expected);
    }

    #[test]
    fn a_picture_has_a_title() {
        let picture = Html::picture("<svg width=\"1\"><g/></svg>", "a & b").into_string();
        let expected = "<svg role=\"img\" aria-label=\"a &amp; b\" width=\"1\"><title>a &amp; b</title><g/></svg>\n";
        assert_eq!(picture, expected);
    }
}
