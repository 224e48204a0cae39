//! Tests that compressed gradients on simulated devices give the same bits as in host memory.

use std::slice::from_ref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringpull::KvStore;
use ringpull::internal::{OnDevices, store_over};
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::Config;
use ringpull_base::{DType, Kind, Result, Tensor};
use ringpull_device::{DeviceFault, Devices, Manner, Simulated};
use ringpull_kernels::compress::{Codec, Compression};

use crate::ranks;

fn config() -> Config {
    Config { timeout: Duration::from_secs(30), ..Config::default() }
}

/// The codecs that one key uses in turn. Residuals move from the devices to the host and back.
const CODECS: [&str; 9] =
    ["2bit:0.5", "2bit:0.3", "1bit:0.5", "fp16", "2bit:0.3", "topk:0.1", "topk:0.1", "1bit:0.2", "1bit:0.2"];

/// Returns the bits after every step of compressed pushes of `count` values. `place` puts a value in the
/// memory that the store expects.
fn compressed(store: &KvStore, count: usize, len: usize, place: impl Fn(usize, Tensor) -> Tensor) -> Vec<Vec<u32>> {
    let push = |step: usize| {
        let value = |value: usize| {
            let element = |at: usize| ((at * 31 + value * 13 + store.rank() * 17 + step * 7) % 23) as f32 / 9.0 - 1.3;
            place(value, Tensor::from_slice(&[len], &(0..len).map(element).collect::<Vec<f32>>()))
        };
        store.push("w", &(0..count).map(value).collect::<Vec<_>>(), 0).unwrap();
    };
    store.init("w", &Tensor::zeros(DType::F32, &[len])).unwrap();
    let step = |(step, codec): (usize, &&str)| {
        store.set_gradient_compression(&codec.parse().unwrap()).unwrap();
        push(step);
        let out = Tensor::zeros(DType::F32, &[len]);
        store.pull("w", from_ref(&out), 0).unwrap();
        out.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    };
    CODECS.iter().enumerate().map(step).collect()
}

/// Runs `work` as each of `counts.len()` ranks with these numbers of devices.
fn on_devices<T: Send>(counts: &[usize], work: impl Fn(&KvStore, &Devices, &Simulated) -> T + Sync) -> Vec<T> {
    let config = config();
    let engines = Engine::in_process(counts.len(), &config).unwrap();
    thread::scope(|scope| {
        let (config, work) = (&config, &work);
        let ranks: Vec<_> = engines
            .into_iter()
            .zip(counts)
            .map(|(engine, &count)| {
                scope.spawn(move || {
                    let platform = Simulated::new(count);
                    let devices = Devices::over(platform.clone(), config.timeout).unwrap();
                    let backend = OnDevices::over_ranks(Arc::clone(&devices), engine, config.timeout);
                    let store = store_over(Kind::DistSyncMpi, Box::new(backend), config);
                    let value = work(&store, &devices, &platform);
                    store.barrier().unwrap();
                    value
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn gradients_compressed_on_devices_have_the_hosts_bits() {
    let config = config();
    // With 9 elements no device has a block, with 70 some devices have a block, and with 100,003 all have
    // one.
    for (ranks, count, len) in [(2, 2, 9), (2, 2, 70), (2, 2, 100_003), (3, 4, 1009), (1, 2, 1009), (2, 1, 33)] {
        let on_host = ranks::workers(ranks, &config, |store| compressed(store, count, len, |_, value| value));
        let on_devices = on_devices(&vec![count; ranks], |store, devices, _| {
            compressed(store, count, len, |device, value| devices.upload(device, &value).unwrap())
        });
        for (rank, (host, device)) in on_host.iter().zip(&on_devices).enumerate() {
            for (step, codec) in CODECS.iter().enumerate() {
                assert!(host[step] == device[step], "rank {rank} of {ranks}, {len} elements, step {step} by {codec}");
            }
        }
    }
}

#[test]
fn only_codes_leave_the_devices_and_only_sums_of_codes_come_back() {
    let len = 10_000;
    for codec in [Codec::TwoBit { threshold: 0.5 }, Codec::OneBit { threshold: 0.5 }] {
        let each = on_devices(&[2, 3], |store, devices, platform| {
            store.init("w", &Tensor::zeros(DType::F32, &[len])).unwrap();
            store.set_gradient_compression(&Compression::Codec(codec)).unwrap();
            let tensor = devices.upload(1, &Tensor::full(DType::F32, &[len], 0.25)).unwrap();
            let mut last = (0, 0);
            for _ in 0..3 {
                let before = (platform.crossed_bytes(), platform.allocations());
                store.push("w", from_ref(&tensor), 0).unwrap();
                store.wait_all().unwrap();
                last = (platform.crossed_bytes() - before.0, platform.allocations() - before.1);
            }
            last
        });
        let bytes = codec.code_bytes(len) + codec.sum_bytes(len, 2);
        assert_eq!(each, [(bytes as u64, 0); 2], "{codec:?}");
    }
}

/// The error that one rank of a job got, and its store's results of later calls.
struct Outcome {
    met: Result<Vec<f32>>,
    after: Vec<Result<()>>,
    took: Duration,
}

/// Makes three compressed pushes on two ranks of two devices, where rank `who` has a fault. Returns every
/// rank's outcome, and the number of steps of `who`.
fn faulty(codec: Codec, (who, fault): (usize, DeviceFault), timeout: Duration) -> (Vec<Outcome>, u64) {
    let config = Config { timeout, ..Config::default() };
    let platforms = [0, 1].map(|rank| Simulated::faulty(2, Some(fault).filter(|_| rank == who)));
    let engines = Engine::in_process(2, &config).unwrap();
    let outcomes = thread::scope(|scope| {
        let ranks: Vec<_> = engines
            .into_iter()
            .zip(&platforms)
            .map(|(engine, platform)| {
                let config = &config;
                scope.spawn(move || one_of_two(&engine, platform, codec, config))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    (outcomes, platforms[who].steps())
}

fn one_of_two(engine: &Arc<Engine>, platform: &Arc<Simulated>, codec: Codec, config: &Config) -> Outcome {
    let start = Instant::now();
    let opened = Devices::over(platform.clone(), config.timeout);
    let devices = match opened {
        Ok(devices) => devices,
        Err(cause) => {
            engine.give_up();
            return Outcome { met: Err(cause), after: Vec::new(), took: start.elapsed() };
        }
    };
    let backend = OnDevices::over_ranks(Arc::clone(&devices), Arc::clone(engine), config.timeout);
    let store = store_over(Kind::DistSyncMpi, Box::new(backend), config);
    let steps = || -> Result<Vec<f32>> {
        store.init("w", &Tensor::zeros(DType::F32, &[100]))?;
        store.set_gradient_compression(&Compression::Codec(codec))?;
        let tensor = devices.upload(1, &Tensor::full(DType::F32, &[100], 0.75))?;
        (0..3).try_for_each(|_| store.push("w", from_ref(&tensor), 0))?;
        let out = Tensor::zeros(DType::F32, &[100]);
        store.pull("w", from_ref(&out), 0)?;
        // This download waits for the work that is queued on the tensor's stream. The other rank learns of
        // errors before the barrier.
        devices.download(&tensor)?;
        store.barrier()?;
        out.to_vec::<f32>()
    };
    let met = steps();
    let took = start.elapsed();
    let after = if met.is_err() {
        engine.give_up();
        let value = Tensor::zeros(DType::F32, &[100]);
        let pulled = Tensor::zeros(DType::F32, &[100]);
        vec![
            store.init("other", &value),
            store.push("w", from_ref(&value), 0),
            store.pull("w", from_ref(&pulled), 0),
            store.barrier(),
        ]
    } else {
        vec![store.barrier()]
    };
    Outcome { met, after, took }
}

/// The codecs that encode on the devices (`2bit`, `1bit`), and the codec that passes through the host
/// (`fp16`).
const ENCODED: [Codec; 3] = [Codec::TwoBit { threshold: 0.5 }, Codec::OneBit { threshold: 0.5 }, Codec::Fp16];

#[test]
fn every_rank_meets_a_fault_at_any_step_of_a_compressed_push_and_its_store_refuses_from_then_on() {
    for codec in ENCODED {
        for manner in [Manner::Returned, Manner::Later] {
            meet_faults(codec, manner, Duration::from_secs(20));
        }
        meet_faults(codec, Manner::Never, Duration::from_millis(500));
    }
}

fn meet_faults(codec: Codec, manner: Manner, timeout: Duration) {
    let nowhere = (1, DeviceFault { step: u64::MAX, manner });
    let (well, steps) = faulty(codec, nowhere, Duration::from_secs(30));
    for outcome in well {
        assert!(outcome.met.unwrap().iter().all(|value| *value != 0.0) && outcome.after.iter().all(Result::is_ok));
    }
    // The last 4 steps come after the last value was read.
    let faults: Vec<DeviceFault> = (0..steps - 4).map(|step| DeviceFault { step, manner }).collect();
    for faults in faults.chunks(16) {
        thread::scope(|scope| {
            for fault in faults {
                scope.spawn(move || {
                    let (outcomes, _) = faulty(codec, (1, *fault), timeout);
                    for (rank, outcome) in outcomes.into_iter().enumerate() {
                        let text = outcome.met.expect_err(&format!("rank {rank}, {codec:?}, {fault:?}")).to_string();
                        let known = ["injected at step", "rank 1", "rank(s) [1]", "aborted", "was not done"];
                        assert!(
                            known.iter().any(|word| text.contains(word)),
                            "rank {rank}, {codec:?}, {fault:?}: {text}"
                        );
                        let late = outcome.took > timeout.max(Duration::from_secs(10));
                        assert!(!late, "rank {rank}, {codec:?}, {fault:?}: {:?}", outcome.took);
                        assert!(outcome.after.iter().all(Result::is_err), "rank {rank}, {codec:?}, {fault:?} goes on");
                    }
                });
            }
        });
    }
}
