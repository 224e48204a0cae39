//! The fields of Kubernetes' and Kubeflow's objects: their names, types and merge keys.
//!
//! `schemas.json` holds the part of the operators' CustomResourceDefinitions that [`check`] needs: no
//! descriptions, and each structure only once. `tests/schemas.rs` makes this file and names its sources.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use ringpull_base::closest;

use crate::quantity::Quantity;

/// A shape of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Anything.
    Any,
    /// A text.
    String,
    /// `true` or `false`.
    Boolean,
    /// A number, possibly with a fraction.
    Number,
    /// A whole number, with its least and its largest value.
    Integer(Option<i64>, Option<i64>),
    /// A quantity, such as 500m or 8Gi.
    Quantity,
    /// A whole number or a text.
    Either,
    /// One of these texts.
    Enum(Vec<String>),
    /// A list: the shape of its elements, and the fields by which elements are merged. A list without such
    /// fields is replaced.
    List(usize, Vec<String>),
    /// An object with any names: the shape of its values.
    Map(usize),
    /// An object: the fields that it may have, and the names of those that it must have.
    Fields(BTreeMap<String, usize>, Vec<String>),
}

/// All kinds: the shape of each by `apiVersion/kind`, as an index into the shapes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schemas {
    /// The index of each kind's shape, by `apiVersion/kind`.
    pub kinds: BTreeMap<String, usize>,
    /// The shapes, each only once.
    pub shapes: Vec<Shape>,
}

static SCHEMAS: LazyLock<Schemas> =
    LazyLock::new(|| serde_json::from_str(include_str!("schemas.json")).expect("schemas.json is valid"));

/// A value that does not fit its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The path of the fault, as names divided by dots.
    pub path: String,
    /// The fault.
    pub what: String,
    /// The text to write instead.
    pub fix: String,
}

/// The shape of an object, if its kind is known.
pub(crate) fn shape_of(object: &Value) -> Option<&'static Shape> {
    let name = format!("{}/{}", object["apiVersion"].as_str()?, object["kind"].as_str()?);
    SCHEMAS.kinds.get(&name).map(|at| &SCHEMAS.shapes[*at])
}

impl Shape {
    /// The shape of the field `name`. `None` if the object has no such field.
    pub(crate) fn field(&self, name: &str) -> Option<&'static Shape> {
        match self {
            Shape::Fields(fields, _) => fields.get(name).map(|at| &SCHEMAS.shapes[*at]),
            Shape::Map(of) => Some(&SCHEMAS.shapes[*of]),
            Shape::Any => Some(&Shape::Any),
            _ => None,
        }
    }

    /// The shape of a list's elements, and the fields by which they are merged.
    pub(crate) fn elements(&self) -> Option<(&'static Shape, &[String])> {
        match self {
            Shape::List(of, keys) => Some((&SCHEMAS.shapes[*of], keys)),
            _ => None,
        }
    }
}

/// Returns the parts of an object that do not fit the shape of its kind. Empty if the kind is not known.
pub fn check(object: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some(shape) = shape_of(object) {
        walk(object, shape, "", &mut faults);
    }
    faults
}

fn walk(value: &Value, shape: &Shape, path: &str, faults: &mut Vec<Fault>) {
    let mut fault = |what: String, fix: String| faults.push(Fault { path: path.to_owned(), what, fix });
    let mut wrong = |expected: &str| fault(format!("{value} is not {expected}"), format!("write {expected}"));
    match shape {
        Shape::String if !value.is_string() => {
            fault(
                format!("{value} is not a text"),
                format!("write \"{}\" in quotes", value.to_string().trim_matches('"')),
            );
        }
        Shape::Boolean if !value.is_boolean() => wrong("true or false, without quotes"),
        Shape::Number if !value.is_number() => wrong("a number, without quotes"),
        Shape::Integer(..) if !value.is_i64() => wrong("a whole number, without quotes"),
        Shape::Integer(least, most) => {
            let number = value.as_i64().unwrap_or(0);
            if number < least.unwrap_or(i64::MIN) || number > most.unwrap_or(i64::MAX) {
                let bound = |bound: &Option<i64>, word| bound.map_or(String::new(), |bound| format!(" {word} {bound}"));
                fault(
                    format!("{number} is out of range"),
                    format!("write a number of{}{}", bound(least, "at least"), bound(most, "at most")),
                );
            }
        }
        Shape::Either if !value.is_i64() && !value.is_string() => wrong("a whole number or a text"),
        Shape::Quantity => match value {
            Value::String(text) if text.parse::<Quantity>().is_err() && text != "0" => {
                if let Err(ringpull_base::Error::InvalidArgument { what, remedy }) = text.parse::<Quantity>() {
                    fault(what, remedy);
                }
            }
            Value::String(_) => {}
            Value::Number(number) if number.as_f64().is_some_and(|number| number >= 0.0) => {}
            _ => wrong("a quantity, such as 2 or 8Gi"),
        },
        Shape::Enum(words) if !words.iter().any(|word| Some(word.as_str()) == value.as_str()) => {
            wrong(&format!("one of {}", words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")));
        }
        Shape::List(of, _) => match value.as_array() {
            None => wrong("a list"),
            Some(list) => {
                let of = &SCHEMAS.shapes[*of];
                list.iter().enumerate().for_each(|(at, one)| walk(one, of, &format!("{path}[{at}]"), faults));
            }
        },
        Shape::Map(_) | Shape::Fields(..) => {
            let Some(fields) = value.as_object() else {
                return wrong("an object");
            };
            if let Shape::Fields(known, required) = shape {
                for name in required.iter().filter(|name| fields.get(*name).is_none_or(Value::is_null)) {
                    fault(format!("{name} is missing"), format!("add {name}"));
                }
                for name in fields.keys().filter(|name| !known.contains_key(*name)) {
                    let same = known.keys().find(|other| other.eq_ignore_ascii_case(name)).map(String::as_str);
                    let fix = match same.or_else(|| closest(name, known.keys().map(String::as_str))) {
                        Some(near) => format!("write {near}"),
                        None => "leave it out, or move it to the object that has it".to_owned(),
                    };
                    fault(format!("{name} is not a field here: it is dropped or refused"), fix);
                }
            }
            let dot = if path.is_empty() { "" } else { "." };
            for (name, field) in fields.iter().filter(|(_, field)| !field.is_null()) {
                if let Some(of) = shape.field(name) {
                    walk(field, of, &format!("{path}{dot}{name}"), faults);
                }
            }
        }
        _ => {}
    }
}
