//! The meaning of every operation, on bytes. The simulated platform runs it, and kernels are compared with
//! it.

use ringpull_base::half::{bf16, f16};
use ringpull_base::{Buffer, DType, Element, Error, Result};
use ringpull_kernels::compress::{Codec, Level};
use ringpull_kernels::optim::State;
use ringpull_kernels::reduce;

use super::kernels::ADDENDS;
use super::work::{CollectiveKind as Kind, Operation};

/// Returns the output of `operation` for these inputs and lengths of outputs.
pub fn compute(operation: &Operation, reads: Vec<Buffer>, lengths: &[usize]) -> Result<Vec<Buffer>> {
    Ok(match operation {
        Operation::Copy => reads,
        Operation::Zero => lengths.iter().map(|len| Buffer::zeroed(*len)).collect(),
        Operation::Sum(dtype) => vec![sum(*dtype, &reads)],
        Operation::Quantise2 { threshold } => encode(Codec::TwoBit { threshold: *threshold }, reads),
        Operation::AddDequantised2 { threshold } => decode_add(Codec::TwoBit { threshold: *threshold }, reads),
        Operation::Quantise1 { threshold } => encode(Codec::OneBit { threshold: *threshold }, reads),
        // Decoded values are 1 and -1 for any threshold.
        Operation::AddDequantised1 => decode_add(Codec::OneBit { threshold: 0.0 }, reads),
        Operation::DecodeSum { codec, count } => {
            let mut values = Buffer::zeroed(lengths.first().copied().unwrap_or(0));
            let sums = reads.first().map_or(&[][..], Buffer::bytes);
            codec.decode_sum_at(Level::Scalar, sums, *count, bytemuck::cast_slice_mut(values.bytes_mut()));
            vec![values]
        }
        Operation::Update { optimizer, dtype, updates } => {
            let mut parts = reads.into_iter();
            let (Some(gradient), Some(mut weight)) = (parts.next(), parts.next()) else {
                return Err(Error::bug("an update without a gradient or a weight"));
            };
            // Slots that no update has written are made by the first update, as on the host.
            let slots = if *updates == 0 { Vec::new() } else { parts.map(|slot| slot.bytes().to_vec()).collect() };
            let mut state = State { updates: *updates, slots };
            optimizer.apply(&mut state, *dtype, weight.bytes_mut(), gradient.bytes())?;
            std::iter::once(weight).chain(state.slots.iter().map(|slot| Buffer::copy_of(slot))).collect()
        }
    })
}

/// Returns the result of a collective on each device. `lengths` has the lengths of the results.
pub(super) fn collect(kind: Kind, dtype: DType, sends: &[Buffer], lengths: &[usize]) -> Vec<Buffer> {
    match kind {
        Kind::AllReduce | Kind::Reduce(_) => {
            let total = sum(dtype, sends);
            lengths.iter().map(|_| Buffer::copy_of(total.bytes())).collect()
        }
        Kind::Broadcast(root) => lengths.iter().map(|_| Buffer::copy_of(sends[root].bytes())).collect(),
        Kind::AllGather => {
            let all: Vec<u8> = sends.iter().flat_map(|part| part.bytes().to_vec()).collect();
            lengths.iter().map(|_| Buffer::copy_of(&all)).collect()
        }
        Kind::ReduceScatter => {
            let total = sum(dtype, sends);
            let part =
                |(device, len): (usize, &usize)| Buffer::copy_of(&total.bytes()[device * len..(device + 1) * len]);
            lengths.iter().enumerate().map(part).collect()
        }
    }
}

/// Returns the sum in the given order. f16 and bf16 are added in f32, up to [`ADDENDS`] at a time, and
/// rounded each time.
pub(super) fn sum(dtype: DType, addends: &[Buffer]) -> Buffer {
    match dtype {
        DType::F16 => in_launches::<f16>(addends, f16::to_f32, f16::from_f32),
        DType::BF16 => in_launches::<bf16>(addends, bf16::to_f32, bf16::from_f32),
        _ => {
            let mut total = Buffer::copy_of(addends.first().map_or(&[], Buffer::bytes));
            addends.iter().skip(1).for_each(|addend| reduce::add_assign(dtype, total.bytes_mut(), addend.bytes()));
            total
        }
    }
}

/// Sums in several launches. Each launch after the first adds to the rounded sum of the previous one.
fn in_launches<T: Element>(addends: &[Buffer], widen: fn(T) -> f32, narrow: fn(f32) -> T) -> Buffer {
    let (first, rest) = addends.split_at(addends.len().min(ADDENDS));
    let sum = widened(first, widen, narrow);
    rest.chunks(ADDENDS - 1).fold(sum, |sum, more| {
        let with_sum: Vec<Buffer> =
            std::iter::once(sum).chain(more.iter().map(|buffer| Buffer::copy_of(buffer.bytes()))).collect();
        widened(&with_sum, widen, narrow)
    })
}

fn widened<T: Element>(addends: &[Buffer], widen: fn(T) -> f32, narrow: fn(f32) -> T) -> Buffer {
    let slices: Vec<&[T]> = addends.iter().map(|addend| bytemuck::cast_slice(addend.bytes())).collect();
    let [first, others @ ..] = &slices[..] else { return Buffer::zeroed(0) };
    let mut total = Buffer::zeroed(size_of_val(*first));
    for (index, to) in bytemuck::cast_slice_mut::<u8, T>(total.bytes_mut()).iter_mut().enumerate() {
        *to = narrow(others.iter().fold(widen(first[index]), |sum, addend| sum + widen(addend[index])));
    }
    total
}

/// Returns the codes of gradient plus residual, and the new residual.
fn encode(codec: Codec, mut reads: Vec<Buffer>) -> Vec<Buffer> {
    let mut residual = reads.pop().unwrap_or_else(|| Buffer::zeroed(0));
    let gradient: &[f32] = reads.first().map_or(&[], |gradient| bytemuck::cast_slice(gradient.bytes()));
    let mut codes = Buffer::zeroed(codec.code_bytes(gradient.len()));
    codec.encode_at(Level::Scalar, gradient, bytemuck::cast_slice_mut(residual.bytes_mut()), codes.bytes_mut());
    vec![codes, residual]
}

fn decode_add(codec: Codec, mut reads: Vec<Buffer>) -> Vec<Buffer> {
    let mut sum = reads.pop().unwrap_or_else(|| Buffer::zeroed(0));
    let codes = reads.first().map_or(&[][..], Buffer::bytes);
    codec.decode_add_at(Level::Scalar, codes, bytemuck::cast_slice_mut(sum.bytes_mut()));
    vec![sum]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(buffer: &Buffer) -> Vec<f32> {
        bytemuck::cast_slice(buffer.bytes()).to_vec()
    }

    fn of(values: &[f32]) -> Buffer {
        Buffer::copy_of(bytemuck::cast_slice(values))
    }

    #[test]
    fn halves_are_rounded_once_a_launch() {
        // In f16, 2048 + 1 gives 2048. In f32 it does not.
        let addends = [2048.0, 1.0, 1.0].map(|value| Buffer::copy_of(&f16::from_f32(value).to_le_bytes()));
        assert_eq!(sum(DType::F16, &addends).bytes(), f16::from_f32(2050.0).to_le_bytes());
        // The ninth is added to the rounded sum of the first eight.
        let addends = [2048.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        let addends = addends.map(|value| Buffer::copy_of(&f16::from_f32(value).to_le_bytes()));
        assert_eq!(sum(DType::F16, &addends).bytes(), f16::from_f32(2048.0).to_le_bytes());
    }

    #[test]
    fn collectives_give_every_device_its_share() {
        let sends = [of(&[1.0, 2.0]), of(&[10.0, 20.0])];
        let got = |kind, lengths: &[usize]| -> Vec<Vec<f32>> {
            collect(kind, DType::F32, &sends, lengths).iter().map(floats).collect()
        };
        assert_eq!(got(Kind::ReduceScatter, &[4, 4]), [[11.0], [22.0]]);
        assert_eq!(got(Kind::AllGather, &[16, 16]), [[1.0, 2.0, 10.0, 20.0]; 2]);
        assert_eq!(got(Kind::Broadcast(1), &[8, 8]), [[10.0, 20.0]; 2]);
        assert_eq!(got(Kind::AllReduce, &[8, 8]), [[11.0, 22.0]; 2]);
    }
}
