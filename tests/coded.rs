//! Compressed gradients on simulated devices, against the same gradients in host memory.

mod ranks;

use std::slice::from_ref;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ringpull::compress::{Codec, Compression};
use ringpull::config::Config;
use ringpull::device::{Devices, Simulated};
use ringpull::progress::Engine;
use ringpull::store::KvStore;
use ringpull::store::on_devices::OnDevices;
use ringpull::{DType, Kind, Tensor};

fn config() -> Config {
    Config { timeout: Duration::from_secs(30), ..Config::default() }
}

/// One after the other on one key: residuals go from the devices to the host and back.
const CODECS: [&str; 9] =
    ["2bit:0.5", "2bit:0.3", "1bit:0.5", "fp16", "2bit:0.3", "topk:0.1", "topk:0.1", "1bit:0.2", "1bit:0.2"];

/// The bits that every step of compressed pushes of `count` values gives; `place` puts a value where the store wants it.
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
                    let store = KvStore::over(Kind::DistSyncMpi, Box::new(backend), config);
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
    // Of 9 no device has a block, of 70 some have, of 100,003 all.
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
