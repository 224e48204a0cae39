//! The worker that comes late, and the steps to which it does: `RANK=SECONDS`, or `random:P`.
//!
//! The programs of peers draw the same (`peers/replay.py`), so that all methods meet the same workers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ringpull_base::{Error, Result};
use ringpull_workload::iterations::LateRank;
use ringpull_workload::sparse::mixed;
use serde::{Deserialize, Serialize};

use crate::text::format_seconds;

/// Workers that begin a step late.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum LateWorkers {
    /// One worker, by so many seconds in every step.
    Rank { rank: usize, seconds: f64 },
    /// Each worker with this probability in each step, by the time that a step computes.
    Random { part: f64 },
}

impl LateWorkers {
    /// The seconds by which `rank` is late in a step that computes for `compute_s`.
    pub fn seconds(self, rank: usize, step: usize, compute_s: f64) -> f64 {
        match self {
            LateWorkers::Rank { rank: late, seconds } if late == rank => seconds,
            LateWorkers::Random { part } if drawn(rank, step) < part => compute_s,
            _ => 0.0,
        }
    }

    /// Who is late and by how much, in steps that compute for `compute_s`.
    pub fn words(self, compute_s: f64) -> String {
        match self {
            LateWorkers::Rank { rank, seconds } => format!("worker {rank} late by {}", format_seconds(seconds)),
            LateWorkers::Random { part } => {
                format!("each worker late by {} in {:.0} % of steps", format_seconds(compute_s), 100.0 * part)
            }
        }
    }

    /// The one rank that is late; an error if each is at times.
    pub fn of_rank(self) -> Result<LateRank> {
        match self {
            LateWorkers::Rank { rank, seconds } => Ok(LateRank { rank, by: Duration::from_secs_f64(seconds) }),
            LateWorkers::Random { .. } => Err(Error::argument(
                format!("invalid --late {self}: only steps of training have a time by which a rank is late at random"),
                "give RANK=SECONDS, such as --late 3=0.5, or compare steps with --train",
            )),
        }
    }

    /// An error if the late worker is none of so many.
    pub fn check(self, workers: usize) -> Result<()> {
        match self {
            LateWorkers::Rank { rank, .. } if rank >= workers => Err(Error::argument(
                format!("invalid --late {self}: there are workers 0 to {}", workers - 1),
                "name one of them, or give --late random:0.1",
            )),
            _ => Ok(()),
        }
    }
}

/// A number from 0 to 1 that follows from the rank and the step.
fn drawn(rank: usize, step: usize) -> f64 {
    (mixed(((step as u64) << 20) ^ rank as u64) >> 11) as f64 / (1u64 << 53) as f64
}

impl FromStr for LateWorkers {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str, most: f64| text.parse().ok().filter(|number| (0.0..=most).contains(number));
        let found = match (text.strip_prefix("random:"), text.split_once('=')) {
            (Some(part), _) => number(part, 1.0).map(|part| LateWorkers::Random { part }),
            (None, Some((rank, seconds))) => rank
                .parse()
                .ok()
                .zip(number(seconds, 3600.0))
                .map(|(rank, seconds)| LateWorkers::Rank { rank, seconds }),
            (None, None) => None,
        };
        found.ok_or_else(|| {
            Error::argument(
                format!("invalid --late {text}: expected RANK=SECONDS or random:P"),
                "give --late 3=0.5 for a rank that is late by half a second in every step, or --late random:0.1",
            )
        })
    }
}

impl fmt::Display for LateWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LateWorkers::Rank { rank, seconds } => write!(f, "{rank}={seconds}"),
            LateWorkers::Random { part } => write!(f, "random:{part}"),
        }
    }
}

impl From<LateRank> for LateWorkers {
    fn from(LateRank { rank, by }: LateRank) -> Self {
        LateWorkers::Rank { rank, seconds: by.as_secs_f64() }
    }
}

impl From<LateWorkers> for String {
    fn from(late: LateWorkers) -> Self {
        late.to_string()
    }
}

impl TryFrom<String> for LateWorkers {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_is_late_in_every_step_or_each_in_some_of_them() {
        let late: LateWorkers = "3=0.5".parse().unwrap();
        assert_eq!([late.seconds(3, 0, 2.0), late.seconds(3, 9, 2.0), late.seconds(2, 0, 2.0)], [0.5, 0.5, 0.0]);
        let late: LateWorkers = "random:0.25".parse().unwrap();
        let all = || (0..100).flat_map(|step| (0..8).map(move |rank| late.seconds(rank, step, 2.0)));
        let count = all().filter(|seconds| *seconds == 2.0).count();
        assert!((150..250).contains(&count), "{count} of 800");
        assert_eq!(all().sum::<f64>(), 2.0 * count as f64);
    }

    #[test]
    fn what_was_written_is_read_and_other_words_are_errors() {
        for text in ["3=0.5", "0=0", "random:0.1"] {
            assert_eq!(text.parse::<LateWorkers>().unwrap().to_string(), text);
        }
        for text in ["", "3", "random:2", "random:x", "-1=1", "1=-1", "1=inf", "x=1"] {
            let error = text.parse::<LateWorkers>().unwrap_err().to_string();
            assert!(error.contains("RANK=SECONDS or random:P"), "{error}");
        }
    }

    #[test]
    fn a_late_worker_is_one_of_those_that_there_are() {
        let late: LateWorkers = "3=0.5".parse().unwrap();
        assert!(late.check(4).is_ok() && "random:1".parse::<LateWorkers>().unwrap().check(1).is_ok());
        let error = late.check(3).unwrap_err().to_string();
        assert!(error.contains("invalid --late 3=0.5: there are workers 0 to 2"), "{error}");
        assert_eq!(late.of_rank(), Ok(LateRank { rank: 3, by: Duration::from_millis(500) }));
        let error = "random:1".parse::<LateWorkers>().unwrap().of_rank().unwrap_err().to_string();
        assert!(error.contains("invalid --late random:1") && error.contains("--train"), "{error}");
    }

    /// `peers/replay.py` has the same two numbers for these.
    #[test]
    fn draws_are_those_of_the_peers() {
        assert_eq!(format!("{:.6} {:.6}", drawn(0, 0), drawn(3, 5)), "0.883311 0.204306");
        assert!(include_str!("../peers/replay.py").contains("drawn(0, 0) is 0.883311, drawn(3, 5) 0.204306"));
    }
}
