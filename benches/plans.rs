//! What is computed before a collective: its plan, and `auto`'s choice.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ringpull::collective::{Algorithm, Model, Segments, allreduce, choose};

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

fn choices(criterion: &mut Criterion) {
    let segments = Segments { most_bytes: 256 << 10, is_fixed: false };
    criterion.bench_function("choose", |bencher| {
        bencher.iter(|| choose(&Model::default(), black_box(1 << 20), 8, segments));
    });
}

criterion_group!(before, plans, choices);
criterion_main!(before);
