//! A value of a document, with its path.

use serde_json::Value;

const ABSENT: &Value = &Value::Null;

/// A value and its path. An absent value is null.
#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    pub(super) value: &'a Value,
    pub(super) path: String,
}

impl<'a> Node<'a> {
    /// A field.
    pub(super) fn get(&self, name: &str) -> Node<'a> {
        let dot = if self.path.is_empty() { "" } else { "." };
        Node { value: self.value.get(name).unwrap_or(ABSENT), path: format!("{}{dot}{name}", self.path) }
    }

    /// A nested field: names divided by dots.
    pub(super) fn down(&self, names: &str) -> Node<'a> {
        names.split('.').fold(self.clone(), |node, name| node.get(name))
    }

    /// The path of a mount, without `/` at its end.
    pub(super) fn mount_path(&self) -> &'a str {
        self.get("mountPath").text().unwrap_or("").trim_end_matches('/')
    }

    /// The elements of a list; nothing if it is not a list.
    pub(super) fn items(&self) -> Vec<Node<'a>> {
        let list = self.value.as_array().map_or(&[][..], Vec::as_slice);
        list.iter().enumerate().map(|(at, value)| Node { value, path: format!("{}[{at}]", self.path) }).collect()
    }

    /// The fields of an object. Empty if the value is not an object.
    pub(super) fn fields(&self) -> Vec<(&'a str, Node<'a>)> {
        let fields = self.value.as_object().into_iter().flatten();
        fields.map(|(name, _)| (name.as_str(), self.get(name))).collect()
    }

    pub(super) fn is_there(&self) -> bool {
        !self.value.is_null()
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.value.as_str()
    }

    pub(super) fn number(&self) -> Option<i64> {
        self.value.as_i64()
    }

    pub(super) fn is_true(&self) -> bool {
        self.value.as_bool() == Some(true)
    }

    /// The texts of a list.
    pub(super) fn words(&self) -> Vec<&'a str> {
        self.value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
}

impl Node<'_> {
    /// The number of a quantity; 0 if the value is not a quantity.
    pub(super) fn amount(&self) -> f64 {
        let text = self.text().map_or_else(|| self.value.to_string(), str::to_owned);
        text.parse::<crate::quantity::Quantity>().map_or(0.0, |quantity| quantity.value())
    }
}
