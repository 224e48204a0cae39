//! Codes of compressed gradients. A code that `check_code` accepts is decoded without a panic, with equal
//! bits by every level of instructions. Every code that is encoded is accepted.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringpull_kernels::compress::{Codec, Compression, Feedback, Level, TopK};

#[derive(Arbitrary, Debug)]
enum Which {
    Fp16,
    Bf16,
    TwoBit(f32),
    OneBit(f32),
    TopK { ratio: u8, momentum: u8 },
}

impl Which {
    /// With parameters that pass its check: `max` and `min` make a number of a NaN, which `clamp` does not.
    fn compression(&self) -> Compression {
        let of_256 = |number: u8| f64::from(number) / 256.0;
        match *self {
            Which::Fp16 => Compression::Codec(Codec::Fp16),
            Which::Bf16 => Compression::Codec(Codec::Bf16),
            Which::TwoBit(any) => Compression::Codec(Codec::TwoBit { threshold: any.abs().max(1e-30).min(1e30) }),
            Which::OneBit(any) => Compression::Codec(Codec::OneBit { threshold: any.abs().max(0.0).min(1e30) }),
            Which::TopK { ratio, momentum } => {
                Compression::TopK(TopK { ratio: of_256(ratio) + 1.0 / 256.0, momentum: of_256(momentum) as f32 })
            }
        }
    }
}

#[derive(Arbitrary, Debug)]
enum Code {
    Bytes(Vec<u8>),
    /// Entries of `topk`: the gap between an index and the previous one, and the value.
    Entries(Vec<(u8, f32)>),
}

impl Code {
    /// Returns the code, and true if its length may be changed.
    fn bytes(self) -> (Vec<u8>, bool) {
        match self {
            Code::Bytes(bytes) => (bytes, true),
            Code::Entries(entries) => {
                let indices = entries.iter().scan(0u32, |index, (gap, _)| {
                    *index += u32::from(*gap);
                    Some(*index)
                });
                let values = entries.iter().flat_map(|(_, value)| value.to_le_bytes());
                (indices.flat_map(u32::to_le_bytes).chain(values).collect(), false)
            }
        }
    }
}

#[derive(Arbitrary, Debug)]
struct CodesInput {
    which: Which,
    len: u16,
    /// True if bytes are cut or extended to the length that is right for `len`.
    fits: bool,
    workers: u8,
    code: Code,
    gradient: Vec<f32>,
}

/// The greatest length of decoded gradients. It is more than 1024, because f16 and bf16 are added up 1024 at
/// a time.
const MOST_LEN: usize = 1100;

fuzz_target!(|input: CodesInput| {
    let compression = input.which.compression();
    compression.check().expect("its parameters are within their bounds");
    let len = usize::from(input.len) % MOST_LEN;
    let (mut code, is_free) = input.code.bytes();
    if is_free && input.fits {
        code.resize(compression.code_bytes(len), 0);
    }
    if compression.check_code(&code, len).is_ok() {
        decode(compression, &code, len, usize::from(input.workers).max(1));
    }
    encode(compression, &input.gradient);
});

fn decode(compression: Compression, code: &[u8], len: usize, workers: usize) {
    let mut sum = vec![1.0; len];
    compression.decode_add(code, &mut sum);
    let Compression::Codec(codec) = compression else { return };
    for level in Level::available() {
        let mut other = vec![1.0; len];
        codec.decode_add_at(level, code, &mut other);
        assert_eq!(bits(&other), bits(&sum), "{codec:?} at {level:?} decodes");
    }
    // All workers have sent this code.
    let codes = vec![code; workers];
    let run = |level: Level| {
        let mut sums = vec![0xaa; codec.sum_bytes(len, workers)];
        codec.sum_at(level, &codes, len, &mut sums);
        let mut values = vec![f32::NAN; len];
        codec.decode_sum_at(level, &sums, workers, &mut values);
        (sums, bits(&values))
    };
    let reference = run(Level::Scalar);
    for level in Level::available() {
        let (sums, values) = run(level);
        assert_eq!(values, reference.1, "{codec:?} at {level:?} sums");
        // A NaN in f16 or bf16 may become any NaN.
        let has_nan = values.iter().any(|bits| f32::from_bits(*bits).is_nan());
        assert!(has_nan || sums == reference.0, "{codec:?} at {level:?} stores sums");
    }
}

fn encode(compression: Compression, gradient: &[f32]) {
    let len = gradient.len();
    let mut feedback = Feedback::default();
    for _ in 0..2 {
        let mut code = vec![0xaa; compression.code_bytes(len)];
        compression.encode(gradient, &mut feedback, &mut code);
        assert_eq!(compression.check_code(&code, len), Ok(()), "a code that was just made");
        compression.decode_add(&code, &mut vec![0.0; len]);
    }
    // Decode the code in two parts, each separately.
    let middle = len / 2 / Codec::BLOCK * Codec::BLOCK;
    let parts = [0..middle, middle..len];
    let codes = compression.encode_parts(gradient, &mut Feedback::default(), parts.clone().into_iter());
    for (code, part) in codes.iter().zip(parts) {
        assert_eq!(compression.check_code(code, part.len()), Ok(()), "the code of a part");
        compression.decode_add(code, &mut vec![0.0; part.len()]);
    }
}

/// Bits to compare, all NaNs being one.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}
