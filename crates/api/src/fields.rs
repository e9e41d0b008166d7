//! Every field of the schema with its texts, taken from the same comments as the OpenAPI document.

use std::sync::LazyLock;

use serde_json::Value;
use utoipa::OpenApi;

/// A field of a type of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The type that has the field, as the OpenAPI document names it.
    pub of: String,
    /// The field's name in JSON.
    pub name: String,
    /// What the field is, in one line.
    pub text: String,
    /// How to read it; may be empty.
    pub note: String,
}

/// The reports; their parts follow from their fields.
#[derive(OpenApi)]
#[openapi(components(schemas(crate::Status)))]
struct Reports;

/// What else is asked for.
#[derive(OpenApi)]
#[openapi(components(schemas(crate::Events, crate::Why, crate::TopSources, crate::Suggestions)))]
struct Others;

/// All fields of the reports, type by type; types of one name are one. Those of a status come first.
pub fn all() -> &'static [Field] {
    static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
        let mut fields: Vec<Field> = Vec::new();
        for document in [Reports::openapi(), Others::openapi()] {
            let document = serde_json::to_value(document).expect("the document is JSON");
            let schemas = document["components"]["schemas"].as_object();
            for (of, schema) in schemas.expect("the reports have schemas") {
                if fields.iter().all(|field| field.of != *of) {
                    fields.extend(fields_of(of, schema));
                }
            }
        }
        fields
    });
    &FIELDS
}

/// The field `name` of the type `of`.
///
/// # Panics
/// There is no such field: `of` and `name` are constants of the program.
pub fn of(of: &str, name: &str) -> &'static Field {
    let mut fields = all().iter();
    let found = fields.find(|field| field.of == of && field.name == name);
    found.unwrap_or_else(|| panic!("the type {of} has no field {name}"))
}

fn fields_of(of: &str, schema: &Value) -> Vec<Field> {
    let properties = schema["properties"].as_object();
    let field = |(name, schema): (&String, &Value)| {
        // An optional part of another type is that type or null.
        let described = schema
            .get("description")
            .or(schema.pointer("/oneOf/0/description"));
        let description = described.and_then(Value::as_str).unwrap_or_default();
        let (text, note) = description.split_once("\n\n").unwrap_or((description, ""));
        Field {
            of: of.to_owned(),
            name: name.clone(),
            text: text.replace('\n', " "),
            note: note.replace('\n', " "),
        }
    };
    properties.into_iter().flatten().map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_text() {
        assert!(all().len() > 100, "{}", all().len());
        for field in all() {
            assert!(!field.text.is_empty(), "{field:?}");
            assert!(!field.text.ends_with('.'), "a text is a phrase: {field:?}");
        }
    }

    #[test]
    fn the_fields_are_those_that_are_serialised() {
        let of = |name: &str| -> Vec<&str> {
            let fields = all().iter().filter(|field| field.of == name);
            fields.map(|field| field.name.as_str()).collect()
        };
        let socket = serde_json::to_value(crate::Socket::default()).unwrap();
        let names: Vec<&String> = socket.as_object().unwrap().keys().collect();
        assert_eq!(of("Socket"), names);
    }

    #[test]
    fn a_second_paragraph_is_the_note() {
        let field = super::of("Listener", "queue_way");
        assert_eq!(
            field.text,
            "What orders the waiting connections: parking, exec or fifo"
        );
        assert!(
            field.note.starts_with("parking: weir holds them"),
            "{}",
            field.note
        );
    }
}
