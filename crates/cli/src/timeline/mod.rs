//! What the timelines of a job's ranks say together.
//!
//! [`merge`] brings the ranks' files onto rank 0's clock; [`account`] says where each rank's step went;
//! [`intervals`] is the arithmetic beneath; [`words`] is the table.

pub(crate) mod account;
pub(crate) mod intervals;
pub(crate) mod merge;
pub(crate) mod words;
