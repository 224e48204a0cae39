//! Emulated hosts, rehearsed faults, compared jobs and predictions: jobs on one machine that stand for jobs
//! of a cluster.
//!
//! - [`hosts`]: emulated hosts joined by links of a rate;
//! - [`rehearse`]: jobs that meet faults; [`ends`]: the effect of each process's end on its job;
//! - [`differ`]: the values of two kinds of store;
//! - [`advise`]: steps of training predicted for any number of hosts;
//! - [`status_client`]: asks running jobs for their status.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "fields of findings and of options, for the command alone: their names say them")]

pub mod advise;
pub mod differ;
pub mod ends;
pub mod hosts;
pub mod rehearse;
pub mod status_client;
