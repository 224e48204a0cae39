//! Jobs whose servers hold each other's values (`RINGPULL_REPLICAS`), and go on without one that is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringpull::KvStore;
use ringpull_base::{DType, Result, RowSparse, Tensor};
use ringpull_kernels::compress::{Codec, Compression};
use ringpull_kernels::optim::{Optimizer, Rule};
use rustix::process::Signal;

use crate::cases::full;
use crate::job::{End, Job};

/// The steps of a training.
const STEPS: usize = 60;
/// The length of a key that all servers have segments of.
const LONG: usize = 100_000;

/// A key that is pushed and pulled by rows, several messages to each server.
const TABLE: [usize; 2] = [4000, 64];

/// A gradient of this worker alone, whose sums have other bits in another order.
fn gradient(rank: usize, step: usize, len: usize) -> Tensor {
    let mut state = (rank * 1000 + step) as u64;
    let values = (0..len).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    Tensor::from_slice(&[len], &values.collect::<Vec<f32>>())
}

/// Trains with momentum on keys of all kinds, and prints what the values were after each step.
pub(crate) fn training(store: &KvStore) -> Result<()> {
    let rank = store.rank();
    let at = |rate| Optimizer { rule: Rule::Sgd { momentum: 0.9, nesterov: false }, ..Optimizer::sgd(rate) };
    store.set_optimizer(&at(0.1))?;
    println!("starts");
    store.init("long", &full(DType::F32, LONG, 1))?;
    store.init("short", &full(DType::F32, 100, 2))?;
    store.init_row_sparse("rows", &Tensor::full(DType::F32, &TABLE, 3.0))?;
    let (long, first, short) = (full(DType::F32, LONG, 0), full(DType::F32, LONG, 0), full(DType::F32, 100, 0));
    let mut longest = Duration::ZERO;
    for step in 1..=STEPS {
        let begun = Instant::now();
        match step {
            20 => store.set_optimizer(&at(0.01))?,
            30 => {
                let path = std::env::temp_dir().join(format!("ringpull-replicas-{}", std::process::id()));
                store.save_optimizer_states(&path, true)?;
                store.barrier()?;
                let loaded = store.load_optimizer_states(&path);
                std::fs::remove_file(&path).unwrap();
                loaded?;
            }
            40 => store.set_gradient_compression(&Compression::Codec(Codec::Fp16))?,
            _ => {}
        }
        if step % 4 == 0 {
            // Answered with the value of this round, although another one follows.
            store.push_pull("long", &[gradient(rank, STEPS + step, LONG)], std::slice::from_ref(&first), 0)?;
        }
        store.push_pull("long", &[gradient(rank, step, LONG)], std::slice::from_ref(&long), 0)?;
        store.push("short", &[gradient(rank, step, 100)], 1)?;
        let ids: Vec<i64> = (rank as i64..4000).step_by(2 + (rank + step) % 3).collect();
        let rows = gradient(rank, step, ids.len() * TABLE[1]).to_vec::<f32>()?;
        let rows = Tensor::from_slice(&[ids.len(), TABLE[1]], &rows);
        store.push_rows("rows", &[RowSparse::new(&TABLE, &ids, rows)?], 0)?;
        let rows = store.pull_rows("rows", &(0..4000).step_by(3).collect::<Vec<i64>>(), 0)?;
        store.pull("short", std::slice::from_ref(&short), 0)?;
        let mut hasher = DefaultHasher::new();
        for tensor in [&first, &long, &short, rows.rows()] {
            tensor.to_vec::<f32>()?.iter().for_each(|value| value.to_bits().hash(&mut hasher));
        }
        println!("step {step} {:x}", hasher.finish());
        longest = longest.max(begun.elapsed());
    }
    println!("longest step {}", longest.as_millis());
    store.wait_all()
}

/// The file whose existence lets worker 0 go on.
fn signal_file(port: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ringpull-replicas-go-{port}"))
}

fn wait_for_signal(port: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !signal_file(port).exists() {
        assert!(Instant::now() < deadline, "no signal has come");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Worker 0 calls `what` when a server has been lost; worker 1 waits for that, with its calls under way.
pub(crate) fn waiting(store: &KvStore, what: &str) -> Result<()> {
    let port = std::env::var("DMLC_PS_ROOT_PORT").unwrap();
    let (is_late, workers) = (store.rank() == 0, store.num_workers());
    if what != "init" {
        // Later values leave at once: all workers are connected.
        let first = full(DType::F32, 10, 1);
        store.init("first", &first)?;
        store.pull("first", std::slice::from_ref(&first), 0)?;
    }
    if is_late && what == "init" {
        store.barrier()?;
        wait_for_signal(&port);
    }
    if ["barrier", "fault", "panic"].contains(&what) {
        println!("waits");
        if is_late || what == "fault" {
            wait_for_signal(&port);
        }
        assert!(!is_late || what != "panic", "this worker panics");
        if what == "fault" {
            store.init("odd", &full(DType::F32, 10 + store.rank(), 1))?;
            return store.barrier();
        }
        store.barrier()?;
    }
    store.init("long", &full(DType::F32, LONG, 1))?;
    store.init_row_sparse("rows", &Tensor::full(DType::F32, &TABLE, 3.0))?;
    store.init("short", &full(DType::F32, 10, 1))?;
    let out = full(DType::F32, LONG, 0);
    let all = |out: &Tensor, value: usize| {
        let values = out.to_vec::<f32>()?;
        assert!(values.iter().all(|got| *got == value as f32), "{what}: {} is not {value}", values[0]);
        Ok::<(), ringpull_base::Error>(())
    };
    let one = [full(DType::F32, LONG, 1)];
    if what == "init" {
        if !is_late {
            store.barrier()?;
            println!("waits");
        }
        store.pull("long", std::slice::from_ref(&out), 0)?;
        return all(&out, 1);
    }
    if is_late {
        wait_for_signal(&port);
    }
    let says = || {
        if !is_late {
            println!("waits");
        }
    };
    match what {
        "push_pull" => {
            store.push_pull("long", &one, std::slice::from_ref(&out), 0)?;
            says();
            all(&out, workers)?;
        }
        "pull" => {
            store.push("long", &one, 0)?;
            says();
            store.pull("long", std::slice::from_ref(&out), 0)?;
            all(&out, workers)?;
        }
        "rows" => {
            // More than a window takes.
            let ids: Vec<i64> = (1..4000).step_by(2).collect();
            let value = RowSparse::new(&TABLE, &ids, Tensor::full(DType::F32, &[ids.len(), TABLE[1]], 1.0))?;
            store.push_rows("rows", &[value], 0)?;
            says();
            let found = store.pull_rows("rows", &[7, 8, 3999], 0)?.rows().to_vec::<f32>()?;
            let first: Vec<f32> = found.chunks(TABLE[1]).map(|row| row[0]).collect();
            assert_eq!(first, [workers as f32, 0.0, workers as f32]);
        }
        "wait" => {
            store.push("long", &one, 0)?;
            says();
            store.wait_all()?;
            store.pull("long", std::slice::from_ref(&out), 0)?;
            all(&out, workers)?;
        }
        "ahead" => {
            // The second push is held until the first is answered, so each output has its own round's sum.
            let outs = [full(DType::F32, LONG, 0), full(DType::F32, LONG, 0)];
            store.push_pull("long", &one, &outs[..1], 0)?;
            store.push_pull("long", &[full(DType::F32, LONG, 2)], &outs[1..], 5)?;
            store.push("long", &[full(DType::F32, LONG, 3)], 0)?;
            says();
            all(&outs[0], workers)?;
            all(&outs[1], 2 * workers)?;
            store.pull("long", std::slice::from_ref(&out), 0)?;
            all(&out, 3 * workers)?;
        }
        "barrier" => {}
        other => panic!("nothing is called {other}"),
    }
    store.barrier()?;
    store.push_pull("short", &[full(DType::F32, 10, 2)], &[full(DType::F32, 10, 0)], 0)?;
    store.wait_all()
}

/// Returns the output of worker 0 after each step, which is the same on every worker that lives.
fn values_of(ends: &[End]) -> BTreeMap<usize, String> {
    let mut values = BTreeMap::new();
    for End { name, written, .. } in ends.iter().filter(|end| end.name.starts_with("worker")) {
        for (step, hash) in written.to_string().lines().filter_map(|line| line.strip_prefix("step ")?.split_once(' ')) {
            let first = values.entry(step.parse().unwrap()).or_insert_with(|| hash.to_owned());
            assert_eq!(first, hash, "{name} has other values after step {step}");
        }
    }
    assert_eq!(values.len(), STEPS);
    values
}

/// Every node but the killed ones ends well.
fn ends_without(job: Job, killed: &[&str]) -> Vec<End> {
    let ends = job.ends(Duration::from_secs(60));
    for End { name, code, written } in &ends {
        assert!(killed.contains(&name.as_str()) || *code == Some(0), "{name} ended with {code:?}:\n{written}");
    }
    ends
}

/// A training of which each of these servers is killed some time after worker 0 has come to a step; from 0
/// on: when it starts.
fn train_without(servers: usize, killed: &[(&str, usize)]) -> BTreeMap<usize, String> {
    let mut job = Job::start_replicas("replicas", 3, servers);
    for (name, step) in killed {
        let text = if *step == 0 { "starts".to_owned() } else { format!("step {step} ") };
        job.wait_for("worker 0", &text);
        let random = u64::from(ringpull_base::secret::random::<1>().unwrap()[0]);
        std::thread::park_timeout(Duration::from_micros(random * 60));
        job.kill(name);
        job.wait_for("scheduler", &format!("{name} (pid"));
    }
    let names: Vec<&str> = killed.iter().map(|(name, _)| *name).collect();
    values_of(&ends_without(job, &names))
}

#[test]
fn a_job_has_the_same_bits_with_replicas_and_without_a_server_that_is_killed() {
    let undisturbed = values_of(&Job::start("replicas", 3, 2).succeeds());
    let distinct: BTreeSet<&String> = undisturbed.values().collect();
    assert_eq!(distinct.len(), STEPS, "each step changes the values");
    assert_eq!(train_without(2, &[]), undisturbed);
    for trial in 0..6 {
        let random = ringpull_base::secret::random::<2>().unwrap();
        let (server, step) = (["server 0", "server 1"][trial % 2], usize::from(random[0]) % (STEPS - 10));
        println!("trial {trial}: kill {server} after step {step}");
        assert_eq!(train_without(2, &[(server, step)]), undisturbed);
    }
}

#[test]
fn of_four_servers_two_that_are_no_pair_may_be_lost() {
    let undisturbed = values_of(&Job::start("replicas", 3, 4).succeeds());
    assert_eq!(train_without(4, &[("server 3", 5), ("server 1", 8)]), undisturbed);
}

#[test]
fn what_a_worker_waits_for_comes_from_another_server() {
    for what in ["init", "push_pull", "pull", "rows", "wait", "ahead"] {
        for server in ["server 0", "server 1"] {
            println!("{what} without {server}");
            let mut job = Job::start_replicas(&format!("replicas_{what}"), 2, 2);
            let signal = signal_file(&job.port.to_string());
            job.wait_for("worker 1", "waits");
            job.kill(server);
            job.wait_for("scheduler", "the job goes on with 1 server");
            std::fs::write(&signal, "").unwrap();
            let ends = ends_without(job, &[server]);
            std::fs::remove_file(&signal).unwrap();
            let said = ends.iter().find(|end| end.name == "scheduler").unwrap();
            assert!(said.written.contains(&format!("{server} (pid")), "{}", said.written);
        }
    }
}

#[test]
fn the_loss_of_all_servers_of_a_value_is_one_error_on_every_node() {
    let mut job = Job::start_replicas("replicas", 2, 2);
    job.wait_for("worker 0", "step 3 ");
    job.kill("server 1");
    job.wait_for("scheduler", "the job goes on with 1 server");
    job.kill("server 0");
    let words = [
        "server 0 (pid",
        "is lost: its connection closed, and so was before it server 1 (pid",
        "restart the job from its last checkpoint",
    ];
    for End { name, code, written } in job.ends(Duration::from_secs(12)) {
        assert!(code != Some(0), "{name}:\n{written}");
        let is_told = !name.starts_with("server");
        assert!(!is_told || words.iter().all(|word| written.contains(word)), "{name}:\n{written}");
    }
}

#[test]
fn servers_that_are_killed_together_are_one_error_too() {
    let mut job = Job::start_replicas("replicas", 2, 2);
    job.wait_for("worker 0", "step 3 ");
    job.kill("server 0");
    job.kill("server 1");
    job.fails(&["server 0", "server 1"], &["server ", "is lost", "so was before it"]);
}

#[test]
fn a_killed_worker_ends_a_job_with_replicas_as_any_other() {
    let mut job = Job::start_replicas("replicas", 3, 2);
    job.wait_for("worker 0", "step 3 ");
    job.kill("worker 2");
    job.fails(&["worker 2"], &["worker rank 2 (pid", "is lost"]);
}

#[test]
fn a_stopped_server_is_lost_after_the_silence_and_ends_with_an_error_when_it_wakes() {
    let undisturbed = values_of(&Job::start("replicas", 3, 2).succeeds());
    for server in ["server 0", "server 1"] {
        let mut job = Job::start_replicas("replicas", 3, 2);
        job.wait_for("worker 0", "step 3 ");
        job.signal(server, Signal::STOP);
        job.wait_for("worker 0", &format!("step {STEPS} "));
        job.signal(server, Signal::CONT);
        let ends = ends_without(job, &[server]);
        let stopped = ends.iter().find(|end| end.name == server).unwrap();
        assert!(stopped.code != Some(0) && stopped.written.contains("is lost"), "{}", stopped.written);
        assert_eq!(values_of(&ends), undisturbed);
    }
}

#[test]
fn without_a_loss_a_job_with_replicas_computes_what_others_do() {
    for (case, workers, servers) in [
        ("sums", 1, 2),
        ("sums", 3, 3),
        ("optimizer", 2, 2),
        ("states", 2, 2),
        ("rows", 3, 2),
        ("order", 3, 3),
        ("twice", 2, 2),
        ("ints", 2, 2),
        ("local_errors", 2, 2),
    ] {
        println!("{case}");
        Job::start_replicas(case, workers, servers).succeeds();
    }
    Job::start_replicas("uneven", 3, 2).fails(&[], &["uneven_key", "[1, 2]"]);
    Job::start_replicas("shapes", 2, 2).fails(&[], &["\"odd_one\" in init", "rank 1 has f32 of shape [8]"]);
    Job::start_replicas("deadlock", 2, 2).fails(&[], &["every rank waits for another"]);
}

#[test]
fn replicas_that_no_job_can_have_are_one_clear_error() {
    let job = Job::start_replicas("sums", 1, 1);
    job.fails(&[], &["RINGPULL_REPLICAS=2 needs at least 2 servers", "launch -s"]);
    let mut job = Job::empty(crate::job::free_port());
    job.replicas = Some("0");
    job.add("sums", "worker", Some(0), 1, 2);
    job.fails(&[], &["RINGPULL_REPLICAS", "a number of servers"]);
    let mut job = Job::empty(crate::job::free_port());
    job.replicas = Some("2");
    job.add("async_optimizer", "worker", Some(0), 1, 2);
    job.fails(&[], &["dist_async has no values on 2 servers each", "use dist_sync"]);
}

/// `cargo test --test ps -- --ignored hundred_servers`.
#[test]
#[ignore = "takes minutes; a test above does the same six times"]
fn a_hundred_servers_are_killed_at_random_moments() {
    let undisturbed = values_of(&Job::start("replicas", 3, 2).succeeds());
    for trial in 0..100 {
        let random = ringpull_base::secret::random::<2>().unwrap();
        let (server, step) = (["server 0", "server 1"][trial % 2], usize::from(random[0]) % (STEPS - 10));
        assert_eq!(train_without(2, &[(server, step)]), undisturbed, "trial {trial}: {server} after step {step}");
    }
}

/// `cargo test --test ps -- --ignored hundred_schedulers`: in every second trial a server is killed too,
/// before or after the scheduler.
#[test]
#[ignore = "takes minutes; tests below do the like four times"]
fn a_hundred_schedulers_are_killed_at_random_moments() {
    let undisturbed = values_of(&Job::start("replicas", 3, 2).succeeds());
    for trial in 0..100 {
        let random = ringpull_base::secret::random::<4>().unwrap().map(usize::from);
        let step = random[0] % (STEPS - 10);
        let lost = ["", "server 0", "", "server 1"][trial % 4];
        println!("trial {trial}: the scheduler after step {step}, and {lost:?}, {random:?}");
        let rest = |random: usize| std::thread::park_timeout(Duration::from_millis(random as u64));
        let mut job = Job::start_replicas("replicas", 3, 2);
        job.wait_for("worker 0", &if step == 0 { "starts".to_owned() } else { format!("step {step} ") });
        rest(random[1] / 8);
        let is_before = !lost.is_empty() && random[2] % 2 == 0;
        if is_before {
            job.kill(lost);
            rest(random[3]);
        }
        job.kill("scheduler");
        rest(random[2]);
        job.add("replicas", "scheduler", Some(1), 3, 2);
        if !lost.is_empty() && !is_before {
            rest(random[3]);
            job.kill(lost);
        }
        let ends = ends_without(job, &["scheduler", lost]);
        assert_eq!(values_of(&ends), undisturbed);
        let written = &ends.iter().find(|end| end.name == "scheduler 1").unwrap().written;
        assert!(written.contains("the scheduler was started again"), "{written}");
    }
}

/// Not judged: `cargo test --test ps -- --ignored --nocapture cost_of_replicas` prints it, of jobs in turn.
#[test]
#[ignore = "a measurement"]
fn cost_of_replicas() {
    for round in 0..5 {
        for (name, start) in [("one server", Job::start as fn(&str, usize, usize) -> Job), ("two", Job::start_replicas)]
        {
            let ends = start("speed", 4, 2).succeeds();
            let first = ends.iter().find(|end| end.name == "worker 0").unwrap();
            let text = first.written.to_string();
            let lines: Vec<&str> =
                text.lines().filter(|line| line.contains("seconds") || line.contains("bytes")).collect();
            println!("{round}: each value on {name}: {}", lines.join("; "));
        }
    }
}

/// Not judged: `cargo test --test ps -- --ignored --nocapture after_a_server` prints the longest step of a
/// training of which a server is killed, in milliseconds, and that of an undisturbed one.
#[test]
#[ignore = "a measurement"]
fn the_longest_step_after_a_server_is_killed() {
    let longest = |ends: &[End]| {
        let text = ends.iter().find(|end| end.name == "worker 0").unwrap().written.to_string();
        text.lines().find_map(|line| line.strip_prefix("longest step ")?.parse::<u64>().ok()).unwrap()
    };
    let mut times = Vec::new();
    for trial in 0..10 {
        let server = ["server 0", "server 1"][trial % 2];
        let mut job = Job::start_replicas("replicas", 3, 2);
        job.wait_for("worker 0", "step 5 ");
        job.kill(server);
        times.push(longest(&ends_without(job, &[server])));
    }
    times.sort_unstable();
    let undisturbed = longest(&Job::start_replicas("replicas", 3, 2).succeeds());
    println!("the longest step in ms, when a server is killed: {times:?}; undisturbed: {undisturbed}");
}

#[test]
fn a_scheduler_that_is_killed_and_started_again_learns_from_its_nodes_where_they_are() {
    let undisturbed = values_of(&Job::start("replicas", 3, 2).succeeds());
    // The training meets in a barrier after step 30. Towards the end workers leave while there is no
    // scheduler.
    for (step, lost) in [(3, "server 1"), (20, ""), (STEPS - 20, "")] {
        println!("after step {step}, and then {lost:?}");
        let mut job = Job::start_replicas("replicas", 3, 2);
        job.wait_for("worker 0", &format!("step {step} "));
        job.kill("scheduler");
        job.add("replicas", "scheduler", Some(1), 3, 2);
        if !lost.is_empty() {
            job.kill(lost);
        }
        let servers = if lost.is_empty() { 2 } else { 1 };
        let ends = ends_without(job, &["scheduler", lost]);
        assert_eq!(values_of(&ends), undisturbed);
        let second = &ends.iter().find(|end| end.name == "scheduler 1").unwrap().written;
        assert!(second.contains("the scheduler was started again, and the job goes on with "), "{second}");
        assert!(second.contains(&format!("and {servers} server(s)")), "{second}");
    }
}

#[test]
fn two_schedulers_may_be_lost_while_workers_are_in_a_barrier() {
    let mut job = Job::start_replicas("replicas_barrier", 2, 2);
    let signal = signal_file(&job.port.to_string());
    job.wait_for("worker 1", "waits");
    job.kill("scheduler");
    // The second one is killed while it waits for a worker.
    job.signal("worker 0", Signal::STOP);
    job.add("replicas_barrier", "scheduler", Some(1), 2, 2);
    job.wait_for("scheduler 1", "the scheduler was started again: it waits for the nodes of its job");
    job.kill("scheduler 1");
    job.signal("worker 0", Signal::CONT);
    job.add("replicas_barrier", "scheduler", Some(2), 2, 2);
    job.wait_for("scheduler 2", "the scheduler was started again, and the job goes on with 2 worker(s)");
    job.kill("scheduler 2");
    job.add("replicas_barrier", "scheduler", Some(3), 2, 2);
    std::fs::write(&signal, "").unwrap();
    let ends = ends_without(job, &["scheduler", "scheduler 1", "scheduler 2"]);
    std::fs::remove_file(&signal).unwrap();
    let last = &ends.iter().find(|end| end.name == "scheduler 3").unwrap().written;
    assert!(last.contains("the scheduler was started again"), "{last}");
}

#[test]
fn nodes_come_to_another_scheduler_if_the_first_one_is_lost_before_all_are_there() {
    // Before the first heartbeat is answered, and after it.
    for after in [100, 250, 1000] {
        let mut job = Job::empty(crate::job::free_port());
        job.replicas = Some("2");
        job.add("replicas", "scheduler", None, 3, 2);
        for (role, rank) in [("server", 0), ("worker", 0)] {
            job.add("replicas", role, Some(rank), 3, 2);
        }
        std::thread::park_timeout(Duration::from_millis(after));
        job.kill("scheduler");
        job.add("replicas", "scheduler", Some(1), 3, 2);
        for (role, rank) in [("server", 1), ("worker", 1), ("worker", 2)] {
            job.add("replicas", role, Some(rank), 3, 2);
        }
        values_of(&ends_without(job, &["scheduler"]));
    }
}

#[test]
fn a_worker_that_panics_while_there_is_no_scheduler_is_the_error_of_the_others() {
    let mut job = Job::start_replicas("replicas_panic", 2, 2);
    let signal = signal_file(&job.port.to_string());
    job.wait_for("worker 0", "waits");
    job.wait_for("worker 1", "waits");
    job.kill("scheduler");
    std::fs::write(&signal, "").unwrap();
    job.wait_for("worker 0", "this worker panics");
    job.add("replicas_panic", "scheduler", Some(1), 2, 2);
    for End { name, code, written } in job.ends(Duration::from_secs(30)) {
        let is_told = !name.starts_with("worker 0") && name != "scheduler";
        assert!(code != Some(0), "{name}:\n{written}");
        assert!(!is_told || (written.contains("worker rank 0 (pid") && written.contains("it panicked")), "{written}");
    }
    std::fs::remove_file(&signal).unwrap();
}

#[test]
fn a_fault_that_is_found_while_there_is_no_scheduler_is_every_nodes_error() {
    let mut job = Job::start_replicas("replicas_fault", 2, 2);
    let signal = signal_file(&job.port.to_string());
    job.wait_for("worker 0", "waits");
    job.wait_for("worker 1", "waits");
    job.kill("scheduler");
    std::fs::write(&signal, "").unwrap();
    std::thread::park_timeout(Duration::from_millis(500));
    job.add("replicas_fault", "scheduler", Some(1), 2, 2);
    all_fail(job, &["\"odd\" in init", "shape [11]"]);
    std::fs::remove_file(&signal).unwrap();
}

/// Every node ends with an error; those of workers that were not killed say these words.
fn all_fail(job: Job, words: &[&str]) {
    for End { name, code, written } in job.ends(Duration::from_secs(30)) {
        assert!(code != Some(0), "{name}:\n{written}");
        let is_told = name.starts_with("worker") && code.is_some();
        assert!(!is_told || words.iter().all(|word| written.contains(word)), "{name}:\n{written}");
    }
}

#[test]
fn a_scheduler_that_is_not_started_again_is_one_error_on_every_node() {
    let mut job = Job::start_replicas("replicas", 2, 2);
    job.wait_for("worker 0", "step 3 ");
    job.kill("scheduler");
    all_fail(job, &["the scheduler (127.0.0.1:", "is lost", "none has come in its place for"]);
}

#[test]
fn a_worker_that_does_not_come_back_to_a_scheduler_is_an_error() {
    let mut job = Job::start_replicas("replicas", 3, 2);
    job.wait_for("worker 0", "step 3 ");
    job.kill("scheduler");
    job.kill("worker 2");
    job.add("replicas", "scheduler", Some(1), 3, 2);
    all_fail(job, &["worker rank(s) [2] did not come back to the scheduler"]);
}
