//! Other uses of a job's ranks when a rank is lost: row-sparse keys, updaters, communicators and process
//! sets, sharded optimizers and metrics. Also the uses that such a job refuses.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringpull::{CallOptions, Communicator, Compression, DType, Error, KvStore, Optimizer, Reduction, Result};
use ringpull::{RowSparse, Tensor};
use ringpull_base::config::{self, Config};
use ringpull_processes::free_port;

use crate::job::{EndedJob, Hosts, open_mpi, run};
use crate::rank::{Plan, STEP, element, give, say_sum};

/// Runs a rank in a job of that kind.
pub(crate) fn of_kind(kind: &str, plan: &Plan) -> Result<()> {
    match kind {
        "rows" => rows(plan),
        "compressed" => compressed(plan),
        "updater" => updater(plan),
        "sharded" => sharded(plan),
        "communicator" => communicator(plan),
        "refused" => refused(),
        "unequal" => unequal(),
        "metrics" => metrics(plan),
        other => Err(Error::bug(format!("no kind {other}"))),
    }
}

fn end(store: &KvStore) -> Result<()> {
    store.barrier()?;
    println!("ended {} {}", store.num_workers(), store.generation());
    Ok(())
}

/// Returns the value of rank `own` in a step.
fn value(own: usize, step: usize) -> f64 {
    f64::from(1u32 << own) + STEP * step as f64
}

fn rows(plan: &Plan) -> Result<()> {
    let store = ringpull::create("dist_sync_mpi")?;
    let own = store.rank();
    store.init("rows", &Tensor::zeros(DType::F32, &[9, 3]))?;
    for step in 0..plan.number("steps", 12) {
        plan.lose(own, &step.to_string());
        // All ranks have one row in common, and each has one row of its own.
        let given = Tensor::zeros(DType::F32, &[2, 3]);
        give(&given, value(own, step));
        store.push_rows("rows", &[RowSparse::new(&[9, 3], &[0, 1 + own as i64], given)?], 0)?;
        say_sum("rows", step, element(store.pull_rows("rows", &[0], 0)?.rows())?)?;
    }
    end(&store)
}

/// Each gradient is three quarters of the threshold, so the sum differs if a residual is lost or added twice.
fn compressed(plan: &Plan) -> Result<()> {
    let store = ringpull::create("dist_sync_mpi")?;
    let (own, size) = (store.rank(), store.num_workers());
    store.set_gradient_compression(&"2bit:1".parse::<Compression>()?)?;
    let gradient = Tensor::zeros(DType::F32, &[plan.number("len", 300_000)]);
    store.init("compressed", &gradient)?;
    for step in 0..plan.number("steps", 12) {
        plan.lose(own, &step.to_string());
        give(&gradient, 0.75);
        store.push_pull("compressed", std::slice::from_ref(&gradient), std::slice::from_ref(&gradient), 0)?;
        let (sum, sent) = (element(&gradient)?, (3 * (step + 1) / 4 - 3 * step / 4) as f64);
        let all = size as f64 * sent;
        if sum != all && sum != all - sent {
            return Err(Error::bug(format!("step {step}: {sum} is sent by neither {size} ranks nor one less")));
        }
        if sent > 0.0 {
            // The rank that is lost is rank 2.
            let counted: Vec<usize> = (0..size).filter(|rank| *rank != 2 || sum == all).collect();
            say_sum("compressed", step, counted.into_iter().map(|rank| value(rank, step)).sum())?;
        }
    }
    end(&store)
}

fn updater(plan: &Plan) -> Result<()> {
    let store = ringpull::create("dist_sync_mpi")?;
    let own = store.rank();
    let fails = plan.when("fails", own).map(|(step, after)| (step.parse::<u64>().unwrap(), after.unwrap_or(0)));
    let updates = AtomicU64::new(0);
    store.set_updater(Box::new(move |_, gradient, stored| {
        let update = updates.fetch_add(1, Ordering::Relaxed);
        if let Some((_, after)) = fails.filter(|(step, _)| *step == update) {
            std::thread::sleep(Duration::from_micros(after));
            return Err(Error::argument("this updater fails", "let it"));
        }
        let (gradient, mut stored) = (gradient.read()?, stored.write());
        let both = stored.as_mut_slice::<f32>().iter_mut().zip(gradient.as_slice::<f32>());
        both.for_each(|(stored, gradient)| *stored += gradient);
        Ok(())
    }))?;
    let (gradient, out) = (Tensor::zeros(DType::F32, &[100_000]), Tensor::zeros(DType::F32, &[100_000]));
    store.init("w", &gradient)?;
    let mut before = 0.0;
    for step in 0..plan.number("steps", 12) {
        plan.lose(own, &step.to_string());
        give(&gradient, value(own, step));
        store.push_pull("w", std::slice::from_ref(&gradient), std::slice::from_ref(&out), 0)?;
        let now = element(&out)?;
        say_sum("w", step, now - before)?;
        before = now;
    }
    end(&store)
}

fn sharded(plan: &Plan) -> Result<()> {
    let store = ringpull::create("dist_sync_mpi")?;
    store.set_sharded_optimizer(&"sgd,lr=1,momentum=0.5".parse::<Optimizer>()?)?;
    let gradient = Tensor::zeros(DType::F32, &[1000]);
    store.init("w", &gradient)?;
    for step in 0..plan.number("steps", 12) {
        plan.lose(store.rank(), &step.to_string());
        store.push_pull("w", std::slice::from_ref(&gradient), std::slice::from_ref(&gradient), 0)?;
    }
    end(&store)
}

/// A rank is killed before it has called its part of a step, so that no rank has completed the step.
fn communicator(plan: &Plan) -> Result<()> {
    let all = ringpull::communicator()?;
    let own = all.rank();
    let pair = all.split(&[0, 1])?;
    let (sums, of_pair) = (sum_of(&all, own, 0)?, pair.as_ref().map(|pair| sum_of(pair, own, 0)).transpose()?);
    say_sum("all", 0, sums)?;
    of_pair.map_or(Ok(()), |sum| say_sum("pair", 0, sum))?;
    plan.lose(own, "1");
    if plan.when("kill", own).is_some() {
        // It is killed here, when the others have their sums.
        std::thread::sleep(Duration::from_secs(10));
    }
    let fault = sum_of(&all, own, 1).expect_err("a rank that is killed gives nothing");
    println!("fault {}", fault.to_string().replace('\n', " "));
    // Every rank comes here, and the ranks of the set need not have lost a member.
    let left = ringpull::communicator()?;
    for old in std::iter::once(&all).chain(&pair) {
        let fault = sum_of(old, own, 1).expect_err("its ranks are those before the loss");
        println!("old {}", fault.to_string().replace('\n', " "));
    }
    say_sum("all", 1, sum_of(&left, own, 1)?)?;
    println!("ended {} {}", left.size(), left.rank());
    left.barrier()
}

fn sum_of(ranks: &Communicator, own: usize, step: usize) -> Result<f64> {
    let given = Tensor::zeros(DType::F32, &[1000]);
    give(&given, value(own, step));
    element(&ranks.allreduce(&given, Reduction::Sum, &CallOptions::default())?.wait()?)
}

fn refused() -> Result<()> {
    let store = ringpull::create("dist_sync_mpi")?;
    println!("join {}", store.join().expect_err("it is refused").to_string().replace('\n', " "));
    let other = ringpull::create_with("dist_sync_mpi", &Config { elastic: false, ..Config::from_env()? });
    println!("other {}", other.err().expect("it is refused").to_string().replace('\n', " "));
    end(&store)
}

/// Only every second rank is set to go on without lost ranks.
fn unequal() -> Result<()> {
    let is_odd = config::launcher_rank().is_some_and(|rank| rank % 2 == 1);
    let store = ringpull::create_with("dist_sync_mpi", &Config { elastic: is_odd, ..Config::from_env()? })?;
    end(&store)
}

/// The current rank 0, the first or its successor, prints its metrics.
fn metrics(plan: &Plan) -> Result<()> {
    let store = ringpull::create("dist_sync_mpi")?;
    let address = config::metrics()?.expect("the test sets it");
    let tensor = Arc::new(Tensor::zeros(DType::F32, &[1000]));
    store.init("w", &tensor)?;
    for step in 0..plan.number("steps", 12) {
        plan.lose(store.rank(), &format!("{step} of {}", store.num_workers()));
        give(&tensor, 1.0);
        store.push_pull("w", std::slice::from_ref(&tensor), std::slice::from_ref(&tensor), 0)?;
        element(&tensor)?;
        if store.rank() == 0 && step + 1 == plan.number("steps", 12) {
            let mut answer = String::new();
            let mut connection = TcpStream::connect(address).expect("rank 0 listens");
            connection.set_read_timeout(Some(Duration::from_secs(5))).expect("a limit");
            connection.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it reads");
            connection.read_to_string(&mut answer).expect("it answers");
            answer.lines().filter(|line| line.starts_with("ringpull_up")).for_each(|line| println!("metric {line}"));
        }
    }
    end(&store)
}

/// Runs the job. Checks that each of the expected ranks wrote one line that begins with `first` and contains
/// `words`.
fn ended_with(ranks: usize, plan: &str, env: &[(&str, &str)], expected: &[(usize, &str, &str)]) -> Option<EndedJob> {
    let ended = run(&open_mpi()?, Hosts::Here, ranks, plan, env);
    for (rank, first, words) in expected {
        let said: Vec<String> = ended.lines(*rank, first).iter().map(|words| words.join(" ")).collect();
        assert!(said.iter().any(|said| said.contains(words)), "{plan}: rank {rank}: {said:?}\n{}", ended.processes);
    }
    Some(ended)
}

#[test]
fn rows_of_a_lost_rank_count_on_all_or_on_none() {
    let Some(ended) = ended_with(4, "kind=rows;kill=2@4+300", &[], &[(0, "ended", "3 1"), (3, "ended", "3 1")]) else {
        return;
    };
    ended.check_sums(&[2]);
}

#[test]
fn compressed_gradients_of_a_lost_rank_count_on_all_or_on_none_and_residuals_once() {
    for (when, env) in [("5", &[][..]), ("6+300", &[]), ("6+300", &[("RINGPULL_SHARED_MEMORY", "0")])] {
        let plan = format!("kind=compressed;kill=2@{when}");
        let Some(ended) = ended_with(4, &plan, env, &[(0, "ended", "3 1"), (3, "ended", "3 1")]) else { return };
        ended.check_sums(&[2]);
    }
}

#[test]
fn updaters_see_every_sum_once_after_a_loss() {
    let expected = [(1, "ended", "3 1"), (3, "ended", "3 1")];
    let Some(ended) = ended_with(4, "kind=updater;kill=0@4+300", &[], &expected) else { return };
    ended.check_sums(&[0]);
}

/// The updater of rank 1 may get a sum from others that have it.
#[test]
fn an_updater_that_fails_while_a_rank_is_lost_ends_the_job_with_its_error() {
    // The loss is known on rank 1 before its updater fails.
    const LATER: &str = "4+100000";
    for (lost, when, fails) in
        [(2, "4+0", "4"), (2, "4+200", "4"), (2, "4+1000", "4"), (2, "5", LATER), (0, "5", LATER)]
    {
        let plan = format!("kind=updater;kill={lost}@{when};fails=1@{fails}");
        let left = (0..4).filter(|rank| *rank != lost);
        let all: Vec<_> = left.map(|rank| (rank, "failed", "this updater fails")).collect();
        ended_with(4, &plan, &[], &all);
    }
}

#[test]
fn a_loss_with_a_sharded_optimizer_is_one_error_on_every_rank() {
    let all = [0, 2].map(|rank| (rank, "failed", "sharded optimizer's states is lost"));
    ended_with(3, "kind=sharded;kill=1@4", &[], &all);
}

#[test]
fn communicators_and_process_sets_of_before_a_loss_are_errors_and_new_ones_have_who_is_left() {
    let mut expected = vec![(0, "ended", "2 0"), (1, "ended", "2 1")];
    expected.extend([0, 1].into_iter().flat_map(|rank| [(rank, "fault", "lost"), (rank, "old", "make another one")]));
    let Some(ended) = ended_with(3, "kind=communicator;kill=2@1+100000", &[], &expected) else { return };
    assert_eq!(ended.lines(0, "sum").iter().map(|words| words[2].clone()).collect::<Vec<_>>(), ["7", "3", "3"]);
    assert!([0, 1].iter().all(|rank| ended.lines(*rank, "old").len() == 2), "{}", ended.processes);
}

#[test]
fn what_cannot_go_on_after_a_loss_is_refused_before_one() {
    let all = [(0, "join", "RINGPULL_ELASTIC"), (1, "other", "or none does"), (1, "ended", "2 0")];
    ended_with(2, "kind=refused", &[], &all);
}

#[test]
fn ranks_that_are_to_go_on_and_ranks_that_are_not_are_an_error_on_every_rank() {
    let Some(ended) = ended_with(3, "kind=unequal", &[], &[]) else { return };
    // The first rank that ends may end the others.
    let failed: Vec<String> =
        (0..3).flat_map(|rank| ended.lines(rank, "failed")).map(|words| words.join(" ")).collect();
    let is_right = |failed: &String| failed.contains("are to go on without lost ranks");
    assert!(!failed.is_empty() && failed.iter().all(is_right), "{}", ended.processes);
    assert!((0..3).all(|rank| ended.lines(rank, "ended").is_empty()), "{}", ended.processes);
}

#[test]
fn the_next_rank_0_has_the_metrics() {
    let address = format!("127.0.0.1:{}", free_port());
    let expected = [(1, "metric", r#"ringpull_up{rank="1"} 1"#), (1, "ended", "2 1")];
    let env = [("RINGPULL_METRICS", &address[..])];
    ended_with(3, "kind=metrics;kill=0@4 of 3", &env, &expected);
}
