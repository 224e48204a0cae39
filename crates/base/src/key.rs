//! Keys of a store: integers or strings, one type per store, agreed by content between ranks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name of one value in a store: a text or an integer, which are never equal.
///
/// ```
/// # use ringpull_base as ringpull;
/// use ringpull::Key;
///
/// assert_ne!(Key::from(3), Key::from("3"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Key {
    /// An integer key, as `gluon.Trainer` uses.
    Int(i64),
    /// A string key, as `Module` uses.
    Str(Arc<str>),
}

impl Key {
    /// Returns true if both keys are integers or both are strings.
    pub fn same_type(&self, other: &Key) -> bool {
        matches!((self, other), (Key::Int(_), Key::Int(_)) | (Key::Str(_), Key::Str(_)))
    }
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Key::Int(number)
    }
}

impl From<i32> for Key {
    fn from(number: i32) -> Self {
        Key::Int(number.into())
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Key::Str(name.into())
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        Key::Str(name.into())
    }
}
