//! Collectives, and ranks whose devices NCCL joins or that share devices. The contract suite, which
//! `scripts/gpu-check` runs too, tests a store on the devices of one process.

use std::sync::Arc;
use std::thread;

use ringpull::internal::{OnDevices, store_over};
use ringpull::{KvStore, create_on};
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, DType, Error, Kind, Result, Tensor};
use ringpull_device::{Collective, CollectiveKind, Devices, Slice, array_of};

use super::{GpuCheck, LIMIT, check};

/// The elements of a buffer: several segments of staging, and not a multiple of any size.
const LEN: usize = (2 << 20) / 4 + 3;

pub(super) fn checks(name: &str, devices: &Arc<Devices>) -> Vec<GpuCheck> {
    vec![collectives(devices), joined(name, devices.count())]
}

/// Checks two ranks with one GPU each, joined by NCCL. NCCL cannot join a GPU with itself.
fn joined(name: &str, count: usize) -> GpuCheck {
    let title = "dist_sync_mpi: 2 ranks whose devices sum by themselves (nccl)".to_owned();
    let config = Config { timeout: LIMIT, algorithm: AlgorithmChoice::Nccl, ..Config::default() };
    if name.starts_with("sim") {
        return check(title, share(&[name; 2], &config));
    }
    let named: Vec<&str> = name.trim_start_matches("cuda").trim_start_matches(':').split(',').collect();
    let of = |rank: usize| {
        named.get(rank).filter(|one| !one.is_empty()).map_or(format!("cuda:{rank}"), |one| format!("cuda:{one}"))
    };
    let (first, second) = (of(0), of(1));
    if count < 2 || first == second {
        return GpuCheck { name: title, found: "takes two GPUs".to_owned(), passed: None };
    }
    check(title, share(&[&first, &second], &config))
}

/// Checks each collective over all devices; one device is enough.
fn collectives(devices: &Arc<Devices>) -> GpuCheck {
    let name = format!("collectives over {} device(s)", devices.count());
    if !devices.platform().has_collectives() {
        return GpuCheck { name, found: "NCCL is not here, or a GPU was named twice".to_owned(), passed: None };
    }
    let count = devices.count();
    let run = || -> Result<String> {
        let of = |value: f64, len: usize| -> Result<Vec<Tensor>> {
            (0..count).map(|device| devices.upload(device, &Tensor::full(DType::F32, &[len], value))).collect()
        };
        let slices = |tensors: &[Tensor]| -> Vec<Slice> {
            tensors.iter().filter_map(|tensor| Some(array_of(tensor.remote())?.slice().clone())).collect()
        };
        let kinds = [
            (CollectiveKind::AllReduce, 64, 64, 2.0 * count as f32),
            (CollectiveKind::ReduceScatter, 64 * count, 64, 2.0 * count as f32),
            (CollectiveKind::AllGather, 64, 64 * count, 2.0),
            (CollectiveKind::Broadcast(count - 1), 64, 64, 2.0),
        ];
        for (kind, given, got, expected) in kinds {
            let (from, to) = (of(2.0, given)?, of(0.0, got)?);
            let call = Collective { kind, dtype: DType::F32, send: slices(&from), receive: slices(&to) };
            devices.collective(&[call])?;
            devices.drain(LIMIT)?;
            for tensor in &to {
                let seen = devices.download(tensor)?.to_vec::<f32>()?;
                expect(&format!("{kind:?}"), &seen, expected)?;
            }
        }
        Ok("every device has its share".to_owned())
    };
    check(name, run())
}

/// Trains with ranks that are threads, over the transport between threads. Each rank has the devices of its
/// name; the devices of several ranks may be on the same GPUs.
fn share(names: &[&str], config: &Config) -> Result<String> {
    let engines = Engine::in_process(names.len(), config)?;
    let counts = names.iter().map(|name| Ok(ringpull_device::open(name)?.count())).collect::<Result<Vec<_>>>()?;
    let running: Vec<_> = engines
        .into_iter()
        .zip(names)
        .map(|(engine, name)| {
            let (name, counts, config) = ((*name).to_owned(), counts.clone(), config.clone());
            thread::spawn(move || {
                let devices = ringpull_device::open(&name)?;
                let backend = OnDevices::over_ranks(Arc::clone(&devices), engine, LIMIT);
                train(&store_over(Kind::DistSyncMpi, Box::new(backend), &config), &devices, &counts)
            })
        })
        .collect();
    let lost = || Err(Error::argument("a rank panicked", "see its message above"));
    let outcomes = running.into_iter().map(|rank| rank.join().unwrap_or_else(|_| lost()));
    let (well, faults): (Vec<_>, Vec<_>) = outcomes.partition(Result::is_ok);
    // A lost peer is only the consequence of another rank's error.
    let cause = |outcome: &Result<String>| !matches!(outcome, Err(Error::PeerLost { .. } | Error::Stopped {}));
    let at = faults.iter().position(cause).unwrap_or(0);
    faults.into_iter().nth(at).or_else(|| well.into_iter().next()).unwrap_or_else(lost)
}

/// Runs one rank of an MPI job in which all ranks have the devices of this name. Collective.
pub(crate) fn rank_of_a_job(name: &str) -> Result<String> {
    let devices = ringpull_device::open(name)?;
    let store = create_on(Kind::DistSyncMpi.name(), &devices)?;
    let found = train(&store, &devices, &vec![devices.count(); store.num_workers()])?;
    Ok(format!("rank {} of {} on {name}: {found}", store.rank(), store.num_workers()))
}

/// Makes two pushes with momentum, of tensors on every device and of a tensor on one, and compares the values
/// with their closed form.
fn train(store: &KvStore, devices: &Devices, counts: &[usize]) -> Result<String> {
    let mine = (store.rank() + 1) as f64;
    store.init("w", &Tensor::full(DType::F32, &[LEN], 1.0))?;
    store.set_optimizer(&"sgd,lr=0.5,momentum=0.5".parse()?)?;
    let upload = |device: usize| devices.upload(device, &Tensor::full(DType::F32, &[LEN], mine));
    let values = (0..devices.count()).map(upload).collect::<Result<Vec<_>>>()?;
    store.push("w", &values, 0)?;
    store.push_pull("w", &values[..1], &values, 0)?;
    let sum = |each: &dyn Fn(usize) -> usize| -> f32 {
        counts.iter().enumerate().map(|(rank, count)| (each(*count) * (rank + 1)) as f32).sum()
    };
    let first = -0.5 * sum(&|count| count);
    let second = 0.5 * first - 0.5 * sum(&|_| 1);
    for value in &values {
        expect("push_pull", &devices.download(value)?.to_vec::<f32>()?, 1.0 + first + second)?;
    }
    store.wait_all()?;
    store.barrier()?;
    Ok("sums and updates are right on every device".to_owned())
}

fn expect(what: &str, seen: &[f32], expected: f32) -> Result<()> {
    match seen.iter().position(|value| *value != expected) {
        None => Ok(()),
        Some(index) => Err(Error::argument(
            format!("{what}: element {index} of {} is {} and must be {expected}", seen.len(), seen[index]),
            "the devices and the host must compute the same",
        )),
    }
}
