//! Whole allreduces over the threads of one process: what agreement, interpreter and sums cost where the wire
//! costs nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, DType, Tensor};
use ringpull_plan::Algorithm;

const RANKS: usize = 4;

/// The time of `iters` allreduces on the comm threads of all ranks.
fn timed(engines: &[Arc<Engine>], algorithm: Algorithm, len_bytes: usize, iters: u64) -> Duration {
    let one = |engine: &Arc<Engine>| {
        let memory = Tensor::zeros(DType::F32, &[len_bytes / 4]);
        let work = move |comm: &mut Communicator, stamp: u32| {
            let start = Instant::now();
            for _ in 0..iters {
                comm.allreduce_tensor(AlgorithmChoice::Plan(algorithm), &memory, stamp)?;
            }
            Ok(start.elapsed())
        };
        engine.collective("bench", work).expect("threads of one process do not fail")
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = engines.iter().map(|engine| scope.spawn(|| one(engine))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).max().expect("there are ranks")
    })
}

fn collectives(criterion: &mut Criterion) {
    let engines = Engine::in_process(RANKS, &Config::default()).expect("threads can be had");
    let mut group = criterion.benchmark_group("allreduce in process");
    group.sample_size(10);
    for len_bytes in [4, 64 << 10, 4 << 20] {
        for algorithm in Algorithm::ALL {
            group.throughput(Throughput::Bytes(len_bytes as u64));
            group.bench_function(BenchmarkId::new(algorithm.name(), len_bytes), |bencher| {
                bencher.iter_custom(|iters| timed(&engines, algorithm, len_bytes, iters));
            });
        }
    }
    group.finish();
}

criterion_group!(in_process, collectives);
criterion_main!(in_process);
