//! The comparison of modes and peers, which run as jobs in rotating [`rounds`](crate::rounds).
//!
//! [`rows`] makes [`Results`] of what the jobs measured. [`table`] puts them into words for a terminal and
//! [`report`] into one HTML file; both have the same [`columns`]. [`verdict`] says in sentences what follows,
//! [`training`] where steps of training are compared. `notes` is what stands under a table, and [`charts`]
//! draws. All of it is pure.

pub mod charts;
pub mod columns;
pub mod environment;
mod notes;
pub mod published;
pub mod report;
pub mod results;
pub mod rows;
pub mod table;
pub mod training;
pub mod verdict;

pub use environment::Environment;
pub use results::{Outcome, Results, Round, Row, Setup};
