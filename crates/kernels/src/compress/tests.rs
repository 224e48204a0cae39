//! Tests that every level gives the bits of the scalar loops, and that the output of a codec and its new
//! residual add up to its input.

use proptest::prelude::*;

use super::{Codec, Level};

fn codecs() -> impl Strategy<Value = Codec> {
    prop_oneof![
        Just(Codec::Fp16),
        Just(Codec::Bf16),
        prop_oneof![Just(0.5f32), Just(0.1), Just(1e-20), 1e-3f32..10.0]
            .prop_map(|threshold| Codec::TwoBit { threshold }),
        prop_oneof![Just(0.5f32), Just(0.0), 0f32..10.0].prop_map(|threshold| Codec::OneBit { threshold }),
    ]
}

/// Any float: NaN, infinities, denormals, both zeros, values on the thresholds, and common ones.
fn floats() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        -3f32..3.0,
        (-8i32..8).prop_map(|quarters| quarters as f32 * 0.25),
        prop::sample::select(vec![
            0.0,
            -0.0,
            0.1,
            -0.1,
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1e-40,
            -1e-45,
            65_520.0,
            f32::MAX
        ]),
    ]
}

/// Returns bits to compare. All NaNs are equal, because the bits of a NaN depend on the order of an
/// addition's operands, which no processor promises.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

proptest! {
    #[test]
    fn every_level_encodes_and_decodes_with_the_same_bits(
        codec in codecs(), inputs in prop::collection::vec((floats(), floats()), 0..300),
    ) {
        let (gradient, kept): (Vec<f32>, Vec<f32>) = inputs.into_iter().unzip();
        let run = |level: Level| {
            let (mut residual, mut sum) = (kept.clone(), gradient.clone());
            let mut code = vec![0xaa; codec.code_bytes(gradient.len())];
            codec.encode_at(level, &gradient, &mut residual, &mut code);
            codec.decode_add_at(level, &code, &mut sum);
            (code, bits(&residual), bits(&sum))
        };
        let reference = run(Level::Scalar);
        if !gradient.iter().chain(&kept).any(|value| value.is_nan()) {
            prop_assert_eq!(codec.check_code(&reference.0, gradient.len()), Ok(()));
        }
        for level in Level::available() {
            prop_assert_eq!(&run(level), &reference, "{:?}", level);
        }
    }

    #[test]
    fn every_level_sums_with_the_same_bits_and_as_adding_one_by_one_where_that_is_exact(
        codec in codecs(), len in 0usize..200, workers in 1usize..140, seed in any::<u32>(),
    ) {
        let mut state = u64::from(seed);
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 22) as f32) - 2.0
        };
        let codes: Vec<Vec<u8>> = (0..workers)
            .map(|_| {
                let gradient: Vec<f32> = (0..len).map(|_| next()).collect();
                let mut code = vec![0; codec.code_bytes(len)];
                codec.encode_at(Level::Scalar, &gradient, &mut vec![0.0; len], &mut code);
                code
            })
            .collect();
        let codes: Vec<&[u8]> = codes.iter().map(Vec::as_slice).collect();
        let run = |level: Level| {
            let mut sums = vec![0xaa; codec.sum_bytes(len, workers)];
            codec.sum_at(level, &codes, len, &mut sums);
            let mut values = vec![f32::NAN; len];
            codec.decode_sum_at(level, &sums, workers, &mut values);
            (sums, bits(&values))
        };
        let reference = run(Level::Scalar);
        for level in Level::available() {
            prop_assert_eq!(&run(level), &reference, "{:?}", level);
        }
        if codec.adds_exactly() && matches!(codec, Codec::TwoBit { .. } | Codec::OneBit { .. }) {
            let mut sum = vec![0.0; len];
            codes.iter().for_each(|code| codec.decode_add(code, &mut sum));
            prop_assert_eq!(bits(&sum), reference.1);
        }
    }

    #[test]
    fn what_is_sent_and_what_is_kept_add_up_to_what_was_given(
        codec in codecs(), values in prop::collection::vec(-4000i32..4000, 1..100), rounds in 1usize..4,
    ) {
        // Multiples of 1/256 below 16, and thresholds that are such multiples: no addition is rounded.
        let codec = match codec {
            Codec::TwoBit { threshold } => Codec::TwoBit { threshold: (threshold * 8.0).ceil() / 8.0 },
            other => other,
        };
        let gradient: Vec<f32> = values.iter().map(|value| *value as f32 / 256.0).collect();
        let (mut residual, mut sent) = (vec![0f32; gradient.len()], vec![0f32; gradient.len()]);
        for _ in 0..rounds {
            let mut code = vec![0; codec.code_bytes(gradient.len())];
            codec.encode(&gradient, &mut residual, &mut code);
            codec.decode_add(&code, &mut sent);
        }
        for ((sent, kept), given) in sent.iter().zip(&residual).zip(&gradient) {
            prop_assert_eq!(sent + kept, given * rounds as f32);
        }
    }
}

#[test]
fn a_sum_has_the_fewest_bits_that_hold_it() {
    let bits = |codec: Codec, workers: usize| codec.sum_bytes(32, workers) / 4;
    let two = Codec::TwoBit { threshold: 0.5 };
    assert_eq!([1, 2, 3, 4, 7, 8, 15, 16, 127, 128].map(|n| bits(two, n)), [2, 3, 3, 4, 4, 5, 5, 6, 8, 9]);
    let one = Codec::OneBit { threshold: 0.5 };
    assert_eq!([1, 2, 3, 4, 7, 8, 15, 16, 255, 256].map(|n| bits(one, n)), [1, 2, 2, 3, 3, 4, 4, 5, 8, 9]);
}

#[test]
fn long_sums_are_decoded_with_the_same_bits_wherever_they_begin() {
    let len = (64 << 10) + 37;
    for codec in [Codec::TwoBit { threshold: 0.5 }, Codec::OneBit { threshold: 0.5 }] {
        let sums: Vec<u8> = (0..codec.sum_bytes(len, 8)).map(|at| (at * at / 7) as u8).collect();
        let run = |level: Level, from: usize| {
            let mut room = vec![f32::NAN; len + 32];
            let first = room.as_ptr().align_offset(64) + from;
            codec.decode_sum_at(level, &sums, 8, &mut room[first..first + len]);
            bits(&room[first..first + len])
        };
        let reference = run(Level::Scalar, 0);
        for level in Level::available() {
            for from in [0, 1, 16] {
                assert_eq!(run(level, from), reference, "{codec:?} at {level:?} from {from}");
            }
        }
    }
}

#[test]
fn a_sum_that_is_rounded_is_rounded_once() {
    // Adding 0.1 ten times in f32 gives 1.0000001.
    let codec = Codec::TwoBit { threshold: 0.1 };
    assert!(!codec.adds_exactly());
    let mut code = vec![0; 4];
    codec.encode(&[0.1], &mut [0.0], &mut code);
    let codes = [&code[..]; 10];
    let (mut sums, mut value, mut added) = (vec![0; codec.sum_bytes(1, 10)], [0f32], [0f32]);
    codec.sum(&codes, 1, &mut sums);
    codec.decode_sum(&sums, 10, &mut value);
    codes.iter().for_each(|code| codec.decode_add(code, &mut added));
    assert_eq!((value, added), ([1.0], [1.000_000_1]));
}

#[test]
fn a_half_that_overflows_is_sent_as_infinity_and_leaves_nothing_behind() {
    for level in Level::available() {
        let (mut residual, mut code) = ([0f32; 9], vec![0; 18]);
        Codec::Fp16.encode_at(level, &[1e6; 9], &mut residual, &mut code);
        let mut sum = [0f32; 9];
        Codec::Fp16.decode_add_at(level, &code, &mut sum);
        assert_eq!((sum, residual), ([f32::INFINITY; 9], [0.0; 9]), "{level:?}");
    }
}
