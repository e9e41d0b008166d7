//! The Markdown pages of the repository: what they link to, and the commands and files in them. For the tests that hold
//! the documentation to the program.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::anchors::Anchors;
use crate::error::{Context, Error, Result};
use crate::paragraphs::{self, Paragraph};

/// Folders without pages of the project.
const SKIPPED: [&str; 3] = ["out", "target", "node_modules"];

/// A page.
#[derive(Debug)]
pub struct Page {
    /// From the root of the repository, such as `docs/queue.md`.
    pub path: PathBuf,
    /// Code blocks, in order.
    pub blocks: Vec<Block>,
    /// Code within a line, in order.
    pub spans: Vec<Text>,
    /// Targets of links and of pictures, in order.
    pub links: Vec<Text>,
    /// What a link can name behind `#`.
    pub anchors: BTreeSet<String>,
    /// What is read at a time, in order.
    pub paragraphs: Vec<Paragraph>,
}

/// A part of a page.
#[derive(Debug)]
pub struct Text {
    /// The line of the page in which it begins, from 1.
    pub line: usize,
    /// The text itself.
    pub text: String,
}

/// A code block.
#[derive(Debug)]
pub struct Block {
    /// The line of the page in which its text begins, from 1.
    pub line: usize,
    /// The anchor of the heading above it; empty before the first one.
    pub section: String,
    /// What stands behind the fence, such as `toml`; empty also for a block that is indented.
    pub info: String,
    /// Its text.
    pub text: String,
}

impl Page {
    /// Reads a page of the repository by its path from the root.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &str) -> Result<Page> {
        let file = root()?.join(path);
        let text =
            std::fs::read_to_string(&file).context(format!("cannot read {}", file.display()))?;
        Ok(Page::parse(path.into(), &text))
    }

    /// Reads the text of a page with this path.
    pub fn parse(path: PathBuf, text: &str) -> Page {
        let mut page = Page {
            path,
            blocks: Vec::new(),
            spans: Vec::new(),
            links: Vec::new(),
            anchors: BTreeSet::new(),
            paragraphs: paragraphs::of(text),
        };
        let mut reader = Reader::default();
        let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            let line = 1 + text[..range.start].matches('\n').count();
            reader.take(&mut page, event, line);
        }
        page
    }

    /// The blocks under a heading, by its anchor, that have this word behind their fence.
    pub fn blocks_of(&self, section: &str, info: &str) -> Vec<&Block> {
        let wanted = |block: &&Block| block.section == section && block.info == info;
        self.blocks.iter().filter(wanted).collect()
    }

    /// `docs/queue.md:12`, for a message.
    pub fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }

    /// Where a relative link of this page leads: the path from the root of the repository, and what is behind `#`.
    /// `None` for a link to somewhere else, or out of the repository.
    pub fn target(&self, link: &str) -> Option<(PathBuf, Option<String>)> {
        let (path, anchor) = match link.split_once('#') {
            Some((path, anchor)) => (path, Some(anchor.to_owned())),
            None => (link, None),
        };
        if path.is_empty() {
            return Some((self.path.clone(), anchor));
        }
        let mut found = self.path.parent().unwrap_or(Path::new("")).to_owned();
        for part in Path::new(path).components() {
            match part {
                Component::ParentDir if !found.pop() => return None,
                Component::Normal(name) => found.push(name),
                Component::RootDir | Component::Prefix(_) => return None,
                Component::ParentDir | Component::CurDir => {}
            }
        }
        Some((found, anchor))
    }
}

/// What is open while a page is read.
#[derive(Default)]
struct Reader {
    heading: Option<String>,
    section: String,
    anchors: Anchors,
    block: Option<Block>,
}

impl Reader {
    fn take(&mut self, page: &mut Page, event: Event<'_>, line: usize) {
        match event {
            Event::Start(Tag::Heading { .. }) => self.heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => self.end_heading(page),
            Event::Start(Tag::CodeBlock(kind)) => self.begin_block(&kind, line),
            Event::End(TagEnd::CodeBlock) => page.blocks.extend(self.block.take()),
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(Text {
                    line,
                    text: dest_url.to_string(),
                });
            }
            Event::Html(html) | Event::InlineHtml(html) => {
                page.anchors.extend(name_in(&html));
            }
            Event::Code(code) => {
                self.heading_grows(&code);
                page.spans.push(Text {
                    line,
                    text: code.to_string(),
                });
            }
            Event::Text(text) => match &mut self.block {
                Some(block) => block.text.push_str(&text),
                None => self.heading_grows(&text),
            },
            _ => {}
        }
    }

    fn begin_block(&mut self, kind: &CodeBlockKind<'_>, line: usize) {
        let (info, fence) = match kind {
            CodeBlockKind::Fenced(info) => (info.to_string(), 1),
            CodeBlockKind::Indented => (String::new(), 0),
        };
        self.block = Some(Block {
            line: line + fence,
            section: self.section.clone(),
            info,
            text: String::new(),
        });
    }

    fn heading_grows(&mut self, text: &str) {
        if let Some(heading) = &mut self.heading {
            heading.push_str(text);
        }
    }

    fn end_heading(&mut self, page: &mut Page) {
        self.section = self.anchors.of(&self.heading.take().unwrap_or_default());
        page.anchors.insert(self.section.clone());
    }
}

/// The name in `<a name="…">`.
fn name_in(html: &str) -> Option<String> {
    let (_, rest) = html.split_once("<a name=\"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// The root of the repository.
///
/// # Errors
/// The current folder is not in it, as it is for every test.
pub fn root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("cannot tell the current folder")?;
    let root = here
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").is_file());
    root.map(Path::to_owned)
        .ok_or_else(|| Error::failed("cannot find the repository", "no Cargo.lock above here"))
}

/// All files of the repository whose name ends so (`.md`), by their paths from its root, sorted.
///
/// # Errors
/// A folder cannot be read.
pub fn files(end: &str) -> Result<Vec<PathBuf>> {
    let root = root()?;
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let what = format!("cannot read {}", folder.display());
        for entry in std::fs::read_dir(&folder).context(what)?.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name.starts_with('.') || SKIPPED.contains(&name.as_ref()) {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(_) if name.ends_with(end) => {
                    found.push(path.strip_prefix(&root).unwrap_or(&path).to_owned());
                }
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// All pages of the repository.
///
/// # Errors
/// One cannot be read.
pub fn all() -> Result<Vec<Page>> {
    let read = |path: &PathBuf| Page::read(&path.to_string_lossy());
    files(".md")?.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page::parse("pages/this.md".into(), text)
    }

    #[test]
    fn anchors_are_githubs() {
        let page = page(
            "# The `queue`, once\n\n## Twice\n\n## Twice\n\n<a name=\"own\"></a>\n\n## a_b – c\n",
        );
        let wanted = ["the-queue-once", "twice", "twice-1", "own", "a_b--c"];
        assert_eq!(page.anchors, wanted.map(str::to_owned).into());
    }

    #[test]
    fn blocks_have_their_line_section_and_word() {
        let page =
            page("## One\n\n```toml fragment\na = 1\n```\n\ntext\n\n    indented\n    twice\n");
        let seen = |block: &Block| {
            let Block {
                line,
                section,
                info,
                text,
            } = block;
            format!("{line} {section} {info} {text:?}")
        };
        let seen: Vec<String> = page.blocks.iter().map(seen).collect();
        assert_eq!(
            seen,
            [
                r#"4 one toml fragment "a = 1\n""#,
                r#"9 one  "indented\ntwice\n""#
            ]
        );
    }

    #[test]
    fn links_lead_from_the_folder_of_their_page() {
        let page = page("[a](b.md#c) ![d](../e.svg) `[no](link)` [f](#g) [h](../../i)");
        let seen: Vec<_> = page
            .links
            .iter()
            .map(|link| page.target(&link.text))
            .collect();
        let at = |path: &str, anchor: Option<&str>| Some((path.into(), anchor.map(str::to_owned)));
        assert_eq!(
            seen,
            [
                at("pages/b.md", Some("c")),
                at("e.svg", None),
                at("pages/this.md", Some("g")),
                None
            ]
        );
    }
}
