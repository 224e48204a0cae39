//! The ways to allreduce, and their names: `RINGPULL_ALGORITHM`, `--algorithm`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::named::named;
use crate::{Error, did_you_mean};

named! {
    /// The algorithms that are plans of ringpull. `ringpull-plan` has a file for each.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Algorithm {
        /// Reduce-scatter and allgather along a ring.
        Ring = "ring",
        /// Every rank to every rank, twice.
        Direct = "direct",
        /// Reduce-scatter and allgather on a circulant graph, in rounds that halve and double.
        Circulant = "circulant",
        /// Recursive doubling of the whole buffer.
        Doubling = "doubling",
        /// Everything to rank 0 and back.
        Star = "star",
        /// A binomial tree up to rank 0 and down again.
        Tree = "tree",
    }
}

/// The algorithm of an allreduce.
///
/// ```
/// # use ringpull_base as ringpull;
/// use ringpull::{Algorithm, AlgorithmChoice};
///
/// assert_eq!("ring".parse(), Ok(AlgorithmChoice::Plan(Algorithm::Ring)));
/// # Ok::<(), ringpull::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AlgorithmChoice {
    /// By the plan that suits the size and the number of ranks.
    Auto,
    /// By this plan.
    Plan(Algorithm),
    /// Every element in the order of the ranks: the same bits wherever the ranks run.
    Ordered,
    /// By the library under the transport: `MPI_Allreduce`.
    Native,
    /// Memory of devices by the devices themselves, on GPUs by NCCL. Host memory as with `auto`.
    Nccl,
}

impl AlgorithmChoice {
    /// Every name, in the order of the documentation.
    pub fn names() -> Vec<&'static str> {
        let others = vec!["ordered", "native", "nccl"];
        [vec!["auto"], Algorithm::ALL.map(Algorithm::name).to_vec(), others].concat()
    }

    /// The other name of one of [`names`](Self::names), if it has one: `circulant` is the form of halving and
    /// doubling that takes any number of ranks.
    pub fn alias(name: &str) -> Option<&'static str> {
        (name == Algorithm::Circulant.name()).then_some("halving")
    }

    /// Returns the choice of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(AlgorithmChoice::Auto),
            "ordered" => Some(AlgorithmChoice::Ordered),
            "native" => Some(AlgorithmChoice::Native),
            "nccl" => Some(AlgorithmChoice::Nccl),
            "halving" => Some(AlgorithmChoice::Plan(Algorithm::Circulant)),
            name => Algorithm::of_name(name).map(AlgorithmChoice::Plan),
        }
    }

    /// Returns true if sums of host memory take the algorithm that suits the cluster.
    pub fn is_auto(self) -> bool {
        matches!(self, AlgorithmChoice::Auto | AlgorithmChoice::Nccl)
    }
}

impl From<Algorithm> for AlgorithmChoice {
    fn from(algorithm: Algorithm) -> Self {
        AlgorithmChoice::Plan(algorithm)
    }
}

impl fmt::Display for AlgorithmChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            AlgorithmChoice::Auto => "auto",
            AlgorithmChoice::Plan(algorithm) => algorithm.name(),
            AlgorithmChoice::Ordered => "ordered",
            AlgorithmChoice::Native => "native",
            AlgorithmChoice::Nccl => "nccl",
        })
    }
}

impl FromStr for AlgorithmChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let names = AlgorithmChoice::names();
        AlgorithmChoice::of_name(name).ok_or_else(|| {
            Error::argument(
                format!("unknown algorithm {name:?}"),
                format!(
                    "the algorithms are {} (ordered: the same bits wherever the ranks run; native: the MPI library's own; nccl: between GPUs by NCCL){}",
                    names.join(", "),
                    did_you_mean(name, names)
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_and_printed_again() {
        for name in AlgorithmChoice::names() {
            let choice: AlgorithmChoice = name.parse().unwrap();
            assert_eq!(choice.to_string(), name);
            assert!(AlgorithmChoice::alias(name).is_none_or(|alias| alias.parse() == Ok(choice)), "{name}");
        }
    }

    #[test]
    fn the_book_has_every_name() {
        let section = |page: &str, heading: &str| {
            let page = format!("{}/../../docs/reference/{page}.md", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(page).unwrap();
            text.split_once(heading).unwrap().1.split("\n## ").next().unwrap().to_owned()
        };
        let (ways, row) = (section("kinds", "## Ways to allreduce"), section("variables", "## RINGPULL_ALGORITHM"));
        for name in AlgorithmChoice::names() {
            let quoted = format!("`{name}`");
            assert!(row.contains(&quoted) && ways.contains(&quoted), "{name} in {row} and in {ways}");
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_names() {
        for given in ["rign", "Ring", "", "plan", "late:1"] {
            let error = given.parse::<AlgorithmChoice>().unwrap_err().to_string();
            assert!(error.contains(&format!("{given:?}")) && error.contains("auto, ring, direct"), "{error}");
        }
        let error = "rign".parse::<AlgorithmChoice>().unwrap_err().to_string();
        assert!(error.contains("ordered, native") && error.ends_with("did you mean ring?"), "{error}");
    }
}
