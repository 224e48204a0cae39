//! The programs of the tests' ranks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpull::{CallOptions, Communicator, KvStore, Reduction, communicator, create, create_on};
use ringpull_base::{DType, Result, Tensor, config};
use ringpull_device::Devices;
use ringpull_kernels::optim::{Optimizer, Rule};
use ringpull_processes::LIMIT;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::own_mpi;

/// Runs `case` as one rank. `begun` is called with the rank once it is known.
pub(crate) fn run(case: &str, begun: &dyn Fn(usize)) -> Result<()> {
    ringpull_base::notice::to_stderr();
    match case {
        "serialized" | "multiple" => return beside_a_programs_own_mpi(case, begun),
        "short_files" => limit_files(),
        "short_files_of_rank_0" if config::is_first_rank() => limit_files(),
        _ => {}
    }
    let store = if case == "on_gpus" { create_on("dist_sync_mpi", &own_gpus()?)? } else { create("dist_sync_mpi")? };
    let rank = store.rank();
    begun(rank);
    let odd = rank == 1;
    match case {
        "orders" => orders(&store),
        "shapes" => store.init("odd_one", &full(if odd { 8 } else { 6 })).and_then(|()| until_init_tells(&store)),
        "shapes_of_two" => {
            if rank < 2 {
                store.init("odd_one", &full(if odd { 8 } else { 6 }))?;
            }
            until_init_tells(&store)
        }
        "dtypes" => {
            let dtype = if odd { DType::F64 } else { DType::F32 };
            store.init("odd_one", &Tensor::zeros(dtype, &[6]))?;
            until_told(&store)
        }
        "optimizers" => {
            store.init("weight", &full(6))?;
            store.set_optimizer(&Optimizer::sgd(if odd { 0.2 } else { 0.1 }))?;
            store.push("weight", &[full(6)], 0)?;
            until_told(&store)
        }
        "sharded_by_one" => {
            store.init("weight", &full(6))?;
            let adam = "adam".parse()?;
            if odd {
                store.set_sharded_optimizer(&adam)?;
            } else {
                store.set_optimizer(&adam)?;
            }
            store.push("weight", &[full(6)], 0)?;
            until_told(&store)
        }
        "saves_alone" => {
            store.init("weight", &full(6))?;
            store.set_sharded_optimizer(&"adam".parse()?)?;
            push_and_read(&store, "weight", 6)?;
            let folder = tempfile::tempdir().unwrap();
            if !odd {
                store.save_optimizer_states(&folder.path().join("states"), false)?;
            }
            until_told(&store)
        }
        "updates" => {
            store.init("big", &full(1 << 20))?;
            store.set_sharded_optimizer(&"adam".parse()?)?;
            for round in 0.. {
                push_and_read(&store, "big", 1 << 20)?;
                if round % 4 == 3 {
                    println!("moving");
                }
            }
            Ok(())
        }
        "never_pushes" => {
            store.init("late", &full(1000))?;
            if !odd {
                store.push("late", &[full(1000)], 0)?;
            }
            until_told(&store)
        }
        "pushes_twice" => {
            store.init("twice", &full(1000))?;
            let times = if rank == 0 { 2 } else { 1 };
            (0..times).try_for_each(|_| store.push("twice", &[full(1000)], 0))?;
            until_told(&store)
        }
        "barrier" => {
            if !odd {
                store.barrier()?;
            }
            until_told(&store)
        }
        "ends_early" => {
            store.init("next", &full(6))?;
            store.barrier()?;
            if odd {
                std::process::exit(0);
            }
            push_and_pull(&store, "next", &full(6))
        }
        "ends_by_error" | "aborts_after_error" | "gets_over_error" | "reports_failure" => ends_by_error(&store, case),
        "short_files" | "short_files_of_rank_0" => short_files(&store),
        "panics" => {
            store.barrier()?;
            assert!(!odd, "this rank panics on purpose");
            until_told(&store)
        }
        "long_list" => {
            // Each name can be sent, and all of a step together, which is to be frozen, cannot.
            let keys: Vec<String> = (0..72).map(|number| format!("{number}{}", "k".repeat(1 << 20))).collect();
            keys.iter().try_for_each(|key| store.init(key.as_str(), &full(6)))?;
            (0..40).try_for_each(|_| keys.iter().try_for_each(|key| push_and_pull(&store, key, &full(6))))
        }
        "mismatch" => mismatch(&store),
        "late" => late(&store),
        "deadlock" | "deadlock_in_step_20" => deadlock(&store, case),
        "crossing" => crossing(&store),
        "joined" => {
            store.init("big", &full(1 << 16))?;
            if odd { store.join().map(drop) } else { transfers_of(&store, 1 << 16, store.num_workers() - 1) }
        }
        "transfers" => {
            store.init("big", &full(1 << 20))?;
            transfers_of(&store, 1 << 20, store.num_workers())
        }
        "on_gpus" => on_gpus(&store),
        "collectives_differ" => collectives_differ(),
        case if case.starts_with("missing ") => {
            let (comm, which) = (communicator()?, case.trim_start_matches("missing "));
            if !odd {
                collective(&comm, which, 1000)?;
            }
            until_told(&store)
        }
        case if case.starts_with("moving ") => {
            let (comm, which) = (communicator()?, case.trim_start_matches("moving "));
            for round in 0.. {
                collective(&comm, which, 1 << 18)?;
                if round % 8 == 3 {
                    println!("moving");
                }
            }
            Ok(())
        }
        other => panic!("no case is called {other}"),
    }
}

/// The collectives of a communicator that every rank takes part in.
pub(crate) const COLLECTIVES: [&str; 5] = ["allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast"];

/// Calls a collective with the name `big` and `len` elements for each rank, and waits for it.
fn collective(comm: &Communicator, which: &str, len: usize) -> Result<()> {
    let options = CallOptions { name: Some("big".into()), ..CallOptions::default() };
    let (one, all) = (full(len), full(len * comm.size()));
    match which {
        "allreduce" => comm.allreduce(&one, Reduction::Sum, &options)?.wait().map(drop),
        "reduce_scatter" => comm.reduce_scatter(&all, Reduction::Sum, None, &options)?.wait().map(drop),
        "allgather" => comm.allgather(&one, None, &options)?.wait().map(drop),
        "alltoall" => comm.alltoall(&all, None, None, &options)?.wait().map(drop),
        "broadcast" => comm.broadcast(&one, 0, &options)?.wait().map(drop),
        other => panic!("no collective is called {other}"),
    }
}

/// Rank 1 calls each collective with another dtype. This call is an error on every rank, and the next call is
/// none.
fn collectives_differ() -> Result<()> {
    let comm = communicator()?;
    let options = || CallOptions { name: Some("odd".into()), ..CallOptions::default() };
    for which in COLLECTIVES {
        let dtype = if comm.rank() == 1 { DType::F64 } else { DType::F32 };
        let tensor = Tensor::zeros(dtype, &[comm.size()]);
        let outcome = match which {
            "allreduce" => comm.allreduce(&tensor, Reduction::Sum, &options())?.wait().map(drop),
            "reduce_scatter" => comm.reduce_scatter(&tensor, Reduction::Sum, None, &options())?.wait().map(drop),
            "allgather" => comm.allgather(&tensor, None, &options())?.wait().map(drop),
            "alltoall" => comm.alltoall(&tensor, None, None, &options())?.wait().map(drop),
            _ => comm.broadcast(&tensor, 0, &options())?.wait().map(drop),
        };
        let text = outcome.unwrap_err().to_string();
        for part in [format!("on key \"odd\" in {which}"), format!("rank 1 has {which} of f64"), "of f32".to_owned()] {
            assert!(text.contains(&part), "{which}: {part:?} is not in {text}");
        }
        collective(&comm, which, 10)?;
    }
    Ok(())
}

/// Rank 1 needs six seconds for step 20 of 40.
fn late(store: &KvStore) -> Result<()> {
    let keys = ["a", "b", "c"];
    keys.iter().try_for_each(|key| store.init(*key, &full(1000)))?;
    for step in 0..40 {
        if step == 20 && store.rank() == 1 {
            std::thread::sleep(Duration::from_secs(6));
        }
        let values: Vec<Tensor> = keys.iter().map(|_| full(1000)).collect();
        for (key, value) in keys.iter().zip(&values) {
            store.push_pull(*key, std::slice::from_ref(value), std::slice::from_ref(value), 0)?;
        }
        for value in &values {
            assert_eq!(value.to_vec::<f32>()?, vec![store.num_workers() as f32; 1000], "step {step}");
        }
    }
    Ok(())
}

/// Every rank waits for a different key and has called only this key, at once or when their steps are frozen.
fn deadlock(store: &KvStore, case: &str) -> Result<()> {
    let keys: Vec<String> = (0..store.num_workers()).map(|rank| format!("of rank {rank}")).collect();
    keys.iter().try_for_each(|key| store.init(key.as_str(), &full(1000)))?;
    for _ in 0..if case == "deadlock" { 0 } else { 20 } {
        keys.iter().try_for_each(|key| push_and_pull(store, key, &full(1000)))?;
    }
    push_and_pull(store, &keys[store.rank()], &full(1000))?;
    until_told(store)
}

/// Each rank has called operations that the other has not, and waits for nothing: one sleeps, the other
/// computes. Then each calls the rest.
fn crossing(store: &KvStore) -> Result<()> {
    let keys = ["a", "b"];
    keys.iter().try_for_each(|key| store.init(*key, &full(1000)))?;
    let (first, second) = if store.rank() == 0 { ("a", "b") } else { ("b", "a") };
    store.push(first, &[full(1000)], 0)?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(9) {
        if store.rank() == 0 {
            std::thread::sleep(Duration::from_millis(100));
        } else {
            std::hint::spin_loop();
        }
    }
    store.push(second, &[full(1000)], 0)?;
    keys.iter().try_for_each(|key| {
        let out = full(1000);
        store.pull(*key, std::slice::from_ref(&out), 0)?;
        assert_eq!(out.to_vec::<f32>()?, vec![2.0; 1000]);
        Ok(())
    })
}

/// MPI was initialised before the store is created, with a level that lets the store's thread call it or not.
fn beside_a_programs_own_mpi(case: &str, begun: &dyn Fn(usize)) -> Result<()> {
    let is_refused = case == "serialized";
    begun(own_mpi::initialise(if is_refused { own_mpi::SERIALIZED } else { own_mpi::MULTIPLE }));
    match create("dist_sync_mpi") {
        Ok(store) => {
            assert!(!is_refused, "the program's calls and the store's may come at the same time");
            store.init("big", &full(1 << 16))?;
            push_and_pull(&store, "big", &full(1 << 16))?;
        }
        Err(error) => {
            let text = error.to_string();
            assert!(is_refused && text.contains("MPI_THREAD_SERIALIZED"), "{text}");
            assert!(text.contains("hint: initialise MPI by MPI_Init_thread with MPI_THREAD_MULTIPLE"), "{text}");
        }
    }
    own_mpi::finalise();
    Ok(())
}

/// The limit of this process's files from now on, as by `ulimit -f`.
const SHORT_BYTES: u64 = 64 << 10;

fn limit_files() {
    let limit = Rlimit { current: Some(SHORT_BYTES), maximum: Some(SHORT_BYTES) };
    setrlimit(Resource::Fsize, limit).unwrap();
}

/// Sums that are longer than the limit of files are right, and states that cannot be saved are an error.
fn short_files(store: &KvStore) -> Result<()> {
    let len = 1 << 20;
    store.init("big", &full(len))?;
    (0..3).try_for_each(|_| push_and_pull(store, "big", &full(len)))?;
    let rule = Rule::Sgd { momentum: 0.9, nesterov: false };
    store.set_optimizer(&Optimizer { rule, ..Optimizer::sgd(0.1) })?;
    store.push("big", &[full(len)], 0)?;
    let folder = tempfile::tempdir().unwrap();
    let saved = store.save_optimizer_states(&folder.path().join("states"), true);
    if getrlimit(Resource::Fsize).current == Some(SHORT_BYTES) {
        let text = saved.unwrap_err().to_string();
        assert!(text.contains("File too large") && text.contains("ulimit -f"), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    } else {
        saved?;
    }
    store.barrier()
}

/// Pushes a key and reads its value.
fn push_and_read(store: &KvStore, key: &str, len: usize) -> Result<()> {
    let value = full(len);
    store.push_pull(key, std::slice::from_ref(&value), std::slice::from_ref(&value), 0)?;
    value.to_vec::<f32>().map(drop)
}

fn full(len: usize) -> Tensor {
    Tensor::full(DType::F32, &[len], 1.0)
}

fn push_and_pull(store: &KvStore, key: &str, value: &Tensor) -> Result<()> {
    sum_of(store, key, value, store.num_workers())
}

fn sum_of(store: &KvStore, key: &str, value: &Tensor, pushing: usize) -> Result<()> {
    let out = Tensor::zeros(DType::F32, value.shape());
    store.push_pull(key, std::slice::from_ref(value), std::slice::from_ref(&out), 0)?;
    let sums = out.to_vec::<f32>()?;
    assert!(sums.iter().all(|sum| *sum == pushing as f32), "a sum over all ranks is wrong");
    Ok(())
}

/// Does nothing until the store reports a fault.
fn until_told(store: &KvStore) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        store.wait_all()?;
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Ok(())
}

/// Rank 1 gives a value that does not fit, and ends in the way of `case`; the others wait for it.
fn ends_by_error(store: &KvStore, case: &str) -> Result<()> {
    store.init("next", &full(6))?;
    store.barrier()?;
    if store.rank() != 1 {
        return push_and_pull(store, "next", &full(6));
    }
    let outcome = push_and_pull(store, "next", &full(7));
    assert!(outcome.is_err(), "a value of another shape is refused");
    match case {
        "aborts_after_error" => std::process::abort(),
        "reports_failure" => store.report_failure("the data ends in the middle of an image\nand this line is not told"),
        "gets_over_error" => store.wait_all()?,
        _ => return outcome,
    }
    std::process::exit(0)
}

/// Initialises keys, which waits for nobody, until that reports a fault.
fn until_init_tells(store: &KvStore) -> Result<()> {
    for key in 0..2000 {
        store.init(format!("key {key}"), &full(1))?;
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Ok(())
}

/// Every rank begins at another key.
fn orders(store: &KvStore) -> Result<()> {
    let mut mine: Vec<usize> = (0..20).collect();
    mine.rotate_left(store.rank() * 7);
    let key = |i: usize| format!("layer{i}_weight");
    for i in &mine {
        store.init(key(*i), &Tensor::full(DType::F32, &[10 + i * 100], *i as f64))?;
    }
    mine.rotate_left(3);
    for i in &mine {
        let out = Tensor::zeros(DType::F32, &[10 + i * 100]);
        store.pull(key(*i), std::slice::from_ref(&out), 0)?;
        assert!(out.to_vec::<f32>()?.iter().all(|value| *value == *i as f32), "key {i} has another key's value");
    }
    mine.rotate_left(store.rank() * 3);
    let outs: Vec<Tensor> = (0..20).map(|i| Tensor::full(DType::F32, &[10 + i * 100], i as f64)).collect();
    for i in &mine {
        let out = std::slice::from_ref(&outs[*i]);
        store.push_pull(key(*i), out, out, *i as i32)?;
    }
    for (i, out) in outs.iter().enumerate() {
        let wanted = (i * store.num_workers()) as f32;
        assert!(out.to_vec::<f32>()?.iter().all(|sum| *sum == wanted), "key {i} has another key's sum");
    }
    Ok(())
}

/// 100 steps alike, of which those after the third cost no control message; then one in which rank 1 has an
/// optimizer.
fn mismatch(store: &KvStore) -> Result<()> {
    let keys = ["first", "second", "third"];
    keys.iter().try_for_each(|key| store.init(*key, &full(1000)))?;
    let step = || keys.iter().try_for_each(|key| push_and_pull(store, key, &full(1000)));
    (0..3).try_for_each(|_| step())?;
    let before = store.stats().control_messages;
    (3..99).try_for_each(|_| step())?;
    // Nobody is in step 100 before this rank has made step 99.
    assert_eq!(store.stats().control_messages, before, "a frozen step costs a control message");
    println!("counted");
    step()?;
    if store.rank() == 1 {
        store.set_optimizer(&Optimizer::sgd(0.1))?;
    }
    step().and_then(|()| until_told(store))
}

/// A key of `len` again and again, which `pushing` ranks push, until somebody is lost.
/// Two GPUs that no other rank has.
fn own_gpus() -> Result<Arc<Devices>> {
    let number = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(config::text);
    let first = 2 * number.and_then(|number| number.parse::<usize>().ok()).unwrap_or(0);
    ringpull_device::open(&format!("cuda:{first},{}", first + 1))
}

/// Sums of a tensor on each GPU, and of two on one of them.
fn on_gpus(store: &KvStore) -> Result<()> {
    let (len, devices) = (1003, store.devices().expect("a store on GPUs"));
    store.init("w", &full(len))?;
    for _ in 0..10 {
        let upload = |device| devices.upload(device, &full(len));
        let values = (0..devices.count()).map(upload).collect::<Result<Vec<_>>>()?;
        store.push_pull("w", &values, &values, 0)?;
        store.push_pull("w", &[values[0].clone(), values[0].clone()], &values[..1], 0)?;
        let sum = devices.download(&values[0])?.to_vec::<f32>()?;
        assert!(sum.iter().all(|value| *value == sum[0]), "{sum:?}");
    }
    store.wait_all()?;
    store.barrier()
}

fn transfers_of(store: &KvStore, len: usize, pushing: usize) -> Result<()> {
    let value = full(len);
    let start = Instant::now();
    for round in 0.. {
        sum_of(store, "big", &value, pushing)?;
        if round % 8 == 3 {
            println!("moving");
        }
        if start.elapsed() > LIMIT {
            break;
        }
    }
    Ok(())
}
