//! The comparison of modes and peers, which run as jobs in rotating [`rounds`](crate::rounds).
//!
//! [`rows`] makes the rows of a [`Comparison`] from the jobs' measurements. [`table`] prints them in a
//! terminal, and [`report`] writes one HTML file; both have the same [`columns`]. [`verdict`] writes the
//! conclusion in sentences, and [`training`] the conclusion for training steps. `notes` are the warnings and
//! errors under a table, and [`charts`](crate::charts) draws. All of it is pure.

pub mod columns;
pub mod environment;
mod notes;
#[cfg(test)]
mod page_of_published;
pub mod published;
pub mod report;
pub mod results;
pub mod rows;
pub mod table;
#[cfg(test)]
mod tests;
pub mod training;
pub mod verdict;

pub use environment::Environment;
pub use results::{Comparison, Setup};
