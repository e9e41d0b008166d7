//! Values of flags, read by the same functions as those of the config file.

use clap::builder::TypedValueParser;
use weir_config::Fault;

/// A value parser from a function of weir-config; a fault's hint stands on a line of its own, as elsewhere.
pub fn parsed<T>(
    parse: impl Fn(&str) -> Result<T, Fault> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    move |text: &str| {
        parse(text).map_err(|fault| format!("{}\n  hint: {}", fault.cause, fault.hint))
    }
}
