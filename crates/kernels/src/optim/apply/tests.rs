use super::*;

/// Runs `steps` with the gradient `gradient(step)` on every element and returns the weights.
fn trained(optimizer: &Optimizer, weight: &[f32], steps: usize, gradient: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let mut weight = weight.to_vec();
    let mut state = State::default();
    for step in 0..steps {
        let gradient: Vec<f32> = (0..weight.len()).map(|index| gradient(step, index)).collect();
        let bytes = bytemuck::cast_slice_mut(&mut weight);
        optimizer.apply(&mut state, DType::F32, bytes, bytemuck::cast_slice(&gradient)).unwrap();
    }
    weight
}

fn parsed(text: &str) -> Optimizer {
    text.parse().unwrap()
}

#[test]
fn plain_sgd_with_a_constant_gradient_moves_by_rate_times_steps() {
    let optimizer = Optimizer { rescale_grad: 0.5, ..Optimizer::sgd(0.25) };
    assert_eq!(trained(&optimizer, &[8.0, -8.0], 4, |_, _| 2.0), [7.0, -9.0]);
}

#[test]
fn clipping_comes_after_rescaling_and_before_weight_decay() {
    let optimizer = Optimizer { weight_decay: 0.5, clip_gradient: Some(1.0), ..Optimizer::sgd(1.0) };
    assert_eq!(trained(&optimizer, &[8.0, 8.0], 1, |_, index| [100.0, -100.0][index]), [3.0, 5.0]);
}

#[test]
fn momentum_follows_its_geometric_sum() {
    // m_k = -(1 - 1/2^k) * 2 * rate * g, so w after K steps is w - 2 * rate * g * (K - 1 + 1/2^K).
    let weight = trained(&parsed("sgd,lr=1,momentum=0.5"), &[0.0], 6, |_, _| 1.0);
    assert_eq!(weight, [-2.0 * (5.0 + 1.0 / 64.0)]);
}

#[test]
fn nesterov_looks_one_step_ahead() {
    // Each step adds momentum * m - rate * g where momentum's own form adds m: here m_1 = -1, m_2 = -1.5.
    assert_eq!(trained(&parsed("nag,lr=1,momentum=0.5"), &[0.0], 1, |_, _| 1.0), [-1.5]);
    assert_eq!(trained(&parsed("nag,lr=1,momentum=0.5"), &[0.0], 2, |_, _| 1.0), [-1.5 - 1.75]);
}

#[test]
fn adams_first_steps_on_a_constant_gradient_have_the_size_of_the_learning_rate() {
    // The corrected mean and root variance of a constant gradient are that gradient, whatever its size.
    for size in [1e-3f32, 1.0, 1e3] {
        let weight = trained(&parsed("adam,lr=0.125"), &[0.0, 0.0], 10, |_, index| [size, -size][index]);
        assert!((weight[0] + 1.25).abs() < 2e-3 && (weight[1] - 1.25).abs() < 2e-3, "{size}: {weight:?}");
    }
}

#[test]
fn adam_agrees_with_a_reference_in_f64() {
    let gradient = |step: usize, index: usize| ((step * 7 + index * 3) % 11) as f32 - 5.0;
    let weight = trained(&parsed("adam,lr=0.01,wd=0.1,rescale_grad=0.5,clip_gradient=2"), &[1.0; 5], 20, gradient);
    for (index, got) in weight.iter().enumerate() {
        let (mut w, mut mean, mut variance) = (1f64, 0f64, 0f64);
        for step in 0..20 {
            let g = (f64::from(gradient(step, index)) * 0.5 + 0.1 * w).clamp(-2.0, 2.0);
            mean = 0.9 * mean + 0.1 * g;
            variance = 0.999 * variance + 0.001 * g * g;
            let t = step as i32 + 1;
            let rate = 0.01 * (1.0 - 0.999f64.powi(t)).sqrt() / (1.0 - 0.9f64.powi(t));
            w -= rate * mean / (variance.sqrt() + 1e-8);
        }
        // f32 against f64 over 20 steps.
        assert!((f64::from(*got) - w).abs() < 1e-5, "element {index}: {got} and {w}");
    }
}

/// Gradients of 3 and 4 in turn, so that roots are exact.
#[test]
fn adagrad_divides_by_the_root_of_all_squares() {
    let optimizer = parsed("adagrad,lr=1,eps=1e-30");
    assert_eq!(trained(&optimizer, &[8.0], 2, |step, _| [3.0, 4.0][step]), [8.0 - 1.0 - 4.0 / 5.0]);
    // The decay is beside the quotient.
    let decayed = parsed("adagrad,lr=1,eps=1e-30,wd=0.5,rescale_grad=0.5,clip_gradient=1");
    assert_eq!(trained(&decayed, &[8.0], 1, |_, _| 100.0), [8.0 - 1.0 - 4.0]);
}

#[test]
fn rmsprop_divides_by_the_root_of_the_mean_square_or_of_what_varies() {
    let plain = "rmsprop,lr=1,gamma1=0.75,epsilon=1e-30";
    // The mean square is 0.25 * 4.
    assert_eq!(trained(&parsed(plain), &[8.0], 1, |_, _| 2.0), [8.0 - 2.0]);
    assert_eq!(trained(&parsed(&format!("{plain},clip_weights=3")), &[8.0], 1, |_, _| 2.0), [3.0]);
    // The decay is within the clipped gradient.
    let decayed = format!("{plain},wd=1,clip_gradient=4");
    assert_eq!(trained(&parsed(&decayed), &[8.0], 1, |_, _| 2.0), [8.0 - 2.0]);
    // The variance is 0.5 * 4 - (0.5 * 2)^2, then 0.5 * (2 + 4) - (0.5 * (1 + 2))^2.
    let centered = parsed("rmsprop,lr=1,gamma1=0.5,gamma2=0.5,epsilon=1e-30,centered=1");
    assert_eq!(trained(&centered, &[8.0], 1, |_, _| 2.0), [6.0]);
    assert_eq!(trained(&centered, &[8.0], 2, |_, _| 2.0), [6.0 - 1.0 - 2.0 / 0.75f32.sqrt()]);
}

#[test]
fn the_test_rule_adds_and_keeps_a_copy() {
    let optimizer = Optimizer { rescale_grad: 2.0, ..parsed("test") };
    let (mut weight, mut state) = ([1f32, 2.0], State::default());
    let bytes = bytemuck::cast_slice_mut(&mut weight);
    optimizer.apply(&mut state, DType::F32, bytes, bytemuck::cast_slice(&[3f32, -1.0])).unwrap();
    assert_eq!(weight, [7.0, 0.0]);
    assert_eq!(state.slots, [bytemuck::cast_slice::<f32, u8>(&weight).to_vec()]);
}

#[test]
fn a_master_copy_keeps_steps_too_small_for_a_half() {
    // 1/4096 is less than half of f16's spacing at 1, so without a master copy the weight never moves.
    for (multi_precision, expected) in [(false, 1.0), (true, 0.875)] {
        let optimizer = Optimizer { multi_precision, ..Optimizer::sgd(1.0 / 4096.0) };
        let (mut weight, mut state) = ([f16::ONE; 3], State::default());
        for _ in 0..512 {
            let bytes = bytemuck::cast_slice_mut(&mut weight);
            optimizer.apply(&mut state, DType::F16, bytes, bytemuck::cast_slice(&[f16::ONE; 3])).unwrap();
        }
        assert_eq!(weight.map(f16::to_f32), [expected; 3]);
    }
}

#[test]
fn every_float_type_takes_the_same_exact_step() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        for rule in ["sgd,lr=0.5", "sgd,lr=0.5,momentum=0.5", "nag,lr=0.5,momentum=0.5", "test"] {
            let (optimizer, mut state) = (parsed(rule), State::default());
            ringpull_base::with_element!(dtype, T => {
                use ringpull_base::Element;
                let mut weight: Vec<T> = (0..9).map(|value| <T as Element>::from_f64(f64::from(value))).collect();
                let gradient: Vec<T> = (0..9).map(|value| <T as Element>::from_f64(f64::from(value * 2))).collect();
                let bytes = bytemuck::cast_slice_mut(&mut weight);
                optimizer.apply(&mut state, dtype, bytes, bytemuck::cast_slice(&gradient)).unwrap();
                let factor = match rule { "test" => 3.0, text if text.starts_with("nag") => -0.5, _ => 0.0 };
                for (index, value) in weight.iter().enumerate() {
                    assert_eq!(Element::to_f64(*value), factor * index as f64, "{dtype} {rule}");
                }
            });
        }
    }
}

#[test]
fn integers_and_lengths_that_do_not_fit_are_errors_that_change_nothing() {
    let (optimizer, mut state) = (Optimizer::sgd(0.1), State::default());
    let mut weight = [1i32; 4];
    let error = optimizer.apply(&mut state, DType::I32, bytemuck::cast_slice_mut(&mut weight), &[0; 16]).unwrap_err();
    assert!(error.to_string().contains("i32"), "{error}");
    assert!(optimizer.apply(&mut state, DType::F32, &mut [0; 8], &[0; 4]).is_err());
    assert_eq!(state, State::default());
    let mut foreign = State { updates: 3, slots: vec![vec![0; 12]] };
    let error = parsed("adam").apply(&mut foreign, DType::F32, &mut [0; 12], &[0; 12]).unwrap_err();
    assert!(error.to_string().contains("slots") && foreign.updates == 3, "{error}");
}

/// A file of states may have any count.
#[test]
fn the_largest_count_of_updates_stays_the_largest() {
    let mut state = State { updates: u64::MAX, slots: vec![vec![0; 4]; 2] };
    let mut weight = 1.0f32.to_le_bytes();
    parsed("adam").apply(&mut state, DType::F32, &mut weight, &1.0f32.to_le_bytes()).unwrap();
    assert_eq!(state.updates, u64::MAX);
    assert!((0.9..1.0).contains(&f32::from_le_bytes(weight)), "{weight:?}");
}

#[test]
fn rows_that_are_absent_change_neither_weight_nor_state() {
    for text in ["sgd,lr=0.5,wd=0.5,momentum=0.5", "adam,lr=0.5", "test", "adagrad,lr=0.5", "rmsprop,lr=0.5,centered=1"]
    {
        let optimizer = parsed(text);
        let (mut sparse, mut dense) = ([4f32; 12], [4f32; 12]);
        let (mut sparse_state, mut dense_state) = (State::default(), State::default());
        for _ in 0..3 {
            let bytes = bytemuck::cast_slice_mut(&mut sparse);
            let rows = [1f32; 6];
            optimizer
                .apply_rows(&mut sparse_state, DType::F32, bytes, 12, &[0, 2], bytemuck::cast_slice(&rows))
                .unwrap();
            let bytes = bytemuck::cast_slice_mut(&mut dense);
            optimizer.apply(&mut dense_state, DType::F32, bytes, bytemuck::cast_slice(&[1f32; 12])).unwrap();
        }
        for row in 0..4 {
            let expected = if row % 2 == 0 { &dense[row * 3..row * 3 + 3] } else { &[4.0; 3] };
            assert_eq!(&sparse[row * 3..row * 3 + 3], expected, "{text} row {row}");
        }
        for slot in &sparse_state.slots {
            assert!(slot[12..24].iter().all(|byte| *byte == 0), "{text}");
        }
    }
    let mut state = State::default();
    assert!(Optimizer::sgd(0.1).apply_rows(&mut state, DType::F32, &mut [0; 24], 12, &[2], &[0; 12]).is_err());
}

#[test]
fn a_step_in_pieces_of_parts_gives_the_bits_and_the_states_of_one_of_the_whole() {
    for (text, dtype) in [
        ("adam,lr=0.1,wd=0.1", DType::F32),
        ("sgd,momentum=0.9", DType::F64),
        ("adam,lr=0.1,multi_precision=1", DType::F16),
        ("sgd,lr=0.5", DType::BF16),
        ("rmsprop,lr=0.1,wd=0.1,centered=1,multi_precision=1", DType::BF16),
    ] {
        let (optimizer, element, len) = (parsed(text), dtype.size_bytes(), 23);
        let tensor = |scale: f64| {
            ringpull_base::with_element!(dtype, T => {
                let value = |at: usize| <T as ringpull_base::Element>::from_f64(scale * (at as f64 - 7.0));
                bytemuck::cast_slice(&(0..len).map(value).collect::<Vec<T>>()).to_vec()
            })
        };
        let (mut whole, mut state) = (tensor(0.25), State::default());
        let (mut divided, mut states) = (whole.clone(), [State::default(), State::default()]);
        for step in 1..4u8 {
            let gradient: Vec<u8> = tensor(f64::from(step));
            // States that were those of the whole go on as those of parts.
            if step == 2 {
                states = [0..9, 9..len].map(|part| {
                    let mut cut = state.clone();
                    cut.keep(part.start * element..part.end * element, whole.len());
                    cut
                });
                divided.clone_from(&whole);
            }
            optimizer.apply(&mut state, dtype, &mut whole, &gradient).unwrap();
            for (part, state) in [0..9, 9..len].into_iter().zip(&mut states) {
                let part = part.start * element..part.end * element;
                let weight = &mut divided[part.clone()];
                optimizer.begin_step(state, dtype, weight).unwrap();
                for piece in [4 * element..weight.len(), 0..4 * element] {
                    optimizer.apply_at(state, dtype, weight, piece.start, &gradient[part.clone()][piece]);
                }
            }
            assert_eq!(whole, divided, "{text}");
            for (slot, whole) in state.slots.iter().enumerate() {
                assert_eq!(*whole, [&states[0].slots[slot][..], &states[1].slots[slot]].concat(), "{text}");
            }
        }
    }
}

#[test]
fn sharing_out_over_threads_does_not_change_the_bits() {
    let len = 2 * PARALLEL_LEN + 3;
    let gradient = |_, index: usize| (index % 1013) as f32 * 0.37 - 100.0;
    let weight: Vec<f32> = (0..len).map(|index| (index % 89) as f32 * 0.11).collect();
    for text in ["adam,lr=0.01,wd=0.01", "rmsprop,lr=0.01,wd=0.01,centered=1"] {
        let optimizer = parsed(text);
        let together = trained(&optimizer, &weight, 2, gradient);
        let mut apart = Vec::new();
        for (chunk, values) in weight.chunks(PARALLEL_LEN / 2).enumerate() {
            let gradient = |step, index| gradient(step, chunk * (PARALLEL_LEN / 2) + index);
            apart.extend(trained(&optimizer, values, 2, gradient));
        }
        assert!(together.iter().zip(&apart).all(|(a, b)| a.to_bits() == b.to_bits()), "{text}");
    }
}

#[test]
fn bytes_need_no_alignment() {
    let mut weight = [0u8; 13];
    let gradient = [[0u8; 1].as_slice(), bytemuck::cast_slice(&[2f32, 4.0, 6.0])].concat();
    let mut state = State::default();
    Optimizer::sgd(0.5).apply(&mut state, DType::F32, &mut weight[1..], &gradient[1..]).unwrap();
    let values: Vec<f32> = weight[1..].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(values, [-1.0, -2.0, -3.0]);
}

#[test]
fn the_factors_of_a_key_are_in_its_rate_and_decay_and_in_no_others() {
    let mut optimizer = parsed("sgd,lr=0.5,wd=0.25");
    optimizer.lr_mult.insert("slow".into(), 0.5);
    optimizer.wd_mult.insert("bias".into(), 0.0);
    optimizer.check().unwrap();
    let optimizer = std::sync::Arc::new(optimizer);
    for (key, rate, decay) in [("slow", 0.25, 0.25), ("bias", 0.5, 0.0), ("weight", 0.5, 0.25)] {
        let expected = Optimizer { weight_decay: decay, ..Optimizer::sgd(rate) };
        assert_eq!(*optimizer.of(&key.into()), expected, "{key}");
    }
    let mut wrong = (*optimizer).clone();
    wrong.wd_mult.insert("bias".into(), f64::NAN);
    let error = wrong.check().unwrap_err().to_string();
    assert!(error.contains("wd_mult of key \"bias\"") && error.contains("finite"), "{error}");
    let text = optimizer.to_string();
    assert_eq!(text, "sgd,lr=0.5,wd=0.25, lr_mult of \"slow\" 0.5, wd_mult of \"bias\" 0");
}
