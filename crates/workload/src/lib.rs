//! The pushes, pulls and checks of the measurements of the command and of the Python package.
//!
//! - [`models`]: the key lists of models;
//! - [`pattern`]: inputs whose sums are known; [`expected`]: what a store must then hold;
//! - [`iterations`]: push and pull of a list of keys, timed and verified; [`sparse`]: push and pull of rows
//!   of a table.
//!
//! The crate is apart from the command so that the Python package can have it too: Python's loop and Rust's
//! are then measured in one process.

#![forbid(unsafe_code)]

pub mod expected;
pub mod iterations;
pub mod models;
pub mod pattern;
pub mod sparse;
