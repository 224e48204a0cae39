//! The computing of collectives: their lengths, and the sum in the order of the ranks. A float16 or bfloat16
//! sum is rounded after every addition, as in a ring, where each rank adds its own value to the one that
//! arrives.

use std::ffi::c_int;

use half::{bf16, f16};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementKind {
    ReduceScatter,
    AllGather,
    AllReduce,
    Reduce,
    Broadcast,
}

impl ElementKind {
    pub(super) const ALL: [ElementKind; 5] = [
        ElementKind::ReduceScatter,
        ElementKind::AllGather,
        ElementKind::AllReduce,
        ElementKind::Reduce,
        ElementKind::Broadcast,
    ];

    /// The bytes that a rank sends and receives in a call whose count amounts to `len` bytes.
    pub(super) fn lengths(self, len: usize, size: usize) -> (usize, usize) {
        match self {
            ElementKind::ReduceScatter => (len * size, len),
            ElementKind::AllGather => (len, len * size),
            _ => (len, len),
        }
    }

    pub(super) fn gives(self, rank: usize, root: usize) -> bool {
        self != ElementKind::Broadcast || rank == root
    }

    pub(super) fn gets(self, rank: usize, root: usize) -> bool {
        self != ElementKind::Reduce || rank == root
    }

    /// Returns the bytes that rank `rank` receives if the ranks have given `given`.
    pub(super) fn result(self, dtype: c_int, given: &[&[u8]], root: usize, rank: usize) -> Vec<u8> {
        match self {
            ElementKind::AllReduce | ElementKind::Reduce => sum(dtype, given),
            ElementKind::ReduceScatter => {
                let part = given[0].len() / given.len();
                let parts: Vec<&[u8]> = given.iter().map(|bytes| &bytes[rank * part..(rank + 1) * part]).collect();
                sum(dtype, &parts)
            }
            ElementKind::AllGather => given.concat(),
            ElementKind::Broadcast => given[root].to_vec(),
        }
    }
}

/// The bytes of an element, for the types that ringpull uses.
pub(super) fn size_of(dtype: c_int) -> Option<usize> {
    Some(match dtype {
        0 | 1 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

fn sum(dtype: c_int, given: &[&[u8]]) -> Vec<u8> {
    macro_rules! of {
        ($type:ty, $add:expr) => {{
            let add: fn($type, $type) -> $type = $add;
            added::<{ std::mem::size_of::<$type>() }>(given, |a, b| {
                add(<$type>::from_le_bytes(a), <$type>::from_le_bytes(b)).to_le_bytes()
            })
        }};
    }
    match dtype {
        0 | 1 => of!(u8, u8::wrapping_add),
        2 | 3 => of!(u32, u32::wrapping_add),
        4 | 5 => of!(u64, u64::wrapping_add),
        6 => of!(f16, |a, b| f16::from_f32(a.to_f32() + b.to_f32())),
        7 => of!(f32, |a, b| a + b),
        8 => of!(f64, |a, b| a + b),
        _ => of!(bf16, |a, b| bf16::from_f32(a.to_f32() + b.to_f32())),
    }
}

fn added<const SIZE: usize>(given: &[&[u8]], add: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE]) -> Vec<u8> {
    let mut total = given[0].to_vec();
    for other in &given[1..] {
        for (to, from) in total.as_chunks_mut::<SIZE>().0.iter_mut().zip(other.as_chunks::<SIZE>().0) {
            *to = add(*to, *from);
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_its_share_in_every_type() {
        let [one, two] = [[1.5f32, 2.0], [0.5, 4.0]].map(|values| values.map(f32::to_le_bytes).concat());
        let given: [&[u8]; 2] = [&one, &two];
        assert_eq!(ElementKind::ReduceScatter.result(7, &given, 0, 1), 6f32.to_le_bytes());
        assert_eq!(ElementKind::AllReduce.result(7, &given, 0, 0), [2f32, 6.0].map(f32::to_le_bytes).concat());
        assert_eq!(ElementKind::AllGather.result(7, &given, 0, 0), [&one[..], &two].concat());
        assert_eq!(ElementKind::Broadcast.result(7, &given, 1, 0), two);
        let halves = [f16::from_f32(2048.0).to_le_bytes(), f16::from_f32(1.0).to_le_bytes()];
        assert_eq!(sum(6, &[&halves[0], &halves[1], &halves[1]]), f16::from_f32(2048.0).to_le_bytes());
        assert_eq!(sum(0, &[&[200], &[100]]), [44]);
    }
}
