//! The sums that every collective does, in cache and from memory.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use ringpull_base::{Buffer, DType};
use ringpull_kernels::reduce::add_assign;

fn sums(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("add_assign");
    for (place, len_bytes) in [("in cache", 64 << 10), ("from memory", 64 << 20)] {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::U8] {
            let (mut sum, other) = (Buffer::zeroed(len_bytes), Buffer::zeroed(len_bytes));
            group.throughput(Throughput::Bytes(len_bytes as u64));
            group.bench_function(BenchmarkId::new(dtype.to_string(), place), |bencher| {
                bencher.iter(|| add_assign(dtype, sum.bytes_mut(), other.bytes()));
            });
        }
    }
    group.finish();
}

criterion_group!(kernels, sums);
criterion_main!(kernels);
