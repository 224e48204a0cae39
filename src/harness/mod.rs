//! Runs jobs, verifies and measures them: emulated hosts, launching, the comparison.
//!
//! - [`link`]: the rate of a link; [`lab`]: emulated hosts joined by links of that rate;
//! - [`machine`]: what this machine can do.

pub mod lab;
pub mod link;
pub mod machine;
