//! Evaluates the timelines of a job's ranks together.
//!
//! [`merge`] puts the ranks' files on rank 0's clock; [`account`] divides the time of each rank's step;
//! [`intervals`] is the arithmetic beneath; [`words`] is the table.

pub(crate) mod account;
pub(crate) mod intervals;
pub(crate) mod merge;
pub(crate) mod words;
