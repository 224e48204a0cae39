//! Ranks together: what becomes of their calls, how they finish, how they leave.

mod bits;
mod explore;
mod finish;
mod helpers;
mod leave;
mod many;
mod schedule;
mod stop;
