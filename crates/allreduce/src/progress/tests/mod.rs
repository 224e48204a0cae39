//! Tests of several ranks together: their calls, their finishing and their leaving.

mod bits;
mod explore;
mod finish;
mod helpers;
mod leave;
mod many;
mod schedule;
mod stop;
mod tags;
