//! The pushes, pulls and checks of the measurements of the command and of the Python package.
//!
//! - [`models`]: the key lists of models;
//! - [`pattern`]: inputs whose sums are known; [`expected`]: what a store must then hold;
//! - [`iterations`]: push and pull of a list of keys, timed and verified; [`sparse`]: of rows of a table.
//!
//! The wheel holds this crate and not the command's, so that Python's loop and Rust's are measured in one
//! process.

#![forbid(unsafe_code)]

pub mod expected;
pub mod iterations;
pub mod models;
pub mod pattern;
pub mod sparse;
