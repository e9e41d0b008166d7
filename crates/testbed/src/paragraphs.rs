//! The paragraphs of a page, and which of them belong together.

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::anchors::Anchors;

/// A paragraph, an item of a list, or a row of a table. Headings and code blocks are none.
#[derive(Debug, Default)]
pub struct Paragraph {
    /// The line of the page in which it begins, from 1.
    pub line: usize,
    /// The anchor of the heading above it; empty before the first one.
    pub section: String,
    /// What one reads: also the words of links and pictures, and code. White space is single spaces.
    pub text: String,
    /// Where code is in the text, in bytes.
    pub code: Vec<Range<usize>>,
    /// Code in it, and the lines of a code block that it introduces by a colon.
    pub commands: Vec<String>,
    /// Targets of its links and pictures.
    pub links: Vec<String>,
    /// A program wrote it: it stands between `<!-- table: … -->` or `<!-- by: … -->` and `<!-- end -->`.
    pub generated: bool,
    /// Paragraphs that speak of the same, by their numbers on the page. For an item or a row: what stands right above and
    /// right below its list or table, and the head of the table. For what stands right below a table: what stands right
    /// above it, and its head.
    pub beside: Vec<usize>,
}

/// The paragraphs of a page with this text, in order.
pub fn of(text: &str) -> Vec<Paragraph> {
    let mut reader = Reader::default();
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
    for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
        let line = 1 + text[..range.start].matches('\n').count();
        reader.take(event, line);
    }
    reader.flush();
    reader.found
}

/// A list or a table.
struct Group {
    members: Range<usize>,
    /// What stands right above it.
    lead: Option<usize>,
    is_table: bool,
}

/// What is open while a page is read.
#[derive(Default)]
struct Reader {
    found: Vec<Paragraph>,
    anchors: Anchors,
    section: String,
    heading: Option<String>,
    open: Option<Paragraph>,
    groups: Vec<Group>,
    /// The group that has just ended: what comes now stands right below it.
    ended: Option<Group>,
    /// The last paragraph of all, if nothing but white space has followed it.
    last: Option<usize>,
    in_block: bool,
    /// The paragraph that introduces the code block.
    introduction: Option<usize>,
    generated: bool,
}

impl Reader {
    fn take(&mut self, event: Event<'_>, line: usize) {
        match event {
            Event::Start(tag) => self.start(&tag, line),
            Event::End(tag) => self.end(tag),
            Event::Html(html) | Event::InlineHtml(html) => self.comment(&html),
            Event::Code(code) => self.code(&code, line),
            Event::Text(text) => self.grow(&text, line),
            Event::SoftBreak | Event::HardBreak => self.grow(" ", line),
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>, line: usize) {
        match tag {
            Tag::Heading { .. } => {
                self.flush();
                (self.last, self.ended) = (None, None);
                self.heading = Some(String::new());
            }
            Tag::Paragraph | Tag::Item => self.flush(),
            Tag::TableHead | Tag::TableRow => {
                self.flush();
                // Also one whose cells are all empty.
                self.paragraph(line);
            }
            Tag::List(_) | Tag::Table(_) => {
                self.flush();
                self.ended = None;
                self.groups.push(Group {
                    members: self.found.len()..self.found.len(),
                    lead: self.last,
                    is_table: matches!(tag, Tag::Table(_)),
                });
            }
            Tag::CodeBlock(_) => {
                self.flush();
                self.ended = None;
                let introduces = |last: &usize| self.found[*last].text.ends_with(':');
                self.introduction = self.last.take().filter(introduces);
                self.in_block = true;
            }
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } if self.heading.is_none() => {
                self.paragraph(line).links.push(dest_url.to_string());
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.section = self.anchors.of(&self.heading.take().unwrap_or_default());
            }
            TagEnd::CodeBlock => self.in_block = false,
            TagEnd::TableCell => {
                if let Some(open) = &mut self.open {
                    open.text.push_str(" | ");
                }
            }
            TagEnd::Paragraph | TagEnd::TableHead | TagEnd::TableRow => self.flush(),
            TagEnd::Item => {
                self.flush();
                self.ended = None;
            }
            TagEnd::List(_) | TagEnd::Table => self.end_group(),
            _ => {}
        }
    }

    fn end_group(&mut self) {
        self.flush();
        let Some(mut group) = self.groups.pop() else {
            return;
        };
        group.members.end = self.found.len();
        let head = Some(group.members.start).filter(|_| group.is_table);
        for member in &mut self.found[group.members.clone()] {
            member.beside.extend(group.lead.into_iter().chain(head));
        }
        (self.last, self.ended) = (None, Some(group));
    }

    fn comment(&mut self, html: &str) {
        if html.contains("<!-- table:") || html.contains("<!-- by:") {
            self.flush();
            self.generated = true;
        }
        if html.contains("<!-- end -->") {
            self.flush();
            self.generated = false;
        }
    }

    fn code(&mut self, code: &str, line: usize) {
        if self.heading.is_none() {
            let open = self.paragraph(line);
            let from = open.text.len();
            open.code.push(from..from + spaced(code).len());
            open.commands.push(code.to_owned());
        }
        self.grow(code, line);
    }

    fn grow(&mut self, text: &str, line: usize) {
        if self.in_block {
            if let Some(at) = self.introduction {
                let lines = text.lines().map(|line| line.trim().to_owned());
                self.found[at].commands.extend(lines);
            }
        } else if let Some(heading) = &mut self.heading {
            heading.push_str(text);
        } else {
            self.paragraph(line).text.push_str(&spaced(text));
        }
    }

    /// The open one.
    fn paragraph(&mut self, line: usize) -> &mut Paragraph {
        self.open.get_or_insert_with(|| Paragraph {
            line,
            section: self.section.clone(),
            generated: self.generated,
            ..Paragraph::default()
        })
    }

    /// Ends the open one.
    fn flush(&mut self) {
        let Some(mut paragraph) = self.open.take() else {
            return;
        };
        let at = self.found.len();
        if let Some(group) = self.ended.take() {
            for member in &mut self.found[group.members.clone()] {
                member.beside.push(at);
            }
            if group.is_table {
                paragraph.beside.extend(group.lead);
                paragraph.beside.push(group.members.start);
            }
        }
        self.found.push(paragraph);
        self.last = Some(at);
    }
}

/// With plain spaces for those that do not break.
fn spaced(text: &str) -> String {
    text.replace(['\u{a0}', '\u{202f}', '\n'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_rows_know_what_stands_around_their_list_or_table() {
        let text =
            "Above:\n\n- one\n- two\n\nBelow.\n\n| a | b |\n|---|---|\n| `c d` | e |\n\n*Foot.*\n";
        let found = of(text);
        let texts: Vec<&str> = found.iter().map(|one| one.text.as_str()).collect();
        let wanted = [
            "Above:",
            "one",
            "two",
            "Below.",
            "a | b | ",
            "c d | e | ",
            "Foot.",
        ];
        assert_eq!(texts, wanted);
        let beside: Vec<&[usize]> = found.iter().map(|one| one.beside.as_slice()).collect();
        let wanted: [&[usize]; 7] = [&[], &[0, 3], &[0, 3], &[], &[3, 4, 6], &[3, 4, 6], &[3, 4]];
        assert_eq!(beside, wanted);
        assert_eq!(found[5].line, 10);
        assert_eq!(found[5].code.first(), Some(&(0..3)));
    }

    #[test]
    fn commands_links_and_what_is_generated_are_told() {
        let text = "# A b\n\nRun `x`, [more](y.md):\n\n    make bench\n\nnot this\n\n    make test\n\n\
                    <!-- table: z -->\n\n| a |\n|---|\n\n<!-- end -->\n\nend\n";
        let found = of(text);
        assert_eq!(found[0].commands, ["x", "make bench"]);
        assert_eq!(found[0].links, ["y.md"]);
        assert_eq!(found[0].section, "a-b");
        assert_eq!(found[1].commands, Vec::<String>::new());
        let generated: Vec<bool> = found.iter().map(|one| one.generated).collect();
        assert_eq!(generated, [false, false, true, false]);
    }
}
