//! The computing before a collective: its plan, its messages, and `auto`'s choice.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

use ringpull_base::DType;
use ringpull_plan::{Algorithm, Model, Schedule, Segments, allreduce, choose};

fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    for algorithm in Algorithm::ALL {
        for size in [8, 64, 1000] {
            group.bench_function(BenchmarkId::new(algorithm.name(), size), |bencher| {
                bencher.iter(|| allreduce(algorithm, black_box(size / 2), size, 25_000_000));
            });
        }
    }
    group.finish();
}

fn schedules(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schedule");
    for len in [1, 25_000_000] {
        let plan = allreduce(Algorithm::Ring, 3, 8, len);
        group.bench_function(BenchmarkId::new("ring of 8", len), |bencher| {
            bencher.iter(|| Schedule::of(black_box(&plan), DType::F32, 64 << 10));
        });
    }
    group.finish();
}

fn choices(criterion: &mut Criterion) {
    let segments = Segments { most_bytes: 256 << 10, is_fixed: false };
    criterion.bench_function("choose", |bencher| {
        bencher.iter(|| choose(&Model::default(), black_box(1 << 20), 8, segments));
    });
}

criterion_group!(before, plans, schedules, choices);
criterion_main!(before);
