//! Keys as messages show them. If keys are numbers, they come with the framework's names for the values: `3
//! ('dense0_weight')`.
//!
//! Names belong to this process: nothing depends on them, and they may differ between ranks. If several
//! stores use one key for different values, all its names are shown.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::Key;

/// The most names of one key that are shown.
const MOST: usize = 3;

static ARE_ANY: AtomicBool = AtomicBool::new(false);
static NAMES: RwLock<BTreeMap<Key, Vec<String>>> = RwLock::new(BTreeMap::new());

/// From now on messages call `key` by `name` too.
pub fn name_key(key: Key, name: &str) {
    let mut names = NAMES.write();
    let of_key = names.entry(key).or_default();
    if of_key.len() < MOST && !of_key.iter().any(|known| known == name) {
        of_key.push(name.to_owned());
    }
    ARE_ANY.store(true, Ordering::Release);
}

/// Writes the names of `key` behind it, if it has any.
fn write_names(key: &Key, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    if !ARE_ANY.load(Ordering::Acquire) {
        return Ok(());
    }
    match NAMES.read().get(key) {
        Some(names) => write!(out, " ('{}')", names.join("' or '")),
        None => Ok(()),
    }
}

/// The most characters of a key's name that messages show.
const SHOWN: usize = 120;

/// Writes a key as messages show it, with the framework's name for it, if there is one. A long name is cut.
impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Int(number) => write!(out, "{number}"),
            Key::Str(name) => match name.char_indices().nth(SHOWN) {
                None => write!(out, "{name:?}"),
                Some((end, _)) => write!(out, "{:?}... of {} characters", &name[..end], name.chars().count()),
            },
        }?;
        write_names(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_with_every_name_that_it_was_given_and_others_as_they_are() {
        let key = Key::from(1_i64 << 40);
        name_key(key.clone(), "dense0_weight");
        name_key(key.clone(), "dense0_weight");
        assert_eq!(key.to_string(), "1099511627776 ('dense0_weight')");
        name_key(key.clone(), "other");
        assert_eq!(key.to_string(), "1099511627776 ('dense0_weight' or 'other')");
        assert_eq!(Key::from("named by nobody").to_string(), "\"named by nobody\"");
    }

    #[test]
    fn a_message_shows_the_whole_name_unless_it_is_long() {
        let name = |len: usize| "\u{3bb}".repeat(len);
        assert_eq!(Key::from(name(SHOWN)).to_string(), format!("{:?}", name(SHOWN)));
        assert_eq!(Key::from(name(9000)).to_string(), format!("{:?}... of 9000 characters", name(SHOWN)));
    }
}
