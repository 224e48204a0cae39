//! Draws faults from a seed: kind, process and moment.

use std::time::Duration;

use ringpull_workload::sparse::mixed;

use super::fault::{ExpectedEnd, Fault, FaultKind, Moment, PlantedFile};
use super::shape::JobShape;

/// Numbers that look random and are determined by a seed.
struct RandomFaults(u64);

impl RandomFaults {
    fn below(&mut self, count: usize) -> usize {
        self.0 = mixed(self.0);
        (self.0 >> 33) as usize % count
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// Draws faults, each with the required exit codes. A process of the job is lost after `silence` without a
/// heartbeat. `may_mount` is true if folders can be full or forbidden.
pub fn draw(count: usize, seed: u64, shape: &JobShape, silence: Duration, may_mount: bool) -> Vec<Fault> {
    let mut random = RandomFaults(seed);
    (0..count).map(|_| one(&mut random, shape, silence, may_mount)).collect()
}

/// Draws faults for one job, which must go on after each fault.
pub fn draw_together(count: usize, seed: u64, shape: &JobShape, silence: Duration) -> Vec<Fault> {
    let mut random = RandomFaults(seed);
    let names: &[&str] = if shape.hosts > 1 { &["stop", "cut", "block"] } else { &["stop"] };
    let mut one = || {
        let (who, host) = (random.of(&shape.members()), 1 + random.below(shape.hosts.max(1)));
        let time = silence * (1 + random.below(5) as u32) / 10;
        let what = match random.of(names) {
            "cut" => FaultKind::Cut(host, Some(time)),
            "block" => FaultKind::Block(host, Some(time)),
            _ => FaultKind::Stop(who, time),
        };
        let at = Moment::After(silence * (1 + random.below(8) as u32) / 4);
        Fault { what, at, expect: Some(ExpectedEnd::GoesOn) }
    };
    (0..count).map(|_| one()).collect()
}

fn one(random: &mut RandomFaults, shape: &JobShape, silence: Duration, may_mount: bool) -> Fault {
    let who = random.of(&shape.members());
    let (short, long) = (silence * 2 / 5, silence * 5 / 2);
    let time = random.of(&[short, short, long]);
    let mut names = vec!["kill", "kill", "fail", "delay", "stop", "stop", "terminate", "limit", "plant"];
    names.extend(if may_mount { &["fill", "forbid"][..] } else { &[] });
    names.extend(if shape.hosts > 1 { &["cut", "block", "reset"][..] } else { &[] });
    let host = 1 + random.below(shape.hosts.max(1));
    let what = match random.of(&names) {
        "kill" => FaultKind::Kill(who),
        "fail" => FaultKind::Fail(who),
        "delay" => FaultKind::Delay(who, time),
        "stop" => FaultKind::Stop(who, time),
        "terminate" => FaultKind::Terminate(who, long),
        "limit" => FaultKind::Limit(who, short),
        "fill" => FaultKind::Fill("TMPDIR".into(), short),
        "forbid" => FaultKind::Forbid("TMPDIR".into()),
        "cut" => FaultKind::Cut(host, Some(short)),
        "block" => FaultKind::Block(host, Some(short)),
        "reset" => FaultKind::Reset(host),
        _ => {
            let sockets = format!("ringpull-{}", rustix::process::getuid().as_raw());
            let names =
                if shape.has_snapshots() { vec![sockets, "ringpull-elastic-x".to_owned()] } else { vec![sockets] };
            let kind = random.of(&[PlantedFile::Link, PlantedFile::File, PlantedFile::Folder]);
            FaultKind::Plant(format!("TMPDIR/{}", random.of(&names)).into(), kind)
        }
    };
    let moments =
        [Moment::After(Duration::ZERO), Moment::After(Duration::from_millis(200)), Moment::Usual, Moment::Usual];
    let at = if what.is_from_the_start() { Moment::Usual } else { random.of(&moments) };
    let mut codes = shape.codes(&what, time > silence);
    if at != Moment::Usual && matches!(what, FaultKind::Limit(..)) {
        // An interpreter that lacks memory before its program begins may end with any code.
        codes = None;
    } else if at != Moment::Usual {
        // If the process has no store yet, the others wait for it, so it is only late.
        codes.iter_mut().for_each(|codes| codes.extend(shape.codes(&what, false).into_iter().flatten()));
    }
    Fault { what, at, expect: Some(ExpectedEnd::Codes(codes)) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_draws_the_same_faults_each_time_and_all_kinds_of_them_come() {
        let shape = JobShape { workers: 3, servers: 2, hosts: 2, ..JobShape::default() };
        let of = |seed, may_mount| draw(300, seed, &shape, Duration::from_secs(5), may_mount);
        assert_eq!(of(7, true), of(7, true));
        assert_ne!(of(7, true), of(8, true));
        let names = |faults: &[Fault]| faults.iter().map(|fault| fault.what.name()).collect::<BTreeSet<_>>();
        assert_eq!(names(&of(7, true)).len(), 12, "all but slow");
        assert!(!names(&of(7, false)).contains("fill"));
        let members: BTreeSet<String> =
            of(7, true).iter().filter_map(|fault| fault.what.member()).map(|who| who.to_string()).collect();
        assert_eq!(members.len(), 6, "{members:?}");
        // Every fault is marked as random, also if any exit code is allowed.
        let are_known = |codes: &Option<_>| matches!(codes, Some(ExpectedEnd::Codes(_)));
        assert!(of(7, true).iter().all(|fault| are_known(&fault.expect)));
    }
}
