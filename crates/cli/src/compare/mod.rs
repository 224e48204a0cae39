//! The comparison of modes and peers, which run as jobs in rotating [`rounds`](crate::rounds).
//!
//! [`rows`] makes the rows of a [`Comparison`] from the jobs' measurements. [`table`] prints them in a
//! terminal, and [`report`] writes one HTML file; both have the same [`columns`].
//! [`verdict`] is the conclusion in sentences, [`training`] that for steps of training. `notes` are the
//! warnings and errors under a table, and [`charts`](crate::charts) draws. All of it is pure.

pub(crate) mod columns;
pub(crate) mod environment;
mod notes;
#[cfg(test)]
mod page_of_published;
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
