//! The comparison of modes and peers, which run as jobs in rotating [`rounds`](crate::rounds).
//!
//! [`rows`] makes [`Comparison`] of what the jobs measured. [`table`] puts them into words for a terminal and
//! [`report`] into one HTML file; both have the same [`columns`]. [`verdict`] says in sentences what follows,
//! [`training`] where steps of training are compared. `notes` is what stands under a table, and [`charts`]
//! draws. All of it is pure.

pub(crate) mod charts;
pub(crate) mod columns;
pub(crate) mod environment;
mod notes;
pub(crate) mod published;
pub(crate) mod report;
pub(crate) mod results;
pub(crate) mod rows;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod training;
pub(crate) mod verdict;

pub(crate) use environment::Environment;
pub(crate) use results::{Comparison, Setup};
