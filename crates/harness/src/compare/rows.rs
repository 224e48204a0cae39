//! The rows of a comparison, made from the measurements of its jobs.

use ringpull_base::Result;

use crate::compare::results::{JobSamples, Outcome, Row, Setup};
use crate::cost;
use crate::record::Record;
use crate::rounds::{Job, Measurement, RoundsOutcome, Work, merged};
use crate::variant::Variant;

/// One row for each of `variants`.
pub fn rows(found: &RoundsOutcome, variants: &[Variant], job: &Job, setup: &Setup) -> Vec<Row> {
    let row = |variant: &Variant| Row {
        variant: variant.to_string(),
        method: variant.words(),
        family: variant.family(),
        servers: variant.mode.servers(),
        machines: if setup.own_hosts { setup.workers + variant.mode.extra_hosts() } else { 1 },
        computed_host_bytes: (variant.compression.is_none() && setup.sparse.is_none())
            .then(|| cost::busiest_host_bytes(variant.mode, setup.workers, setup.bytes as f64)),
        outcome: outcome(found, *variant, job, setup),
    };
    variants.iter().map(row).collect()
}

fn outcome(found: &RoundsOutcome, variant: Variant, job: &Job, setup: &Setup) -> Outcome {
    if let Some((_, install)) = found.absent.iter().find(|(absent, _)| *absent == variant) {
        return Outcome::Absent { install: install.clone() };
    }
    let failure = found.failed.iter().find(|(failed, ..)| *failed == variant).map(|(.., error)| error.to_string());
    let done = found.of(variant, setup.workers, setup.bytes);
    match (done.is_empty(), failure) {
        (true, Some(error)) => Outcome::Failed { error },
        (true, None) if found.interrupted.is_some() => {
            Outcome::Failed { error: "interrupted before its first round ended".to_owned() }
        }
        (_, failure) => measured(variant, &done, failure, job, setup)
            .unwrap_or_else(|error| Outcome::Failed { error: error.to_string() }),
    }
}

/// The measurements of an earlier comparison's rounds, for the variants in `variants`.
pub fn measurements(rows: &[Row], variants: &[Variant]) -> Vec<Measurement> {
    let mut known = Vec::new();
    for (row, variant) in rows.iter().filter_map(|row| {
        let named = |variant: &&Variant| variant.to_string() == row.variant;
        Some((row, *variants.iter().find(named)?))
    }) {
        if let Outcome::Measured { record, rounds, .. } = &row.outcome {
            known.extend(rounds.iter().map(|of| Measurement {
                variant,
                round: of.round,
                place: of.place,
                record: Record { seconds: of.seconds.clone(), usage: of.usage, ..record.clone() },
                stolen: of.stolen,
            }));
        }
    }
    known
}

/// Makes the outcome of a variant that was measured. If `failure` is given, it ended the variant's rounds.
fn measured(
    variant: Variant,
    done: &[&Measurement],
    failure: Option<String>,
    job: &Job,
    setup: &Setup,
) -> Result<Outcome> {
    let record = merged(variant, done, setup.own_hosts, setup.links(), setup.uplink())?;
    let record = match &job.work {
        Work::Steps { train, .. } => record.with_train(train.compute_s, train.batch),
        Work::Buffers(_) | Work::Keys { .. } | Work::Rows { .. } => record,
    };
    let round = |Measurement { round, place, record, stolen, .. }: &Measurement| JobSamples {
        round: *round,
        place: *place,
        seconds: record.seconds.clone(),
        usage: record.usage,
        stolen: *stolen,
    };
    Ok(Outcome::Measured { record, rounds: done.iter().map(|done| round(done)).collect(), failure })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::results::stolen;
    use crate::rounds;
    use crate::rounds::fake::Fake;
    use crate::variant::Peer;

    #[test]
    fn a_row_has_the_result_and_the_costs_of_its_variant() {
        let link = "8kbit".parse().unwrap();
        let setup = Setup { own_hosts: true, workers: 4, link, bytes: 4000, ..Setup::default() };
        let job = Job { ranks: 4, work: Work::Buffers(vec![4000]), iters: 2, warmup: 1 };
        let modes = ["dist_sync_mpi", "dist_sync:1shared", "dist_sync:2"].map(|mode| mode.parse().unwrap());
        let variants = Variant::list(&modes, &[Peer::Horovod]);
        let found =
            rounds::run(&mut Fake::default(), &variants, &vec![vec![job.clone()]; 3], Vec::new(), &mut |_, _| ());
        let rows = rows(&found, &variants, &job, &setup);
        assert!(matches!(&rows[1].outcome, Outcome::Measured { rounds, failure: Some(error), .. }
            if rounds.len() == 1 && error.contains("rank 2 is lost")));
        let (had, known) = (found.of(variants[0], 4, 4000), measurements(&rows, &variants));
        let again: Vec<(usize, usize, &[f64])> = known
            .iter()
            .filter(|done| done.variant == variants[0])
            .map(|done| (done.round, done.place, &done.record.seconds[..]))
            .collect();
        assert_eq!(
            again,
            had.iter().map(|done| (done.round, done.place, &done.record.seconds[..])).collect::<Vec<_>>()
        );
        assert!(matches!(&rows[3].outcome, Outcome::Absent { install } if install.contains("--horovod")));
        assert_eq!(rows[0].record().unwrap().seconds.len(), 6);
        let step = Fake::SECONDS_A_BYTE * 4000.0;
        assert_eq!((rows[2].machines, rows[2].per_machine_s(4)), (6, Some(1.5 * step)));
        assert_eq!(stolen(&rows), Some(0.0625));
        assert_eq!(rows[0].host_bytes(true), Some((6100.0, true)));
        assert_eq!(rows[0].host_bytes(false), None);
        assert_eq!(rows[2].host_bytes(true), Some((8000.0, false)), "a dedicated server's interface is not a worker's");
    }
}
