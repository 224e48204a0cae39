//! Hosts together.

mod sharing;
