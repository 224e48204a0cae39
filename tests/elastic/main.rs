//! Jobs that go on without ranks that are lost, under the `mpirun` of an Open MPI with fault tolerance:
//! checks the contributions in every sum on every surviving rank. Skipped where there is none: `scripts/setup
//! --openmpi5` fetches it.
//!
//! `rank`: the program of a rank; `job`: starting and checking a job; `uses`: other uses of ranks; `trials`:
//! many losses, and the times that they take.

mod job;
mod rank;
mod trials;
mod uses;

use job::{EndedJob, Hosts, case, open_mpi, run};

const BY_MESSAGES: &[(&str, &str)] = &[("RINGPULL_SHARED_MEMORY", "0")];

#[test]
fn a_rank_that_dies_between_steps_is_left_out_of_later_sums() {
    case(3, "kill=2@2", &[2], 8, &[]);
    case(3, "kill=1@2", &[1], 8, BY_MESSAGES);
}

#[test]
fn a_rank_that_dies_in_a_sum_counts_in_it_on_all_ranks_or_on_none() {
    case(4, "kill=2@3+300;len=4000000", &[2], 8, &[]);
    case(4, "kill=2@3+300;len=4000000", &[2], 8, BY_MESSAGES);
}

#[test]
fn rank_0_may_die() {
    case(3, "kill=0@3", &[0], 8, &[]);
    case(3, "kill=0@3+200", &[0], 8, BY_MESSAGES);
}

#[test]
fn two_ranks_may_die_one_after_the_other() {
    case(4, "kill=0@3,2@7+100", &[0, 2], 12, &[]);
    case(4, "kill=3@3,1@7+100", &[3, 1], 12, BY_MESSAGES);
}

#[test]
fn two_ranks_may_die_at_once() {
    case(4, "kill=0@3,2@3", &[0, 2], 8, &[]);
    case(4, "kill=1@3+100,3@3+150", &[1, 3], 8, BY_MESSAGES);
}

#[test]
fn all_but_two_ranks_may_die_one_after_the_other() {
    case(5, "kill=4@3,0@6+100,2@9", &[4, 0, 2], 14, &[]);
}

#[test]
fn a_rank_may_die_while_steps_are_frozen() {
    case(3, "kill=1@25", &[1], 40, &[]);
    case(3, "kill=1@25+100", &[1], 40, BY_MESSAGES);
    // Replicas are compared before and after the loss, also those of the second store's weights.
    case(3, "kill=1@25+100", &[1], 40, &[("RINGPULL_CHECK_REPLICAS", "1")]);
}

#[test]
fn a_program_that_fails_is_no_loss() {
    let Some(folder) = open_mpi() else { return };
    for (plan, why) in [("error=2@3", "no such key"), ("panic=2@3", "it panicked")] {
        let ended = run(&folder, Hosts::Here, 3, &format!("steps=8;{plan}"), &[]);
        for rank in 0..2 {
            let failed: Vec<String> = ended.lines(rank, "failed").iter().map(|words| words.join(" ")).collect();
            assert!(failed.iter().any(|failed| failed.contains(why)), "{plan}: {failed:?}\n{}", ended.processes);
        }
    }
}

#[test]
fn a_rank_that_leaves_stays_for_its_last_sum() {
    let Some(folder) = open_mpi() else { return };
    let ended = run(&folder, Hosts::Here, 4, "steps=4;len=4000000;leave=1;kill=2@leave+1000", &[]);
    let last = ended.lines(0, "last");
    assert!(last == [["15"]] || last == [["11"]], "{last:?}\n{}", ended.processes);
}

#[test]
fn a_rank_may_die_before_it_has_called_init() {
    case(3, "kill=1@init", &[1], 6, &[]);
    case(3, "kill=0@init+100", &[0], 6, BY_MESSAGES);
}

/// Many jobs at once, so that in some of them a rank still creates its store when another that has done so
/// dies.
#[test]
fn a_rank_may_die_while_others_create() {
    std::thread::scope(|scope| {
        let some_jobs = |stopped: usize, env| {
            let plan = format!("kill=1@init;stops={stopped}");
            (0..3).filter_map(|_| case(3, &plan, &[1], 6, env)).filter(EndedJob::began_apart).count()
        };
        let kinds = [(0, &[][..]), (0, BY_MESSAGES), (2, &[]), (2, BY_MESSAGES)].repeat(2);
        let all: Vec<_> =
            kinds.into_iter().map(|(stopped, env)| scope.spawn(move || some_jobs(stopped, env))).collect();
        let apart: usize = all.into_iter().map(|jobs| jobs.join().unwrap()).sum();
        println!("in {apart} of 24 jobs some ranks began with the lost one, and others without it");
    });
}
