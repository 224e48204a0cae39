//! The programs of jobs in which one worker differs from the other workers.

use std::time::{Duration, Instant};

use ringpull::KvStore;
use ringpull_base::{DType, Result};
use ringpull_kernels::optim::Optimizer;

use crate::cases::full;
use crate::job::LIMIT;

/// Rank 1 has another shape. No rank makes a call that waits for other ranks.
pub(crate) fn shapes(store: &KvStore) -> Result<()> {
    store.init("odd_one", &full(DType::F32, if store.rank() == 1 { 8 } else { 6 }, 0))?;
    for key in 0..2000 {
        store.init(format!("key {key}"), &full(DType::F32, 1, 0))?;
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Ok(())
}

/// Each rank waits for a key that no other rank has called. The limits are the defaults.
pub(crate) fn deadlock(store: &KvStore) -> Result<()> {
    let key = |rank: usize| format!("of rank {rank}");
    (0..store.num_workers()).try_for_each(|rank| store.init(key(rank), &full(DType::F32, 1000, 0)))?;
    let value = full(DType::F32, 1000, 1);
    let both = std::slice::from_ref(&value);
    store.push_pull(key(store.rank()), both, both, 0)?;
    value.to_vec::<f32>().map(drop)
}

/// Rank 1 has another dtype.
pub(crate) fn dtypes(store: &KvStore) -> Result<()> {
    store.init("odd_one", &full(if store.rank() == 1 { DType::F64 } else { DType::F32 }, 6, 0))?;
    until_fault(store)
}

/// Rank 1 has another learning rate.
pub(crate) fn optimizers(store: &KvStore) -> Result<()> {
    store.init("weight", &full(DType::F32, 6, 0))?;
    store.set_optimizer(&Optimizer::sgd(if store.rank() == 1 { 0.5 } else { 0.25 }))?;
    store.push("weight", &[full(DType::F32, 6, 1)], 0)?;
    until_told(store)
}

/// Rank 0 pushes twice and pulls. The other ranks push once.
pub(crate) fn uneven(store: &KvStore) -> Result<()> {
    store.init("uneven_key", &full(DType::F32, 6, 0))?;
    store.push("uneven_key", &[full(DType::F32, 6, 1)], 0)?;
    if store.rank() != 0 {
        return until_told(store);
    }
    let out = full(DType::F32, 6, 1);
    store.push_pull("uneven_key", std::slice::from_ref(&out), std::slice::from_ref(&out), 0)?;
    out.read().map(drop)
}

/// Rank 1 ends with success while the other ranks go on.
pub(crate) fn ends_early(store: &KvStore) -> Result<()> {
    store.init("next_key", &full(DType::F32, 6, 0))?;
    store.barrier()?;
    if store.rank() == 1 {
        return Ok(());
    }
    let out = full(DType::F32, 6, 1);
    store.push_pull("next_key", std::slice::from_ref(&out), std::slice::from_ref(&out), 0)?;
    out.read().map(drop)
}

/// Rank 1 ends with success. Rank 0 ends with a push that needs rank 1, without waiting for the push.
pub(crate) fn ends_with_a_push(store: &KvStore) -> Result<()> {
    store.init("next_key", &full(DType::F32, 6, 0))?;
    store.barrier()?;
    if store.rank() == 0 {
        let out = full(DType::F32, 6, 1);
        store.push_pull("next_key", std::slice::from_ref(&out), std::slice::from_ref(&out), 0)?;
    }
    Ok(())
}

/// Rank 1 gives a value that does not fit, and ends with or without a goodbye.
pub(crate) fn ends_by_error(store: &KvStore, case: &str) -> Result<()> {
    store.init("next_key", &full(DType::F32, 6, 0))?;
    store.barrier()?;
    let out = full(DType::F32, if store.rank() == 1 { 7 } else { 6 }, 1);
    let outcome = store.push_pull("next_key", std::slice::from_ref(&out), std::slice::from_ref(&out), 0);
    if store.rank() == 1 && case == "exits_after_error" {
        // Another thread sends the error. A process that exits at once may end before the error is sent.
        std::thread::park_timeout(Duration::from_millis(500));
        std::process::exit(4);
    }
    outcome.and_then(|()| out.read().map(drop))
}

pub(crate) fn until_fault(store: &KvStore) -> Result<()> {
    store.barrier()?;
    until_told(store)
}

/// Waits until the store reports a fault, and makes no other call.
pub(crate) fn until_told(store: &KvStore) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        store.wait_all()?;
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Ok(())
}
