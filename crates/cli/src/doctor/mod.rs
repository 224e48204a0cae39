//! Finds the causes that would stop a job from running on these hosts, and the fix of each.
//!
//! - [`facts`]: the facts of a host; `gather`: reads the facts of this host; [`hosts`]: gets the facts of
//!   other hosts, by ssh or, under `mpirun`, from the ranks; `probe`: two ranks that report the properties of
//!   MPI;
//! - `judge`: judges the facts of one host; `together`: judges the facts of several hosts. Both are pure.

pub(crate) mod facts;
mod gather;
pub(crate) mod hosts;
mod judge;
pub(crate) mod probe;
#[cfg(test)]
mod tests;
mod together;

use serde::Serialize;

use ringpull_base::topology::host_name;

use self::facts::Facts;
pub(crate) use self::gather::gather;
use crate::launch::environment;
use ringpull_harness::text::several;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HostVerdict {
    /// A job would fail.
    Failure,
    /// A job would run, but more slowly, or only with some launchers.
    Warning,
    Good,
}

/// The result of a check on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct HostFinding {
    pub verdict: HostVerdict,
    pub check: &'static str,
    pub host: String,
    pub what: String,
    /// The change to make, unless the result is good.
    pub fix: Option<String>,
}

impl HostFinding {
    fn new(
        verdict: HostVerdict,
        check: &'static str,
        host: &str,
        what: impl Into<String>,
        fix: Option<String>,
    ) -> Self {
        HostFinding { verdict, check, host: host.to_owned(), what: what.into(), fix }
    }

    /// A host that did not send its facts.
    pub(crate) fn silent(host: &str, cause: &str) -> Self {
        let fix = format!("`ssh {host} ringpull info` must work without a password: the same program at the same path");
        HostFinding::failure("ssh", host, format!("it did not send its facts: {cause}"), fix)
    }

    /// A finding on the part of the user's environment that stays on this host. It is not a fault.
    pub(crate) fn environment() -> Self {
        let (passed, kept) = (environment::passed_on().len(), environment::kept_here());
        let what = format!("{} are passed on to other hosts; not {}", several(passed, "variable"), kept.join(", "));
        HostFinding::good("environment", &host_name(), what)
    }

    fn good(check: &'static str, host: &str, what: impl Into<String>) -> Self {
        HostFinding::new(HostVerdict::Good, check, host, what, None)
    }

    fn warning(check: &'static str, host: &str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        HostFinding::new(HostVerdict::Warning, check, host, what, Some(fix.into()))
    }

    fn failure(check: &'static str, host: &str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        HostFinding::new(HostVerdict::Failure, check, host, what, Some(fix.into()))
    }
}

/// The meaning of the facts of these hosts: each host alone, then all together.
pub(crate) fn judge(all: &[Facts]) -> Vec<HostFinding> {
    let alone = all.iter().flat_map(judge::host);
    alone.chain(together::hosts(all)).collect()
}
