//! Runs each recipe of docs/recipes.md from the text of the page, with the real server.

mod containers;
mod http3;
mod pools;
mod proxies;
mod servers;
mod site;

use weir_testbed::pages::{Block, Page};

/// The text of one block of a recipe: of those under this heading with this word behind their fence (none if they are
/// indented) the one with this number, from 0.
pub fn block(section: &str, info: &str, number: usize) -> String {
    let page = Page::read("docs/recipes.md").unwrap();
    let blocks: Vec<&Block> = page.blocks_of(section, info);
    let found = blocks.get(number);
    let found = found.unwrap_or_else(|| {
        panic!("{section} of docs/recipes.md has no block {number} of {info:?}")
    });
    found.text.clone()
}
