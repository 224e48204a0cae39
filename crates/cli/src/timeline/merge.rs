//! Merges the ranks' files on one clock, which is rank 0's.

use serde_json::{Value, json};

use ringpull_base::timeline::trace::{About, Trace, TraceEvent};
use ringpull_base::{Error, Result};

/// One job's events on one clock, which begins with the earliest event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MergedTimeline {
    /// Every process's events, in the order of time; times in microseconds.
    pub events: Vec<TraceEvent>,
    /// The processes, workers first.
    pub processes: Vec<About>,
}

/// Merges the files of one job: shifts every event by its process's start time and by the offset of its clock
/// from rank 0's.
pub(crate) fn merge(traces: Vec<Trace>) -> Result<MergedTimeline> {
    if traces.is_empty() {
        return Err(Error::argument("no timeline was named", "name the files of all ranks"));
    }
    let mut processes: Vec<About> = traces.iter().map(|trace| trace.about.clone()).collect();
    processes.sort_by_key(About::number);
    if let Some(twice) = processes.windows(2).find(|pair| pair[0].number() == pair[1].number()) {
        return Err(Error::argument(
            format!("two of the files are of {}", twice[0].words()),
            "name each file of one run once",
        ));
    }
    let ranks = processes.iter().filter(|about| about.role == ringpull_base::config::Role::Worker);
    let mut sizes: Vec<usize> = ranks.map(|about| about.size).collect();
    sizes.dedup();
    if let [one, other, ..] = sizes[..] {
        return Err(Error::argument(
            format!("the files are of different runs: one of {one} and one of {other} ranks"),
            "name the files of one run, and write those of each into a folder of its own",
        ));
    }
    // Whole nanoseconds are used until the common zero is known, because the nanoseconds since 1970 do not
    // fit into an f64.
    let zero_of = |about: &About| i128::from(about.zero_unix_ns) - i128::from(about.ahead_ns);
    let first = traces.iter().map(|trace| zero_of(&trace.about)).min().unwrap_or_default();
    let mut events = Vec::with_capacity(traces.iter().map(|trace| trace.events.len()).sum());
    for trace in traces {
        let shift = (zero_of(&trace.about) - first) as f64 / 1e3;
        events.extend(trace.events.into_iter().map(|mut event| {
            if event.ph != "M" {
                event.ts += shift;
            }
            event
        }));
    }
    let start = events.iter().filter(|event| event.ph != "M").map(|event| event.ts).fold(f64::INFINITY, f64::min);
    for event in events.iter_mut().filter(|event| event.ph != "M") {
        event.ts -= start;
    }
    events.sort_by(|a, b| a.ts.total_cmp(&b.ts));
    Ok(MergedTimeline { events, processes })
}

impl MergedTimeline {
    /// The whole job as one file for a viewer.
    pub(crate) fn to_value(&self) -> Value {
        json!({
            "displayTimeUnit": "ms",
            "otherData": { "processes": self.processes },
            "traceEvents": self.events,
        })
    }

    /// Warnings about the merged times.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let others = |about: &&About| about.number() != 0;
        let guessed: Vec<String> = self
            .processes
            .iter()
            .filter(others)
            .filter(|about| about.round_trip_ns.is_none())
            .map(About::words)
            .collect();
        let hosts = self.processes.iter().any(|about| about.host != self.processes[0].host);
        if hosts && !guessed.is_empty() {
            doubts.push(format!(
                "the clocks of {} were not measured against rank 0's: their times are their hosts' own",
                guessed.join(", ")
            ));
        }
        let left_out = self.processes.iter().fold(0_u64, |all, about| all.saturating_add(about.left_out));
        if left_out > 0 {
            doubts
                .push(format!("{left_out} spans were left out, because a thread keeps a million: record fewer steps"));
        }
        let workers = self.processes.iter().filter(|about| about.role == ringpull_base::config::Role::Worker);
        let (count, size) = workers.fold((0, 0), |(count, size), about| (count + 1, size.max(about.size)));
        if count < size {
            doubts.push(format!(
                "{count} of {size} ranks are here: waiting for the missing ones counts as communication"
            ));
        }
        doubts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::account::tests::rank;

    fn trace(number: usize, zero_unix_ns: u64, ahead_ns: i64, ts: f64) -> Trace {
        let mut trace = rank(number, &[("push", "w", 0, 1)]);
        trace.events[0].ts = ts;
        trace.about = About { zero_unix_ns, ahead_ns, ..trace.about };
        trace
    }

    #[test]
    fn an_offset_of_clocks_is_removed() {
        const EPOCH: u64 = 1_700_000_000_000_000_000;
        // Rank 1's clock is 7 ms ahead, and its recorder began 3 ms later; both pushed at the same moment, 10
        // ms in.
        let merged =
            merge(vec![trace(1, EPOCH + 10_000_000, 7_000_000, 7_000.0), trace(0, EPOCH, 0, 10_000.0)]).unwrap();
        let times: Vec<f64> = merged.events.iter().map(|event| event.ts).collect();
        assert_eq!(times, [0.0, 0.0]);
        assert_eq!(merged.processes[0].rank, Some(0));
        assert!(merged.warnings().is_empty());
        assert_eq!(merged.to_value()["traceEvents"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn numbers_that_no_job_has_are_taken_as_the_largest() {
        let mut two = [trace(0, 0, 0, 0.0), trace(1, 0, 0, 0.0)];
        (two[1].about.role, two[1].about.rank) = (ringpull_base::config::Role::Server, Some(usize::MAX));
        two.iter_mut().for_each(|trace| trace.about.left_out = u64::MAX);
        let doubts = merge(two.into()).unwrap().warnings();
        assert!(doubts[0].starts_with("18446744073709551615 spans were left out"), "{doubts:?}");
    }

    #[test]
    fn the_same_rank_twice_is_an_error_and_a_missing_one_a_warning() {
        assert!(merge(vec![trace(1, 0, 0, 0.0), trace(1, 0, 0, 0.0)]).is_err());
        assert!(merge(Vec::new()).is_err());
        let doubts = merge(vec![trace(0, 0, 0, 0.0)]).unwrap().warnings();
        assert!(doubts[0].starts_with("1 of 2 ranks are here"), "{doubts:?}");
    }
}
