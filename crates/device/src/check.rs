//! Compares every operation on a device, byte by byte, with `reference`. `ringpull doctor --gpu` runs this on
//! a GPU.

use std::sync::Arc;
use std::time::Duration;

use ringpull_base::{Buffer, DType, Element, Error, Result, with_element};
use ringpull_kernels::compress::Codec;
use ringpull_kernels::optim::{Optimizer, Rule};

use super::devices::Devices;
use super::handle::{Memory, Slice};
use super::reference::compute;
use super::work::{Operation, Work};

/// The device that works.
const FIRST: usize = 0;
/// The time limit of an operation.
const LIMIT: Duration = Duration::from_secs(30);
/// Numbers of elements: one, and some that are not a multiple of a block.
const LENGTHS: [usize; 3] = [1, 37, 1000];
/// More than one wave of blocks on any GPU.
const LONG: usize = (1 << 20) + 3;

/// Returns the outcome of each check with its name. Buffers have few elements. On devices that are not
/// simulated, some buffers have slightly more than `bytes` bytes.
pub fn check_operations(devices: &Arc<Devices>, bytes: usize) -> Vec<(String, Result<()>)> {
    let mut lengths = LENGTHS.to_vec();
    if devices.platform().name() != "sim" {
        lengths.push(LONG.min(bytes / 4 + 3));
    }
    let len = 10_007.min(bytes / 4 + 3);
    let mut checks = Vec::new();
    for dtype in DType::ALL {
        let outcome = lengths.iter().try_for_each(|&len| {
            [1, 2, 3, 8, 11].into_iter().try_for_each(|count| {
                let reads: Vec<Buffer> = (0..count).map(|seed| pattern(dtype, len, seed)).collect();
                compare(devices, &Operation::Sum(dtype), &reads, &[len * dtype.size_bytes()])
            })
        });
        checks.push((format!("sum of {dtype}"), outcome));
    }
    checks.push(("packing of a bucket".to_owned(), packing(devices)));
    for operation in [Operation::Quantise2 { threshold: 0.5 }, Operation::Quantise1 { threshold: 0.5 }] {
        checks.push((format!("{operation:?}"), codec(devices, &operation, &lengths)));
    }
    for rule in Rule::EXAMPLES {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for mastered in [false, true] {
                if mastered && matches!(dtype, DType::F32 | DType::F64) {
                    continue;
                }
                let copy = if mastered { " with a master copy" } else { "" };
                checks.push((format!("{rule} on {dtype}{copy}"), update(devices, rule, dtype, mastered, len)));
            }
        }
    }
    checks
}

fn packing(devices: &Arc<Devices>) -> Result<()> {
    // There are more buffers than one launch takes, of unaligned lengths.
    let lengths: Vec<usize> = (0..40).map(|index| (index * index * 31) % 9000 + 1).collect();
    let reads: Vec<Buffer> = lengths.iter().enumerate().map(|(seed, len)| pattern(DType::U8, *len, seed)).collect();
    compare(devices, &Operation::Copy, &reads, &lengths)
}

fn codec(devices: &Arc<Devices>, quantise: &Operation, lengths: &[usize]) -> Result<()> {
    for &len in lengths {
        let (per_word, add) = match quantise {
            Operation::Quantise2 { threshold } => (16, Operation::AddDequantised2 { threshold: *threshold }),
            _ => (32, Operation::AddDequantised1),
        };
        let (gradient, residual) = (pattern(DType::F32, len, 1), pattern(DType::F32, len, 2));
        let codes_bytes = len.div_ceil(per_word) * 4;
        let reads = vec![Buffer::copy_of(gradient.bytes()), Buffer::copy_of(residual.bytes())];
        compare(devices, quantise, &reads, &[codes_bytes, len * 4])?;
        let written = compute(quantise, vec![gradient, residual], &[codes_bytes, len * 4])?;
        compare(devices, &add, &[Buffer::copy_of(written[0].bytes()), pattern(DType::F32, len, 3)], &[len * 4])?;
        let codec = match quantise {
            Operation::Quantise2 { threshold } => Codec::TwoBit { threshold: *threshold },
            _ => Codec::OneBit { threshold: 0.5 },
        };
        for count in [1, 2, 8] {
            let mut sums = Buffer::zeroed(codec.sum_bytes(len, count));
            codec.sum(&vec![written[0].bytes(); count], len, sums.bytes_mut());
            compare(devices, &Operation::DecodeSum { codec, count }, &[sums], &[len * 4])?;
        }
    }
    Ok(())
}

fn update(devices: &Arc<Devices>, rule: &str, dtype: DType, mastered: bool, len: usize) -> Result<()> {
    let optimizer: Arc<Optimizer> = Arc::new(format!("{rule},multi_precision={}", u8::from(mastered)).parse()?);
    let real = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (weight_bytes, slot_bytes) = (len * dtype.size_bytes(), len * real.size_bytes());
    for updates in [0, 3] {
        let operation = Operation::Update { optimizer: Arc::clone(&optimizer), dtype, updates };
        let mut reads = vec![values(dtype, len, 4, |value| value / 8.0), values(dtype, len, 5, |value| value / 8.0)];
        let mut lengths = vec![weight_bytes];
        for slot in 0..optimizer.slots(dtype) {
            // Before the first update the slots are zero. A variance is not negative: the first slot may be
            // the mean of squares, which is more than the square of the mean in the others.
            let of = if slot == 0 { |value: f64| value.abs() + 1.0 } else { |value: f64| value.abs() / 1024.0 };
            let filled = if updates == 0 { Buffer::zeroed(slot_bytes) } else { values(real, len, slot, of) };
            reads.push(filled);
            lengths.push(slot_bytes);
        }
        compare(devices, &operation, &reads, &lengths)?;
    }
    Ok(())
}

/// Runs `operation` on a device and on the host. The memory is at the start of an allocation, and then four
/// elements behind the start.
fn compare(devices: &Arc<Devices>, operation: &Operation, reads: &[Buffer], lengths: &[usize]) -> Result<()> {
    for offset in [0, 8] {
        let given: Vec<Buffer> = reads.iter().map(|read| Buffer::copy_of(read.bytes())).collect();
        let got = on_device(devices, operation, &given, lengths, offset)?;
        let wanted = compute(operation, given, lengths)?;
        for (index, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
            let differs = got.bytes().iter().zip(wanted.bytes()).position(|(a, b)| a != b);
            if let Some(byte) = differs.or((got.bytes().len() != wanted.bytes().len()).then_some(0)) {
                let what = format!("{operation:?} of {lengths:?} bytes at offset {offset}");
                return Err(Error::argument(
                    format!("{what}: result {index} differs from byte {byte} on"),
                    "the kernel and the reference must give the same bits",
                ));
            }
        }
    }
    Ok(())
}

fn on_device(
    devices: &Devices,
    operation: &Operation,
    reads: &[Buffer],
    lengths: &[usize],
    offset: usize,
) -> Result<Vec<Buffer>> {
    let (platform, device) = (devices.platform(), FIRST);
    let lane = devices.lane(device);
    let place = |len: usize| Ok(Slice::all(&Memory::on(platform, device, len + offset)?).part(offset..len + offset));
    let mut kept = Vec::new();
    let mut inputs = Vec::new();
    for read in reads {
        let (staging, slice) = (pinned(devices, read.bytes().len())?, place(read.bytes().len())?);
        staging.host_bytes_mut()?.copy_from_slice(read.bytes());
        platform.enqueue(lane, &Work::copy(staging.clone(), slice.clone()))?;
        kept.push(staging);
        inputs.push(slice);
    }
    // Memory that is changed in place is among both reads and writes.
    let outputs = match operation {
        Operation::Quantise2 { .. } | Operation::Quantise1 { .. } => vec![place(lengths[0])?, inputs[1].clone()],
        Operation::AddDequantised2 { .. } | Operation::AddDequantised1 => vec![inputs[1].clone()],
        Operation::Update { .. } => inputs[1..].to_vec(),
        _ => lengths.iter().map(|len| place(*len)).collect::<Result<Vec<_>>>()?,
    };
    platform.enqueue(lane, &Work { operation: operation.clone(), reads: inputs, writes: outputs.clone() })?;
    let results = outputs.iter().map(|output| {
        let staging = pinned(devices, output.len_bytes())?;
        platform.enqueue(lane, &Work::copy(output.clone(), staging.clone())).map(|()| staging)
    });
    let results = results.collect::<Result<Vec<_>>>()?;
    lane.record()?.synchronize(LIMIT)?;
    results.iter().map(|result| Ok(Buffer::copy_of(&result.host_bytes()?))).collect()
}

fn pinned(devices: &Devices, len_bytes: usize) -> Result<Slice> {
    Ok(Slice::all(&Memory::pinned(devices.platform(), len_bytes)?).part(0..len_bytes))
}

/// Returns values of many magnitudes, with a different series for each `seed`.
fn value(index: usize, seed: usize) -> f64 {
    let noise = (index * 2_654_435_761 + seed * 40_503) % 65_521;
    (noise as f64 / 65_521.0 - 0.5) * [0.01, 1.0, 3.0, 100.0][(index + seed) % 4]
}

/// Returns the results of `of` for such values.
fn values(dtype: DType, len: usize, seed: usize, of: fn(f64) -> f64) -> Buffer {
    with_element!(dtype, T => {
        let values: Vec<T> = (0..len).map(|index| <T as Element>::from_f64(of(value(index, seed)))).collect();
        Buffer::copy_of(bytemuck::cast_slice(&values))
    })
}

fn pattern(dtype: DType, len: usize, seed: usize) -> Buffer {
    values(dtype, len, seed, |value| value)
}
