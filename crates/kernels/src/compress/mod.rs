//! Gradient compression: codecs as data and pure functions, layered beside the optimizers. The state of a
//! codec for a key between pushes belongs to the caller.
//!
//! Every codec feeds its error back: the rest of a push is kept in the key's [`Feedback`] and added to the
//! next gradient, so nothing is lost for good. The map:
//!
//! - `codec`: the element-wise codecs, [`Codec`]: encoding, adding up codes, and decoding sums;
//! - `quantise`, `halves`, `planes`: their loops, in scalar form, which is the reference; `avx2`, `avx512`:
//!   these loops on vectors, chosen at run time by [`Level`], with equal bits;
//! - `topk`: the largest elements and their indices;
//! - `parse`: the words of MXNet and of the command line.
//!
//! | codec | bytes of f32 | the sum of `n` workers |
//! | --- | --- | --- |
//! | `fp16`, `bf16` | 1/2 | added up in f32 in the order of the ranks |
//! | `2bit` | 1/16 | integers in `-n..=n`, times the threshold |
//! | `1bit` | 1/32 | integers in `-n..=n` |
//! | `topk` | 2 x ratio | added up in f32 in the order of the ranks |
//!
//! Low-rank codecs (`PowerSGD`) are not here: a key of a store is a tensor of any shape, not a matrix, each
//! step would need two dependent allreduces with an orthogonalisation between them, and on the links that
//! this project measures the time of 2-bit codes is already that of encoding and decoding them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod codec;
mod halves;
mod lanes;
mod level;
mod parse;
mod planes;
mod quantise;
mod topk;

#[cfg(test)]
mod tests;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use codec::{Codec, SumFormat};
pub use level::Level;
pub use topk::TopK;

use ringpull_base::{Buffer, Error, Result};

/// The compression of gradients. Only `f32` gradients can be.
///
/// ```
/// # use ringpull_kernels::compress as ringpull;
/// use ringpull::{Codec, Compression};
///
/// let compression: Compression = "2bit:0.5".parse().unwrap();
/// assert_eq!(compression, Compression::Codec(Codec::TwoBit { threshold: 0.5 }));
/// // 32 elements of 4 bytes become 8 bytes.
/// assert_eq!(compression.code_bytes(32), 8);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Compression {
    /// Element by element.
    Codec(Codec),
    /// The largest elements only.
    TopK(TopK),
}

/// The limit of the thresholds of `2bit` and `1bit`. Those of `2bit` are also above its inverse, so that sums
/// stay finite and normal.
const LARGEST_THRESHOLD: f32 = 1e30;

impl Compression {
    /// Returns an error unless every parameter has a valid value.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, remedy: &str| Err(Error::argument(format!("compression {self}: {what}"), remedy));
        match self {
            Compression::Codec(Codec::Fp16 | Codec::Bf16) => Ok(()),
            Compression::Codec(Codec::TwoBit { threshold }) => {
                if (1.0 / LARGEST_THRESHOLD..=LARGEST_THRESHOLD).contains(threshold) {
                    return Ok(());
                }
                wrong(
                    "threshold must be greater than 0".to_owned(),
                    "give a threshold such as 0.5, between 1e-30 and 1e30",
                )
            }
            Compression::Codec(Codec::OneBit { threshold }) => {
                if (0.0..=LARGEST_THRESHOLD).contains(threshold) {
                    return Ok(());
                }
                wrong("threshold must not be below 0".to_owned(), "give a threshold such as 0.5, between 0 and 1e30")
            }
            Compression::TopK(TopK { ratio, momentum }) => {
                if !(*ratio > 0.0 && *ratio <= 1.0) {
                    return wrong(format!("a ratio of {ratio}"), "give the part of the elements to send, such as 0.01");
                }
                if !(0.0..1.0).contains(momentum) {
                    return wrong(format!("a momentum of {momentum}"), "give a momentum of at least 0 and below 1");
                }
                Ok(())
            }
        }
    }

    /// The bytes of one worker's push of `len` elements.
    pub fn code_bytes(&self, len: usize) -> usize {
        match self {
            Compression::Codec(codec) => codec.code_bytes(len),
            Compression::TopK(topk) => topk.code_bytes(len),
        }
    }

    /// Encodes `gradient` and the residual of `feedback` into `code`, of [`code_bytes`](Self::code_bytes)
    /// bytes.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    pub fn encode(&self, gradient: &[f32], feedback: &mut Feedback, code: &mut [u8]) {
        match self {
            Compression::Codec(codec) => codec.encode(gradient, feedback.residual_mut(gradient.len()), code),
            Compression::TopK(topk) => {
                let (residual, velocity) = feedback.both_mut(gradient.len(), topk.momentum > 0.0);
                topk.encode(gradient, residual, velocity, code);
            }
        }
    }

    /// Encodes as [`encode`](Self::encode) does, with a separate code for each of `parts`, which tile the
    /// gradient in any order.
    pub fn encode_parts(
        &self,
        gradient: &[f32],
        feedback: &mut Feedback,
        parts: impl Iterator<Item = Range<usize>>,
    ) -> Vec<Vec<u8>> {
        match self {
            Compression::Codec(codec) => {
                let residual = feedback.residual_mut(gradient.len());
                let encode = |part: Range<usize>| {
                    let mut code = vec![0; codec.code_bytes(part.len())];
                    codec.encode(&gradient[part.clone()], &mut residual[part], &mut code);
                    code
                };
                parts.map(encode).collect()
            }
            Compression::TopK(topk) => {
                let mut code = vec![0; topk.code_bytes(gradient.len())];
                self.encode(gradient, feedback, &mut code);
                parts.map(|part| topk::part(&code, part)).collect()
            }
        }
    }

    /// Returns an error, with the reason, unless `code` is a code of `len` elements that a worker can have
    /// sent.
    pub fn check_code(&self, code: &[u8], len: usize) -> Result<(), String> {
        match self {
            Compression::Codec(codec) => codec.check_code(code, len),
            Compression::TopK(_) => topk::check_code(code, len),
        }
    }

    /// Adds the values of `code`, which has been checked, to `sum`.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    pub fn decode_add(&self, code: &[u8], sum: &mut [f32]) {
        match self {
            Compression::Codec(codec) => codec.decode_add(code, sum),
            Compression::TopK(_) => topk::decode_add(code, sum),
        }
    }
}

/// The state of a codec for one key on one worker between pushes. It is empty until the first push. Any codec
/// can continue with the state of another.
#[derive(Default)]
pub struct Feedback {
    residual: Option<Buffer>,
    velocity: Option<Buffer>,
}

impl Clone for Feedback {
    fn clone(&self) -> Self {
        let copy = |buffer: &Buffer| Buffer::copy_of(buffer.bytes());
        Feedback { residual: self.residual.as_ref().map(copy), velocity: self.velocity.as_ref().map(copy) }
    }
}

impl Feedback {
    /// Returns the residual of `len` elements: the part of earlier pushes that was not sent.
    pub fn residual_mut(&mut self, len: usize) -> &mut [f32] {
        elements(&mut self.residual, len)
    }

    /// Takes the residual out, if there is one. The caller continues with it, and this starts again from
    /// zero.
    pub fn take_residual(&mut self) -> Option<Buffer> {
        self.residual.take()
    }

    fn both_mut(&mut self, len: usize, has_momentum: bool) -> (&mut [f32], &mut [f32]) {
        let velocity = if has_momentum { elements(&mut self.velocity, len) } else { &mut [] };
        (elements(&mut self.residual, len), velocity)
    }
}

fn elements(buffer: &mut Option<Buffer>, len: usize) -> &mut [f32] {
    let buffer = buffer.get_or_insert_with(|| Buffer::zeroed(len * size_of::<f32>()));
    let elements = bytemuck::cast_slice_mut(buffer.bytes_mut());
    assert_eq!(elements.len(), len, "a key keeps its length");
    elements
}
