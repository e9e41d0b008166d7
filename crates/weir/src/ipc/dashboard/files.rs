//! The page: its files as they are in `crates/weir/dashboard`, in the program itself.

use std::future::ready;

use axum::Router;
use axum::http::header;
use axum::routing::get;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! page_file {
    ($path:literal, $kind:expr, $name:literal) => {
        (
            $path,
            $kind,
            include_str!(concat!("../../../dashboard/", $name)),
        )
    };
}

/// Path, type and text of every file.
const FILES: [(&str, &str, &str); 10] = [
    page_file!("/", HTML, "index.html"),
    page_file!("/style.css", CSS, "style.css"),
    page_file!("/icon.svg", SVG, "icon.svg"),
    page_file!("/app.js", SCRIPT, "app.js"),
    page_file!("/chart.js", SCRIPT, "chart.js"),
    page_file!("/dom.js", SCRIPT, "dom.js"),
    page_file!("/flow.js", SCRIPT, "flow.js"),
    page_file!("/listeners.js", SCRIPT, "listeners.js"),
    page_file!("/model.js", SCRIPT, "model.js"),
    page_file!("/panels.js", SCRIPT, "panels.js"),
];

/// A path for each file.
pub fn router() -> Router {
    let add = |router: Router, (path, kind, text): (&'static str, &'static str, &'static str)| {
        // A browser asks again each time, so that a page is never of another version than its weir.
        let head = [
            (header::CONTENT_TYPE, kind),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        router.route(path, get(move || ready((head.clone(), text))))
    };
    FILES.into_iter().fold(Router::new(), add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_names_another_host_or_has_a_script_or_style_in_line() {
        for (path, kind, text) in FILES {
            // The one name of a namespace that SVG must have.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for foreign in [
                "http:",
                "https:",
                "url(//",
                "\"//",
                "@import",
                "eval(",
                "innerHTML",
            ] {
                assert!(!text.contains(foreign), "{path}: {foreign}");
            }
            if kind == HTML {
                for inline in ["<style", " style=", " onclick=", "javascript:"] {
                    assert!(!text.contains(inline), "{path}: {inline}");
                }
                assert_eq!(
                    text.matches("<script").count(),
                    text.matches("<script type=\"module\" src=\"").count()
                );
            }
        }
    }

    #[test]
    fn every_module_that_is_imported_is_there() {
        for (path, _, text) in FILES {
            let imports = text.split(" from \"./").skip(1);
            for name in imports.filter_map(|rest| rest.split('"').next()) {
                let is_there = FILES.iter().any(|(path, ..)| path[1..] == *name);
                assert!(is_there, "{path} imports {name}");
            }
        }
    }
}
