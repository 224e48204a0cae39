//! How an allreduce is to be done, and what that is called.

use std::fmt;
use std::str::FromStr;

use ringpull_base::config::ALGORITHMS;
use ringpull_base::{Error, did_you_mean};
use ringpull_plan::Algorithm;

/// How an allreduce is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// By the plan that suits the size and the number of ranks.
    Auto,
    /// By this plan.
    Plan(Algorithm),
    /// Every element in the order of the ranks: the same bits wherever the ranks run.
    Ordered,
    /// By the library under the transport: `MPI_Allreduce`.
    Native,
    /// Memory of devices by the devices themselves, on GPUs by NCCL; that of the host as by `auto`.
    Nccl,
}

impl Choice {
    /// Whether memory of the host is summed by what suits the cluster.
    pub fn is_auto(self) -> bool {
        matches!(self, Choice::Auto | Choice::Nccl)
    }
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "auto" => Ok(Choice::Auto),
            "ordered" => Ok(Choice::Ordered),
            "native" => Ok(Choice::Native),
            "nccl" => Ok(Choice::Nccl),
            other => other.parse().map(Choice::Plan).map_err(|_| {
                Error::argument(
                    format!("unknown algorithm {other:?}"),
                    format!(
                        "the algorithms are {} (ordered: the same bits wherever the ranks run; native: the MPI library's own; nccl: between GPUs by NCCL){}",
                        ALGORITHMS.join(", "),
                        did_you_mean(other, ALGORITHMS)
                    ),
                )
            }),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => out.pad("auto"),
            Choice::Plan(algorithm) => algorithm.fmt(out),
            Choice::Ordered => out.pad("ordered"),
            Choice::Native => out.pad("native"),
            Choice::Nccl => out.pad("nccl"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_an_algorithm_is_read_and_every_algorithm_has_one() {
        for name in ALGORITHMS {
            assert_eq!(name.parse::<Choice>().unwrap().to_string(), name);
        }
        assert!(Algorithm::ALL.into_iter().all(|algorithm| ALGORITHMS.contains(&algorithm.name())));
        let error = "rign".parse::<Choice>().unwrap_err().to_string();
        assert!(error.contains("ordered, native") && error.ends_with("did you mean ring?"), "{error}");
    }
}
