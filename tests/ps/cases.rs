//! The programs that the workers of the tests run.
#![allow(clippy::float_cmp)] // Inputs are small integers, so sums are exact.

use std::time::{Duration, Instant};

use ringpull::{KvStore, create};
use ringpull_base::{DType, Key, Result, RowSparse, Tensor};
use ringpull_kernels::optim::{Optimizer, Rule};

use crate::elastic;
use crate::odd_one::{self, until_fault, until_told};

/// Runs `case` as one worker.
pub(crate) fn run(case: &str) -> Result<()> {
    let kind = if case.starts_with("async") { "dist_async" } else { "dist_sync" };
    let store = create(kind)?;
    match case {
        "sums" => sums(&store),
        "optimizer" => optimizer(&store),
        "states" => states(&store),
        "rows" => rows(&store),
        "order" => order(&store),
        "twice" => twice(&store),
        "ahead" => ahead(&store),
        "shapes" => odd_one::shapes(&store),
        "dtypes" => odd_one::dtypes(&store),
        "optimizers" => odd_one::optimizers(&store),
        "uneven" => odd_one::uneven(&store),
        "ends_early" => odd_one::ends_early(&store),
        "ends_with_a_push" => odd_one::ends_with_a_push(&store),
        "ends_by_error" | "exits_after_error" => odd_one::ends_by_error(&store, case),
        "async_optimizer" => async_optimizer(&store),
        "async_bare" => async_bare(&store),
        "deadlock" => odd_one::deadlock(&store),
        "lazy" => lazy(&store),
        "forever" => forever(&store),
        "panics" => panics(&store),
        "ints" => ints(&store),
        "barrier" => barrier(&store),
        "local_errors" => local_errors(&store),
        "speed" => speed(&store),
        "elastic" => elastic::sums(&store),
        "async_elastic" => elastic::descents(&store),
        other => panic!("no case is called {other}"),
    }
}

pub(crate) fn full(dtype: DType, len: usize, value: usize) -> Tensor {
    Tensor::full(dtype, &[len], value as f64)
}

fn assert_all(tensor: &Tensor, value: usize) {
    ringpull_base::with_element!(tensor.dtype(), T => {
        let wanted = <T as ringpull_base::Element>::from_f64(value as f64);
        let values = tensor.to_vec::<T>().unwrap();
        assert!(values.iter().all(|got| *got == wanted), "{tensor:?}: not all are {value}");
    });
}

/// Worker 0 pushes a long key before worker 1 pushes it, and pulls it later. Worker 0 sends a few segments
/// and waits for answers. Meanwhile both workers go on with another key. Worker 0 leaves before worker 1 has
/// made all its pushes.
fn ahead(store: &KvStore) -> Result<()> {
    let (long, short) = (full(DType::F32, 2 << 20, 1), full(DType::F32, 1, 1));
    let shape = [8 << 10, 256];
    let row_ids: Vec<i64> = (0..8 << 10).collect();
    let rows = RowSparse::new(&shape, &row_ids, Tensor::full(DType::F32, &shape, 1.0))?;
    store.init("long", &long)?;
    store.init_row_sparse("rows", &Tensor::full(DType::F32, &shape, 1.0))?;
    store.init("short", &short)?;
    let push = || {
        store.push("long", std::slice::from_ref(&long), 0)?;
        store.push_rows("rows", std::slice::from_ref(&rows), 0)
    };
    if store.rank() == 0 {
        push()?;
    }
    let meet = || {
        let out = Tensor::zeros(DType::F32, &[1]);
        store.push_pull("short", std::slice::from_ref(&short), std::slice::from_ref(&out), 0)?;
        assert_all(&out, 2);
        Ok(())
    };
    (0..20).try_for_each(|_| meet())?;
    let sent_bytes = store.stats().sent_bytes;
    assert!(sent_bytes < (16 << 20) + (2 << 20), "it has sent {sent_bytes} bytes, with those of init");
    // Worker 1 does not push before worker 0 has looked.
    meet()?;
    if store.rank() == 1 {
        push()?;
    }
    let out = Tensor::zeros(DType::F32, &[2 << 20]);
    store.pull("long", std::slice::from_ref(&out), 0)?;
    assert_all(&out, 2);
    assert_all(store.pull_rows("rows", &row_ids, 0)?.rows(), 2);
    push()
}

/// Sums every dtype and length. Each round's sum overwrites the value.
fn sums(store: &KvStore) -> Result<()> {
    let (rank, workers) = (store.rank(), store.num_workers());
    let lengths = [0, 1, workers - 1, workers, workers + 1, 999, 1000, 1001, 70_001];
    let all: Vec<(String, DType, usize)> = DType::ALL
        .into_iter()
        .flat_map(|dtype| lengths.iter().enumerate().map(move |(i, len)| (format!("{dtype}-{i}"), dtype, *len)))
        .collect();
    for (key, dtype, len) in &all {
        store.init(key.clone(), &full(*dtype, *len, 3 + rank))?;
    }
    for (key, dtype, len) in &all {
        let out = Tensor::zeros(*dtype, &[*len]);
        store.pull(key.clone(), std::slice::from_ref(&out), 0)?;
        assert_all(&out, 3);
    }
    for round in 1..=3usize {
        let total: usize = (1..=workers).map(|rank| rank * round).sum();
        let outs: Vec<Tensor> = all.iter().map(|(_, dtype, len)| Tensor::zeros(*dtype, &[*len])).collect();
        for ((key, dtype, len), out) in all.iter().zip(&outs) {
            let value = full(*dtype, *len, (rank + 1) * round);
            match round {
                1 => {
                    store.push(key.clone(), &[value], 0)?;
                    store.pull(key.clone(), std::slice::from_ref(out), 0)?;
                }
                2 => store.push_pull(key.clone(), &[value], std::slice::from_ref(out), -(*len as i32))?,
                _ => {
                    out.write().copy_from(value.read()?.bytes());
                    store.push_pull(key.clone(), std::slice::from_ref(out), std::slice::from_ref(out), 0)?;
                }
            }
        }
        for out in &outs {
            assert_all(out, total);
        }
    }
    let two = [full(DType::F32, 1, 2), full(DType::F32, 1, 5)];
    let outs = [Tensor::zeros(DType::F32, &[1]), Tensor::zeros(DType::F32, &[1])];
    store.push_pull("f32-1", &two, &outs, 0)?;
    for out in &outs {
        assert_all(out, 7 * workers);
    }
    store.wait_all()?;
    store.barrier()?;
    assert!(store.stats().sent_bytes > 0 && store.stats().received_bytes > 0);
    Ok(())
}

fn optimizer(store: &KvStore) -> Result<()> {
    let workers = store.num_workers();
    store.init(1, &full(DType::F32, 5000, 100))?;
    let out = Tensor::zeros(DType::F32, &[5000]);
    let mut expected = 100;
    for rate in [1, 1, 3] {
        store.set_optimizer(&Optimizer::sgd(f64::from(rate)))?;
        store.push(1, &[full(DType::F32, 5000, 2)], rate)?;
        store.pull(1, std::slice::from_ref(&out), 0)?;
        expected -= rate as usize * 2 * workers;
        assert_all(&out, expected);
    }
    store.set_optimizer(&Optimizer { rule: Rule::Test, ..Optimizer::sgd(0.0) })?;
    store.push_pull(1, &[full(DType::F32, 5000, 1)], std::slice::from_ref(&out), 0)?;
    assert_all(&out, expected + workers);
    Ok(())
}

/// Collects optimizer states from the servers and sends them back.
fn states(store: &KvStore) -> Result<()> {
    let path = std::env::temp_dir().join(format!("ringpull-states-{}", std::process::id()));
    store.init("w", &full(DType::F32, 5000, 0))?;
    store.set_optimizer(&Optimizer::sgd(1.0))?;
    store.push("w", &[full(DType::F32, 5000, 1)], 0)?;
    store.save_optimizer_states(&path, true)?;
    store.barrier()?;
    store.load_optimizer_states(&path)?;
    let out = Tensor::zeros(DType::F32, &[5000]);
    store.push_pull("w", &[full(DType::F32, 5000, 1)], std::slice::from_ref(&out), 0)?;
    out.read()?;
    std::fs::remove_file(&path).unwrap();
    Ok(())
}

fn rows(store: &KvStore) -> Result<()> {
    let (rank, workers) = (store.rank() as i64, store.num_workers());
    let shape = [400, 3];
    store.init("e", &Tensor::full(DType::F32, &shape, 9.0))?;
    let ids = [rank, 399, rank];
    let value = RowSparse::new(&shape, &ids, Tensor::full(DType::F32, &[3, 3], 1.0))?;
    store.push_rows("e", &[value], 0)?;
    let got = store.pull_rows("e", &[399, 0, 200, 0], 0)?;
    assert_eq!(got.row_ids(), [0, 200, 399]);
    let mut expected = [2f32; 9];
    expected[3..6].fill(0.0);
    expected[6..].fill(workers as f32);
    assert_eq!(got.rows().to_vec::<f32>()?, expected);
    let out = Tensor::zeros(DType::F32, &shape);
    store.pull("e", std::slice::from_ref(&out), 0)?;
    assert_eq!(out.to_vec::<f32>()?.iter().sum::<f32>(), (workers * (6 + 3)) as f32);
    Ok(())
}

/// Ranks init and push in different orders. They push dense gradients, and more rows than fit in a window.
fn order(store: &KvStore) -> Result<()> {
    let names: Vec<String> = (0..20).map(|i| format!("layer{i}_weight")).collect();
    let mut mine: Vec<usize> = (0..20).collect();
    mine.rotate_left(store.rank() * 7);
    for i in &mine {
        store.init(names[*i].clone(), &full(DType::F32, 10 + i * 100, *i))?;
    }
    mine.rotate_left(3);
    let outs: Vec<Tensor> = (0..20).map(|i| Tensor::zeros(DType::F32, &[10 + i * 100])).collect();
    for i in &mine {
        store.pull(names[*i].clone(), std::slice::from_ref(&outs[*i]), 0)?;
        assert_all(&outs[*i], *i);
    }
    for i in &mine {
        let value = full(DType::F32, 10 + i * 100, *i);
        store.push_pull(names[*i].clone(), &[value], std::slice::from_ref(&outs[*i]), *i as i32)?;
    }
    (0..20).for_each(|i| assert_all(&outs[i], i * store.num_workers()));
    let shape = [2000, 64];
    let tables = ["first", "second", "third"].map(|table| (table, format!("dense beside the {table}")));
    for (table, dense) in &tables {
        store.init_row_sparse(*table, &Tensor::zeros(DType::F32, &shape))?;
        store.init(dense.clone(), &full(DType::F32, 300_000, 0))?;
    }
    let ids: Vec<i64> = (0..2000).collect();
    let mut mine = tables.each_ref();
    mine.rotate_left(store.rank());
    for (table, dense) in mine {
        let ones = Tensor::full(DType::F32, &shape, 1.0);
        store.push_rows(*table, &[RowSparse::new(&shape, &ids, ones)?], 0)?;
        store.push(dense.clone(), &[full(DType::F32, 300_000, 1)], 0)?;
    }
    for (table, dense) in mine {
        assert_all(store.pull_rows(*table, &ids, 0)?.rows(), store.num_workers());
        let out = full(DType::F32, 300_000, 0);
        store.pull(dense.clone(), std::slice::from_ref(&out), 0)?;
        assert_all(&out, store.num_workers());
    }
    Ok(())
}

/// A worker that pushes twice contributes to two rounds, not twice to one.
fn twice(store: &KvStore) -> Result<()> {
    store.init(0, &full(DType::F32, 4, 0))?;
    let outs = [Tensor::zeros(DType::F32, &[4]), Tensor::zeros(DType::F32, &[4])];
    if store.rank() == 0 {
        store.push_pull(0, &[full(DType::F32, 4, 1)], &outs[..1], 0)?;
        store.push_pull(0, &[full(DType::F32, 4, 10)], &outs[1..], 5)?;
        store.barrier()?;
    } else {
        store.barrier()?;
        store.push_pull(0, &[full(DType::F32, 4, 2)], &outs[..1], 0)?;
        store.push_pull(0, &[full(DType::F32, 4, 20)], &outs[1..], 0)?;
    }
    assert_all(&outs[0], 3);
    assert_all(&outs[1], 30);
    Ok(())
}

fn async_optimizer(store: &KvStore) -> Result<()> {
    store.init("w", &full(DType::F32, 3000, 100))?;
    store.set_optimizer(&Optimizer::sgd(1.0))?;
    let out = Tensor::zeros(DType::F32, &[3000]);
    for _ in 0..5 {
        store.push_pull("w", &[full(DType::F32, 3000, 1)], std::slice::from_ref(&out), 0)?;
    }
    assert!(out.to_vec::<f32>()?.iter().all(|value| *value <= 95.0));
    store.barrier()?;
    store.pull("w", std::slice::from_ref(&out), 0)?;
    assert_all(&out, 100 - 5 * store.num_workers());
    store.barrier()
}

fn async_bare(store: &KvStore) -> Result<()> {
    store.init("w", &full(DType::F32, 3, 1))?;
    let error = store.push("w", &[full(DType::F32, 3, 1)], 0).unwrap_err().to_string();
    assert!(error.contains("set_optimizer before the first push") && error.contains("\"w\""), "{error}");
    store.barrier()
}

/// Rank 1 never pushes.
fn lazy(store: &KvStore) -> Result<()> {
    store.init("late_key", &full(DType::F32, 5000, 0))?;
    if store.rank() == 1 {
        return until_told(store);
    }
    let out = Tensor::zeros(DType::F32, &[5000]);
    store.push_pull("late_key", &[full(DType::F32, 5000, 1)], std::slice::from_ref(&out), 0)?;
    out.read().map(drop)
}

/// Repeats large transfers until the test kills a process.
fn forever(store: &KvStore) -> Result<()> {
    let len = 2_000_000;
    store.init("big", &full(DType::F32, len, 0))?;
    let out = Tensor::zeros(DType::F32, &[len]);
    let start = Instant::now();
    for round in 0.. {
        store.push_pull("big", &[full(DType::F32, len, 1)], std::slice::from_ref(&out), 0)?;
        assert_all_or_fault(&out, store.num_workers())?;
        if round == 0 {
            println!("moving");
        }
        if start.elapsed() > Duration::from_secs(25) {
            break;
        }
    }
    Ok(())
}

fn assert_all_or_fault(out: &Tensor, value: usize) -> Result<()> {
    out.read()?;
    assert_all(out, value);
    Ok(())
}

fn panics(store: &KvStore) -> Result<()> {
    store.init(0, &full(DType::F32, 4, 0))?;
    store.barrier()?;
    assert!(store.rank() != 1, "rank 1 panics on purpose");
    until_fault(store)
}

/// Sums integers on the servers, without an optimizer.
fn ints(store: &KvStore) -> Result<()> {
    for (key, dtype) in [(1, DType::I8), (2, DType::I32)] {
        store.init(key, &full(dtype, 4, 1))?;
        let out = Tensor::zeros(dtype, &[4]);
        store.push_pull(key, &[full(dtype, 4, 2)], std::slice::from_ref(&out), 0)?;
        assert_all(&out, 2 * store.num_workers());
    }
    Ok(())
}

/// Rank 1 does not call the barrier.
fn barrier(store: &KvStore) -> Result<()> {
    if store.rank() == 1 {
        return until_told(store);
    }
    store.barrier()
}

/// Checks that a mistake on one rank alone is an error there, and that the job goes on.
fn local_errors(store: &KvStore) -> Result<()> {
    let ones = full(DType::F32, 4, 1);
    store.init("k", &ones)?;
    let rank = store.rank();
    let check = |result: Result<()>, words: &[&str]| {
        let text = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let at = format!("rank {rank}");
    check(store.pull("never", std::slice::from_ref(&ones), 0), &["\"never\"", &at, "init"]);
    check(store.push("never", std::slice::from_ref(&ones), 0), &["\"never\"", &at, "init"]);
    check(store.init("k", &ones), &["duplicate init", "\"k\""]);
    check(store.push("k", &[full(DType::F32, 5, 1)], 0), &["shape", &at]);
    check(store.push("k", &[full(DType::I8, 4, 1)], 0), &["dtype", &at]);
    check(store.push(7, std::slice::from_ref(&ones), 0), &["mixed key types"]);
    check(store.set_updater(Box::new(|_: &Key, _, _| Ok(()))), &["set_updater", "dist_sync"]);
    store.push("k", &[], 0)?;
    let out = Tensor::zeros(DType::F32, &[4]);
    store.push_pull("k", &[ones], std::slice::from_ref(&out), 0)?;
    assert_all(&out, store.num_workers());
    Ok(())
}

/// Pushes and pulls 25 MB several times. Rank 0 prints the median.
fn speed(store: &KvStore) -> Result<()> {
    let len = 6_250_000;
    store.init("big", &full(DType::F32, len, 0))?;
    let (value, out) = (full(DType::F32, len, 1), Tensor::zeros(DType::F32, &[len]));
    let mut samples = Vec::new();
    for _ in 0..9 {
        store.barrier()?;
        let start = Instant::now();
        store.push_pull("big", std::slice::from_ref(&value), std::slice::from_ref(&out), 0)?;
        out.read()?;
        store.barrier()?;
        samples.push(start.elapsed().as_secs_f64());
        assert_all(&out, store.num_workers());
    }
    samples.sort_by(f64::total_cmp);
    println!("seconds: median {:.4}, least {:.4}, most {:.4}", samples[4], samples[0], samples[8]);
    let (sent, received) = (store.stats().sent_bytes, store.stats().received_bytes);
    println!("seconds were for {} bytes sent and {} received each time", sent / 9, received / 9);
    // First one short key at a time, then many keys at once.
    for (keys, len) in [(1, 1), (160, 1000)] {
        let names: Vec<String> = (0..keys).map(|key| format!("{len}-{key}")).collect();
        let value = full(DType::F32, len, 1);
        let outs: Vec<Tensor> = names.iter().map(|_| Tensor::zeros(DType::F32, &[len])).collect();
        for name in &names {
            store.init(name.clone(), &value)?;
        }
        let mut samples = Vec::new();
        for _ in 0..1600 / keys {
            let start = Instant::now();
            for (name, out) in names.iter().zip(&outs) {
                store.push_pull(name.clone(), std::slice::from_ref(&value), std::slice::from_ref(out), 0)?;
            }
            for out in &outs {
                out.read()?;
            }
            samples.push(start.elapsed().as_secs_f64());
        }
        assert_all(&outs[0], store.num_workers());
        samples.sort_by(f64::total_cmp);
        let (median, least) = (samples[samples.len() / 2], samples[0]);
        println!("seconds for {keys} keys of {len}: median {median:.6}, least {least:.6}");
    }
    Ok(())
}
