//! The line of each value of a YAML stream, found by the path of a finding.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// The lines of the values of a document. The line of a field is the line of its name, and that of an element
/// is its first line.
#[derive(Debug, Clone, Default)]
enum Place {
    Fields(Vec<(Spanned<String>, Place)>),
    Items(Vec<Spanned<Place>>),
    #[default]
    Scalar,
}

/// The lines of all documents of a stream.
#[derive(Debug, Default)]
pub(super) struct SourceLines(Vec<Spanned<Place>>);

impl SourceLines {
    /// Finds the lines of a text that is valid YAML.
    pub(super) fn of(text: &str) -> SourceLines {
        SourceLines(serde_saphyr::from_multiple(text).unwrap_or_default())
    }

    /// Returns the line of a path in a document. The arguments are the document's number and the path of a
    /// finding. For a missing value it returns the line of the parent.
    pub(super) fn line(&self, document: usize, path: &str) -> u64 {
        let Some(document) = document.checked_sub(1).and_then(|at| self.0.get(at)) else { return 1 };
        let (mut line, mut place, mut rest) = (line_of(document.referenced), &document.value, path);
        loop {
            let next = match place {
                Place::Fields(fields) => {
                    let found = fields.iter().filter_map(|(name, value)| {
                        let after = rest.strip_prefix(name.value.as_str())?;
                        let is_whole = after.is_empty() || after.starts_with(['.', '[']);
                        is_whole.then_some((name.referenced, value, after.strip_prefix('.').unwrap_or(after)))
                    });
                    // Names may contain dots.
                    found.min_by_key(|(.., after)| after.len())
                }
                Place::Items(items) => {
                    rest.strip_prefix('[').and_then(|rest| rest.split_once(']')).and_then(|(at, after)| {
                        let item = items.get(at.parse::<usize>().ok()?)?;
                        Some((item.referenced, &item.value, after.strip_prefix('.').unwrap_or(after)))
                    })
                }
                Place::Scalar => None,
            };
            let Some((location, value, after)) = next else { return line };
            (line, place, rest) = (line_of(location), value, after);
        }
    }
}

/// Lines count from 1; an unknown one is 0.
fn line_of(location: Location) -> u64 {
    location.line().max(1)
}

/// Each kind of scalar is the same.
macro_rules! scalars {
    ($($visit:ident($($of:ty)?)),*) => {
        $(fn $visit<E>(self $(, _: $of)?) -> Result<Place, E> { Ok(Place::Scalar) })*
    };
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = Place;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("a value")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Place, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Place::Fields(fields))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Place, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Place::Items(items))
            }

            fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<Place, D::Error> {
                Place::deserialize(value)
            }

            scalars! { visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64),
            visit_str(&str), visit_unit(), visit_none() }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_the_line_of_its_name_or_of_what_should_hold_it() {
        let text = "# first\nkind: A\nspec:\n  list:\n  - a: 1\n    b: {c: 2}\n  -\n    a: true\n  dotted.name: x\n  empty:\n---\n\nkind: B\nitems:\n- kind: C\n  on: null\n";
        let lines = SourceLines::of(text);
        let expected = [
            (1, "kind", 2),
            (1, "", 2),
            (1, "spec", 3),
            (1, "spec.list[0]", 5),
            (1, "spec.list[0].b.c", 6),
            (1, "spec.list[1].a", 8),
            (1, "spec.list[1].missing.x", 8),
            (1, "spec.list[5]", 4),
            (1, "spec.dotted.name", 9),
            (1, "spec.empty.x", 10),
            (2, "kind", 13),
            (2, "items[0].on", 16),
            (3, "kind", 1),
        ];
        for (document, path, line) in expected {
            assert_eq!(lines.line(document, path), line, "{document} {path}");
        }
    }
}
