//! Tests, and the parts of them that fuzz targets run.
#![allow(unreachable_pub, missing_docs)]

pub mod greetings;
pub mod link;
#[cfg(test)]
mod sessions;
