//! Tests of communicators whose ranks share hosts.

mod sharing;
