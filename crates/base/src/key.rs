//! Keys of a store: integers or strings, one type per store, agreed by content between ranks.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::names;

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
    /// Whether both keys are integers or both are strings.
    pub fn same_type(&self, other: &Key) -> bool {
        matches!((self, other), (Key::Int(_), Key::Int(_)) | (Key::Str(_), Key::Str(_)))
    }
}

/// The characters of a key's name that messages show.
const SHOWN: usize = 120;

/// As messages show it: with the name that a framework gave it, if there is one. A long name is cut.
impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Int(number) => write!(out, "{number}"),
            Key::Str(name) => match name.char_indices().nth(SHOWN) {
                None => write!(out, "{name:?}"),
                Some((end, _)) => write!(out, "{:?}... of {} characters", &name[..end], name.chars().count()),
            },
        }?;
        names::write_names(self, out)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_the_whole_name_unless_it_is_long() {
        let name = |len: usize| "\u{3bb}".repeat(len);
        assert_eq!(Key::from(name(SHOWN)).to_string(), format!("{:?}", name(SHOWN)));
        assert_eq!(Key::from(name(9000)).to_string(), format!("{:?}... of 9000 characters", name(SHOWN)));
    }
}
