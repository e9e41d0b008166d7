//! Runs each recipe of docs/recipes.md and the pages beside it from their text, with the real server.

mod containers;
mod http3;
mod pools;
mod proxies;
mod servers;
mod site;

use weir_testbed::pages::{Block, Page};

const PAGES: [&str; 5] = [
    "docs/recipes.md",
    "docs/recipes-containers.md",
    "docs/recipes-http3.md",
    "docs/recipes-pools.md",
    "docs/recipes-proxies.md",
];

/// The text of one block of a recipe: of those under this heading with this word behind their fence (none if they are
/// indented) the one with this number, from 0. No two pages have a recipe of the same heading.
pub fn block(section: &str, info: &str, number: usize) -> String {
    let pages = PAGES.map(|path| Page::read(path).unwrap());
    let blocks: Vec<&Block> = pages
        .iter()
        .flat_map(|page| page.blocks_of(section, info))
        .collect();
    let found = blocks.get(number);
    let found = found
        .unwrap_or_else(|| panic!("{section} of the recipes has no block {number} of {info:?}"));
    found.text.clone()
}
