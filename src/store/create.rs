//! From a kind's name to a store.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::store::KvStore;

/// Creates a store. `kind` is one of [`Kind::ALL`], spelled exactly.
pub fn create(kind: &str) -> Result<KvStore> {
    let kind: Kind = kind.parse()?;
    let _config = Config::from_env()?;
    Err(Error::KindUnavailable { kind: kind.to_string(), reason: "no backend".to_owned(), remedy: "none".to_owned() })
}
