//! Tests of elastic jobs with servers (`RINGPULL_ELASTIC`), which go on without lost workers and admit new
//! workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ringpull::KvStore;
use ringpull_base::{DType, Result, RowSparse, Tensor};
use ringpull_kernels::optim::Optimizer;
use rustix::process::Signal;

use crate::cases::full;
use crate::job::{End, Job, LIMIT};

/// The steps of a job.
const STEPS: usize = 60;
/// The keys and their lengths. The long key has segments on all servers.
const KEYS: [(&str, usize); 2] = [("long", 300_000), ("short", 100)];

/// The shape of a key that workers push and pull by rows. The rows need several messages to each server.
const TABLE: [usize; 2] = [4000, 64];
const ROWS: std::ops::Range<i64> = 1000..3000;

/// Returns this worker's gradient, a power of two that no other worker has.
fn bit() -> usize {
    1 << std::env::var("DMLC_RANK").unwrap().parse::<usize>().unwrap()
}

/// Returns the value that all elements have.
fn only(tensor: &Tensor) -> Result<f32> {
    let values = tensor.to_vec::<f32>()?;
    assert!(values.iter().all(|value| *value == values[0]), "a sum differs within a key: {}", values[0]);
    Ok(values[0])
}

fn follow(store: &KvStore) {
    store.on_change(Box::new(|change| {
        let (generation, rank, workers) = (change.generation, change.rank, change.num_workers);
        println!("change {generation}: rank {rank} of {workers}, lost {:?}", change.lost);
        Ok(())
    }));
}

/// Every step sums the bits of the present workers. The step and the number of workers are pushed as a key,
/// so that a worker that joins later learns the current step.
pub(crate) fn sums(store: &KvStore) -> Result<()> {
    follow(store);
    let workers = |tensor: &Tensor| Ok::<f32, ringpull_base::Error>(tensor.to_vec::<f32>()?[1]);
    let outs = KEYS.map(|(_, len)| full(DType::F32, len, 0));
    let clock = Tensor::from_slice(&[2], &[0f32, 1.0]);
    for ((key, len), _) in KEYS.iter().zip(&outs) {
        store.init(*key, &full(DType::F32, *len, 0))?;
    }
    store.init_row_sparse("rows", &Tensor::zeros(DType::F32, &TABLE))?;
    store.init("clock", &clock)?;
    let ids: Vec<i64> = ROWS.collect();
    store.barrier()?;
    store.pull("clock", std::slice::from_ref(&clock), 0)?;
    let mut step = (clock.to_vec::<f32>()?[0] / workers(&clock)?) as usize;
    println!("starts after step {step} in generation {}", store.generation());
    while step < STEPS {
        step += 1;
        for ((key, len), out) in KEYS.iter().zip(&outs) {
            store.push_pull(*key, &[full(DType::F32, *len, bit())], std::slice::from_ref(out), 0)?;
        }
        let rows = Tensor::full(DType::F32, &[ids.len(), TABLE[1]], bit() as f64);
        store.push_rows("rows", &[RowSparse::new(&TABLE, &ids, rows)?], 0)?;
        println!("step {step} rows {}", only(store.pull_rows("rows", &ids, 0)?.rows())?);
        store.push("clock", &[Tensor::from_slice(&[2], &[step as f32, 1.0])], 0)?;
        for ((key, _), out) in KEYS.iter().zip(&outs) {
            println!("step {step} {key} {}", only(out)?);
        }
        store.pull("clock", std::slice::from_ref(&clock), 0)?;
        assert_eq!(clock.to_vec::<f32>()?[0], step as f32 * workers(&clock)?);
        store.barrier()?;
    }
    println!("ends in generation {} as rank {} of {}", store.generation(), store.rank(), store.num_workers());
    Ok(())
}

/// Each worker pushes ones as fast as it can, without a barrier. Servers apply each push separately.
pub(crate) fn descents(store: &KvStore) -> Result<()> {
    follow(store);
    for (key, len) in KEYS {
        store.init(key, &full(DType::F32, len, 0))?;
    }
    store.set_optimizer(&Optimizer::sgd(1.0))?;
    let mut last = 0.0;
    let begun = Instant::now();
    for step in 1.. {
        for (key, len) in KEYS {
            let out = full(DType::F32, len, 0);
            store.push_pull(key, &[full(DType::F32, len, 1)], std::slice::from_ref(&out), 0)?;
            last = out.to_vec::<f32>()?[0];
            assert!(-last >= step as f32, "every push of its own is in {last} after {step}");
            // This worker's pull waits for this worker's pushes, however many pushes other workers have made.
            let pulled = full(DType::F32, len, 0);
            store.pull(key, std::slice::from_ref(&pulled), 0)?;
            assert!(pulled.to_vec::<f32>()?[0] <= last, "values only fall");
        }
        println!("step {step}");
        // Some workers join later, and all workers end at about the same time.
        if begun.elapsed() > Duration::from_secs(3) || -last > 3000.0 {
            break;
        }
    }
    println!("ends in generation {} as rank {} of {}", store.generation(), store.rank(), store.num_workers());
    Ok(())
}

/// Runs a job whose workers run `case`. Each worker of `lost` is killed some time after worker 0 or 1 has
/// reached its step.
fn run(case: &str, workers: usize, lost: &[(usize, usize)], later: &[usize]) -> BTreeMap<String, End> {
    let mut job = Job::start_elastic(case, workers, 2);
    let watched = (0..workers).find(|rank| lost.iter().all(|(other, _)| other != rank)).unwrap();
    for (rank, step) in lost {
        job.wait_for(&format!("worker {watched}"), &format!("step {step}"));
        let random = u64::from(ringpull_base::secret::random::<1>().unwrap()[0]);
        std::thread::park_timeout(Duration::from_micros(random * 60));
        job.kill(&format!("worker {rank}"));
    }
    for rank in later {
        job.add(case, "worker", Some(*rank), workers, 2);
    }
    let ends = job.ends(LIMIT);
    for End { name, code, written } in &ends {
        let is_lost = lost.iter().any(|(rank, _)| *name == format!("worker {rank}"));
        assert!(is_lost || *code == Some(0), "{name} ended with {code:?}:\n{written}");
    }
    ends.into_iter().map(|end| (end.name.clone(), end)).collect()
}

/// Returns the sums by step and key. They are the same on every worker.
fn sums_of(ends: &BTreeMap<String, End>) -> BTreeMap<(usize, String), usize> {
    let mut sums: BTreeMap<(usize, String), usize> = BTreeMap::new();
    for (name, End { written, .. }) in ends {
        let text = written.to_string();
        for line in text.lines().filter_map(|line| line.strip_prefix("step ")?.split_once(' ')) {
            let (Ok(step), Some((key, sum))) = (line.0.parse(), line.1.split_once(' ')) else { continue };
            let sum = sum.parse::<f32>().unwrap() as usize;
            let first = *sums.entry((step, key.to_owned())).or_insert(sum);
            assert_eq!(first, sum, "{name} has another sum of {key} in step {step}");
        }
    }
    sums
}

#[test]
fn the_others_go_on_without_a_killed_worker_and_no_sum_is_wrong() {
    for trial in 0..6 {
        let random = ringpull_base::secret::random::<2>().unwrap();
        let (rank, step) = (usize::from(random[0]) % 3, 1 + usize::from(random[1]) % 40);
        println!("trial {trial}: kill worker {rank} in or after step {step}");
        let ends = run("elastic", 3, &[(rank, step)], &[]);
        let sums = sums_of(&ends);
        assert_eq!(sums.len(), 3 * STEPS);
        let (all, left) = (0b111, 0b111 & !(1 << rank));
        let values: BTreeSet<usize> = sums.values().copied().collect();
        assert!(values.is_subset(&BTreeSet::from([all, left])), "{values:?}");
        for key in ["long", "short", "rows"] {
            let of_key: Vec<usize> = (1..=STEPS).map(|step| sums[&(step, key.to_owned())]).collect();
            assert!(of_key.is_sorted_by(|one, next| one >= next), "a lost worker does not come back: {of_key:?}");
            assert_eq!((of_key[0], of_key[STEPS - 1]), (all, left));
        }
        for other in (0..3).filter(|other| *other != rank) {
            let written = &ends[&format!("worker {other}")].written;
            let number = other - usize::from(other > rank);
            assert!(written.contains(&format!("change 1: rank {number} of 2, lost [{rank}]")), "{written}");
            assert!(written.contains(&format!("ends in generation 1 as rank {number} of 2")), "{written}");
        }
    }
}

/// Has no limit. `cargo test --test ps -- --ignored --nocapture recovery` prints the milliseconds from a kill
/// to the next sum of the survivors.
#[test]
#[ignore = "a measurement"]
fn recovery_after_a_kill() {
    let mut times: Vec<u128> = Vec::new();
    for _ in 0..10 {
        let mut job = Job::start_elastic("elastic", 3, 2);
        job.wait_for("worker 0", "step 5");
        job.kill("worker 2");
        let killed = Instant::now();
        job.wait_for("worker 0", "long 3\n");
        times.push(killed.elapsed().as_millis());
        job.ends(LIMIT);
    }
    times.sort_unstable();
    println!("from a kill to the next sum, in ms: {times:?}");
}

#[test]
fn two_workers_are_killed_and_the_last_one_goes_on() {
    let ends = run("elastic", 3, &[(0, 10), (1, 11)], &[]);
    assert_eq!(sums_of(&ends)[&(STEPS, "long".to_owned())], 0b100);
    let written = &ends["worker 2"].written;
    assert!(written.contains("ends in generation 2 as rank 0 of 1"), "{written}");
}

#[test]
fn another_worker_comes_in_the_place_of_a_killed_one_at_a_barrier() {
    for rank in [0, 1] {
        let ends = run("elastic", 3, &[(rank, 5)], &[4]);
        let sums = sums_of(&ends);
        let written = &ends["worker 4"].written;
        assert!(written.contains(&format!("ends in generation 2 as rank {rank} of 3")), "{written}");
        let with = (0b111 & !(1 << rank)) | 1 << 4;
        for key in ["long", "short", "rows"] {
            assert_eq!(sums[&(STEPS, key.to_owned())], with);
            let first = (1..=STEPS).find(|step| sums[&(*step, key.to_owned())] & 1 << 4 != 0).unwrap();
            assert!(written.contains(&format!("starts after step {} in generation 2", first - 1)), "{written}");
        }
    }
}

#[test]
fn asynchronous_servers_go_on_without_a_killed_worker_and_with_another_at_once() {
    let ends = run("async_elastic", 3, &[(1, 3)], &[4]);
    let written = &ends["worker 4"].written;
    assert!(written.contains("ends in generation 2 as rank 1 of"), "{written}");
}

#[test]
fn a_worker_that_comes_when_none_is_lost_waits_and_is_told_of_the_end() {
    let mut job = Job::start_elastic("elastic", 2, 1);
    job.wait_for("worker 0", "step 1");
    job.add("elastic", "worker", Some(4), 2, 1);
    let ends = job.ends(LIMIT);
    for End { name, code, written } in &ends {
        assert_eq!(*code == Some(0), name != "worker 4", "{name} ended with {code:?}:\n{written}");
        assert!(name != "worker 4" || written.contains("ended before this worker could take part"), "{written}");
    }
}

#[test]
fn a_killed_server_still_ends_an_elastic_job_with_one_error() {
    let mut job = Job::start_elastic("elastic", 2, 2);
    job.wait_for("worker 0", "step 3");
    job.kill("server 1");
    job.fails(&["server 1"], &["server 1 (pid", "is lost"]);
}

#[test]
fn the_last_worker_is_not_gone_on_without() {
    let mut job = Job::start_elastic("elastic", 1, 1);
    job.wait_for("worker 0", "step 3");
    job.kill("worker 0");
    job.fails(&["worker 0"], &[]);
}

#[test]
fn without_a_loss_an_elastic_job_computes_what_others_do() {
    let cases = ["optimizer", "states", "rows", "order", "twice", "ints", "async_optimizer", "local_errors"];
    for (case, workers, servers) in [("sums", 1, 1), ("sums", 3, 2)].into_iter().chain(cases.map(|case| (case, 3, 2))) {
        println!("{case}");
        let workers = if case == "twice" { 2 } else { workers };
        Job::start_elastic(case, workers, servers).succeeds();
    }
}

#[test]
fn a_stopped_worker_is_lost_after_the_silence_and_ends_with_an_error_when_it_wakes() {
    let mut job = Job::start_elastic("elastic", 3, 2);
    job.wait_for("worker 0", "step 3");
    job.signal("worker 1", Signal::STOP);
    job.wait_for("worker 0", &format!("step {STEPS} long {}", 0b101));
    job.signal("worker 1", Signal::CONT);
    for End { name, code, written } in job.ends(LIMIT) {
        let is_lost = name == "worker 1";
        assert_eq!(code == Some(0), !is_lost, "{name} ended with {code:?}:\n{written}");
        assert!(!is_lost || written.contains("is lost"), "{written}");
    }
}

/// `cargo test --test ps -- --ignored hundred`.
#[test]
#[ignore = "takes minutes; the tests above do the same a few times"]
fn a_hundred_kills_at_random_moments() {
    (0..17).for_each(|_| the_others_go_on_without_a_killed_worker_and_no_sum_is_wrong());
}
