//! The interpreter over threads and channels.

mod ahead;
mod run;
