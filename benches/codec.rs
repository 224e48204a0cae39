//! The codecs' rates on one core, by level of instructions: first a table in GB/s of floats, then criterion's
//! own report. The table begins with what plain loops reach on the same memory: an encoder reads two arrays
//! and writes one of them, `decode-add` reads and writes one.
//!
//!     cargo bench --bench codec               from memory: 128 MB of floats, more than the caches hold
//!     cargo bench --bench codec -- --test     each once, to see that they run

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput};

use ringpull_base::DType;
use ringpull_kernels::compress::{Codec, Compression, Level};
use ringpull_kernels::reduce::add_assign;

/// Floats that are coded: 128 MB.
const LEN: usize = 32 << 20;
/// Ranks whose codes are added up.
const RANKS: usize = 8;

struct CodecBuffers {
    gradient: Vec<f32>,
    residual: Vec<f32>,
    code: Vec<u8>,
    sums: Vec<u8>,
}

impl CodecBuffers {
    fn new() -> Self {
        // Random in (-1, 1): branches on such values are not predicted.
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let gradient = (0..LEN).map(|_| next()).collect();
        CodecBuffers { gradient, residual: vec![0.0; LEN], code: vec![0; 2 * LEN], sums: vec![0; 2 * LEN] }
    }
}

/// The measured steps. `decode-add` adds to the residual, in place of a sum, and `decode sum` writes to it.
const STEPS: [&str; 4] = ["encode", "decode-add", "sum of 8", "decode sum"];

fn run(step: &str, codec: Codec, level: Level, buffers: &mut CodecBuffers) {
    let code = &mut buffers.code[..codec.code_bytes(LEN)];
    let sums = &mut buffers.sums[..codec.sum_bytes(LEN / RANKS, RANKS)];
    match step {
        "encode" => codec.encode_at(level, &buffers.gradient, &mut buffers.residual, code),
        "decode-add" => codec.decode_add_at(level, code, &mut buffers.residual),
        "sum of 8" => {
            // Each rank's codes of one part, as its owner has them.
            let each = codec.code_bytes(LEN / RANKS);
            let codes: Vec<&[u8]> = code.chunks_exact(each).take(RANKS).collect();
            codec.sum_at(level, &codes, LEN / RANKS, sums);
        }
        _ => {
            for part in buffers.residual.chunks_exact_mut(LEN / RANKS) {
                codec.decode_sum_at(level, sums, RANKS, part);
            }
        }
    }
}

fn codecs() -> [(&'static str, Codec); 4] {
    ["2bit", "1bit", "bf16", "fp16"].map(|name| match name.parse() {
        Ok(Compression::Codec(codec)) => (name, codec),
        other => panic!("{name} is {other:?}"),
    })
}

/// The rate of `work` on all floats, in GB/s.
fn rate(rounds: usize, buffers: &mut CodecBuffers, work: impl Fn(&mut CodecBuffers)) -> f64 {
    let mut seconds: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            work(buffers);
            black_box(&buffers.residual[0]);
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    (4 * LEN) as f64 / 1e9 / seconds[rounds / 2]
}

fn add(buffers: &mut CodecBuffers) {
    add_assign(DType::F32, bytemuck::cast_slice_mut(&mut buffers.residual), bytemuck::cast_slice(&buffers.gradient));
}

fn negate(buffers: &mut CodecBuffers) {
    buffers.residual.iter_mut().for_each(|value| *value = -*value);
}

fn table(buffers: &mut CodecBuffers, rounds: usize) {
    println!("GB/s of floats on one core, from memory: median of {rounds}");
    let (added, negated) = (rate(rounds, buffers, add), rate(rounds, buffers, negate));
    buffers.residual.fill(0.0);
    println!("plain loops    a += b {added:6.2}  a = -a     {negated:6.2}");
    for (name, codec) in codecs() {
        for level in Level::available() {
            let mut line = format!("{name:<5} {:<8}", format!("{level:?}").to_lowercase());
            for step in STEPS {
                let rate = rate(rounds, buffers, |buffers| run(step, codec, level, buffers));
                let _ = write!(line, "  {step} {rate:6.2}");
            }
            println!("{line}");
        }
    }
}

fn main() {
    let mut buffers = CodecBuffers::new();
    let is_test = std::env::args().any(|argument| argument == "--test");
    table(&mut buffers, if is_test { 1 } else { 7 });
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    for (name, codec) in codecs() {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(4 * LEN as u64));
        for step in STEPS {
            for level in Level::available() {
                group.bench_function(BenchmarkId::new(step, format!("{level:?}")), |bencher| {
                    bencher.iter(|| run(step, codec, level, &mut buffers));
                });
            }
        }
        group.finish();
    }
    criterion.final_summary();
}
