//! The key of a topic.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::Key;

/// A key with a hash of its content, which is the same on every rank. Keys are compared by their hashes
/// first, and by their content only if the hashes are equal, because a push compares its topic often.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Key", into = "Key")]
pub struct TopicKey {
    number: u64,
    key: Key,
}

impl TopicKey {
    /// The key itself.
    pub fn key(&self) -> &Key {
        &self.key
    }
}

impl From<Key> for TopicKey {
    fn from(key: Key) -> Self {
        let number = match &key {
            Key::Int(number) => number.cast_unsigned(),
            Key::Str(name) => xxh3_64(name.as_bytes()),
        };
        TopicKey { number, key }
    }
}

impl From<i64> for TopicKey {
    fn from(number: i64) -> Self {
        TopicKey::from(Key::from(number))
    }
}

impl From<TopicKey> for Key {
    fn from(key: TopicKey) -> Self {
        key.key
    }
}

impl Ord for TopicKey {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.number
            .cmp(&other.number)
            .then_with(|| if self == other { Ordering::Equal } else { self.key.cmp(&other.key) })
    }
}

impl PartialOrd for TopicKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TopicKey {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && self.key == other.key
    }
}

impl Eq for TopicKey {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_equal_numbers_are_told_apart_and_their_order_is_one_of_content() {
        let name = TopicKey::from(Key::from("layer1.weight"));
        let same_number = TopicKey::from(name.number.cast_signed());
        assert_ne!(name, same_number);
        assert_eq!(name.cmp(&same_number), same_number.cmp(&name).reverse());
        let sent: TopicKey = postcard::from_bytes(&postcard::to_stdvec(&name).unwrap()).unwrap();
        assert_eq!((sent.cmp(&name), sent.number), (Ordering::Equal, name.number));
    }
}
