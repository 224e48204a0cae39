//! Optimizers and updaters. Hyper-parameters are powers of two, so that f32 arithmetic is exact.

use std::slice::from_ref;

use ringpull_base::{DType, Tensor};
use ringpull_kernels::optim::{Optimizer, Rule, State};

use crate::rows::sparse;
use crate::world::{Promise, World, promises};

/// For kinds whose workers push in rounds.
pub(crate) const SYNC: &[Promise] = promises![
    states_of_a_store_without_an_optimizer_are_an_error,
    the_test_optimizer_adds_the_sum,
    sgd_with_momentum_follows_its_sum,
    a_new_learning_rate_takes_effect_at_the_next_push,
    a_key_has_a_rate_and_a_decay_of_its_own,
    a_rule_with_other_slots_starts_from_zero,
    every_rule_takes_the_step_of_one_process_with_the_summed_gradient,
    halves_with_a_master_copy_take_small_steps,
    rows_that_nobody_pushed_stay_as_they_are,
    a_wrong_hyper_parameter_is_an_error_and_changes_nothing,
    an_optimizer_on_integers_is_an_error_that_changes_nothing,
    restored_states_continue_exactly,
    a_dumped_optimizer_is_restored_too,
    a_damaged_states_file_is_an_error,
];

/// For kinds that run updaters in the worker.
pub(crate) const IN_PROCESS: &[Promise] = promises![an_updater_is_given_the_sum_and_changes_the_value];

/// For kinds with servers.
pub(crate) const ON_SERVERS: &[Promise] = promises![an_updater_is_an_error_since_servers_run_no_code];

/// For asynchronous kinds: before anything else.
pub(crate) const ASYNC_FIRST: &[Promise] = promises![a_push_without_an_optimizer_is_an_error];

/// For asynchronous kinds.
pub(crate) const ASYNC: &[Promise] = promises![
    every_push_is_applied_once_when_all_have_met,
    a_key_has_a_rate_of_its_own_when_all_have_met,
    own_pushes_are_seen_at_once,
    an_updater_is_an_error_since_servers_run_no_code,
];

fn set(world: &World, text: &str) {
    world.set_optimizer(&text.parse().unwrap()).unwrap();
}

fn states_of_a_store_without_an_optimizer_are_an_error(world: &World) {
    let error = world.store.save_optimizer_states(&world.folder.join("none"), false).unwrap_err().to_string();
    assert!(error.contains("optimizer") && error.contains("hint:"), "{error}");
}

fn the_test_optimizer_adds_the_sum(world: &World) {
    world.init("test", DType::F32, &[5], 1.0);
    set(world, "test,rescale_grad=2");
    for round in 1..4u8 {
        world.push("test", &[world.mine() as f32; 5]);
        let expected = 1.0 + 2.0 * f32::from(round) * world.total() as f32;
        assert_eq!(world.pull_f32("test", 5), [expected; 5]);
    }
}

fn sgd_with_momentum_follows_its_sum(world: &World) {
    world.init("momentum", DType::F32, &[1001], 64.0);
    set(world, "sgd,lr=0.5,momentum=0.5");
    let tensor = Tensor::full(DType::F32, &[1001], world.mine());
    let out = Tensor::zeros(DType::F32, &[1001]);
    // The steps are 0.5, 0.75 and 0.875 of the summed gradient.
    for moved in [0.5, 1.25, 2.125] {
        world.store.push_pull("momentum", from_ref(&tensor), from_ref(&out), 0).unwrap();
        assert_eq!(world.see::<f32>(&out), [(64.0 - moved * world.total()) as f32; 1001]);
    }
}

fn a_new_learning_rate_takes_effect_at_the_next_push(world: &World) {
    world.vector("rate", 1);
    set(world, "sgd,lr=1");
    world.push("rate", &[world.mine() as f32]);
    set(world, "sgd,lr=4");
    world.push("rate", &[world.mine() as f32]);
    set(world, "sgd,lr=16");
    assert_eq!(world.pull_f32("rate", 1), [-5.0 * world.total() as f32]);
}

fn a_key_has_a_rate_and_a_decay_of_its_own(world: &World) {
    for key in ["common", "slow", "bias"] {
        world.init(key, DType::F32, &[2], 8.0);
    }
    let mut optimizer: Optimizer = "sgd,lr=0.5,wd=0.5".parse().unwrap();
    optimizer.lr_mult = [("slow".into(), 0.25), ("of no key".into(), 7.0)].into();
    optimizer.wd_mult = [("bias".into(), 0.0)].into();
    world.set_optimizer(&optimizer).unwrap();
    // Keys with factors of their own are between keys without.
    for key in ["slow", "common", "bias"] {
        world.push(key, &[world.mine() as f32; 2]);
    }
    let total = world.total() as f32;
    assert_eq!(world.pull_f32("common", 2), [8.0 - 0.5 * (total + 4.0); 2]);
    assert_eq!(world.pull_f32("slow", 2), [8.0 - 0.125 * (total + 4.0); 2]);
    assert_eq!(world.pull_f32("bias", 2), [8.0 - 0.5 * total; 2]);
    // Rows take the same factors; a new base rate keeps them, and a new map replaces them.
    world.init("rows of its own", DType::F32, &[2, 1], 8.0);
    optimizer.learning_rate = 1.0;
    optimizer.lr_mult = [("rows of its own".into(), 0.5)].into();
    optimizer.wd_mult = [("rows of its own".into(), 0.0), ("slow".into(), 0.0)].into();
    world.set_optimizer(&optimizer).unwrap();
    let path = world.folder.join(format!("own-{}.states", world.rank()));
    world.store.save_optimizer_states(&path, true).unwrap();
    set(world, "sgd,lr=64");
    // The file has the factors too.
    world.store.load_optimizer_states(&path).unwrap();
    world.store.push_rows("rows of its own", &[sparse([2, 1], &[(1, world.mine())])], 0).unwrap();
    world.push("slow", &[world.mine() as f32; 2]);
    assert_eq!(world.pull::<f32>("rows of its own", &[2, 1]), [8.0, 8.0 - 0.5 * total]);
    assert_eq!(world.pull_f32("slow", 2), [8.0 - 0.125 * (total + 4.0) - total; 2]);
    optimizer.wd_mult.insert("bias".into(), f64::INFINITY);
    let error = world.set_optimizer(&optimizer).unwrap_err().to_string();
    assert!(error.contains("wd_mult") && error.contains("\"bias\"") && error.contains("hint:"), "{error}");
}

/// For example, momentum that is switched on during training has no state yet.
fn a_rule_with_other_slots_starts_from_zero(world: &World) {
    world.vector("other slots", 1);
    let mut expected = 0.0;
    for text in ["sgd,lr=1", "sgd,lr=1,momentum=0.5", "rmsprop,centered=0", "rmsprop,centered=1", "sgd,lr=1"] {
        set(world, text);
        let before = world.pull_f32("other slots", 1)[0];
        world.push("other slots", &[world.mine() as f32]);
        let after = world.pull_f32("other slots", 1)[0];
        expected = if text.starts_with("sgd") { before - world.total() as f32 } else { after };
        assert_eq!(after, expected, "{text}");
    }
    assert!(expected < 0.0);
}

fn every_rule_takes_the_step_of_one_process_with_the_summed_gradient(world: &World) {
    let len = 300;
    for (index, text) in Rule::EXAMPLES.into_iter().enumerate() {
        let key = format!("rule {index}");
        world.init(&key, DType::F32, &[len], 1.0);
        let optimizer: Optimizer = text.parse().unwrap();
        world.set_optimizer(&optimizer).unwrap();
        let (mut weight, mut state) = (vec![1f32; len], State::default());
        for round in 0..3 {
            let of = |scale: f64| -> Vec<f32> {
                (0..len).map(|index| (scale * ((index + round) % 9) as f64 - scale * 4.0) as f32).collect()
            };
            world.push(&key, &of(world.mine()));
            let sum = of(world.total());
            let bytes = bytemuck::cast_slice_mut(&mut weight);
            optimizer.apply(&mut state, DType::F32, bytes, bytemuck::cast_slice(&sum)).unwrap();
            assert!(world.pull_f32(&key, len) == weight, "{text}, round {round}");
        }
    }
}

fn halves_with_a_master_copy_take_small_steps(world: &World) {
    world.init("half", DType::F16, &[3], 1.0);
    // A step is below half the spacing of f16 at 1; only the f32 master copy sees it.
    set(world, &format!("sgd,lr={},multi_precision=1", 1.0 / 4096.0 / world.total()));
    let gradient = Tensor::full(DType::F16, &[3], world.mine());
    for _ in 0..64 {
        world.store.push("half", from_ref(&gradient), 0).unwrap();
    }
    for value in world.pull::<half::f16>("half", &[3]) {
        assert!((value.to_f32() - (1.0 - 64.0 / 4096.0)).abs() < 1e-3, "{value}");
    }
}

fn rows_that_nobody_pushed_stay_as_they_are(world: &World) {
    world.init("lazy", DType::F32, &[4, 2], 8.0);
    set(world, "sgd,lr=0.5,wd=0.5");
    world.store.push_rows("lazy", &[sparse([4, 2], &[(1, world.mine())])], 0).unwrap();
    let moved = (8.0 - 0.5 * (world.total() + 4.0)) as f32;
    assert_eq!(world.pull::<f32>("lazy", &[4, 2]), [8.0, 8.0, moved, moved, 8.0, 8.0, 8.0, 8.0]);
}

fn a_wrong_hyper_parameter_is_an_error_and_changes_nothing(world: &World) {
    world.vector("hyper", 1);
    set(world, "sgd,lr=1");
    let error = world.set_optimizer(&Optimizer::sgd(f64::NAN)).unwrap_err().to_string();
    assert!(error.contains("learning_rate") && error.contains("hint:"), "{error}");
    world.push("hyper", &[world.mine() as f32]);
    assert_eq!(world.pull_f32("hyper", 1), [-world.total() as f32]);
}

fn an_optimizer_on_integers_is_an_error_that_changes_nothing(world: &World) {
    world.init("integers", DType::I32, &[2], 3.0);
    set(world, "sgd,lr=1");
    let error = world.store.push("integers", &[Tensor::full(DType::I32, &[2], 1.0)], 0).unwrap_err().to_string();
    assert!(error.contains("\"integers\"") && error.contains("i32") && error.contains("hint:"), "{error}");
    assert_eq!(world.pull::<i32>("integers", &[2]), [3; 2]);
}

/// Returns the step of a push of 1 by rank 0, 2 by rank 1, ...
fn step(world: &World, key: &str) -> f32 {
    let before = world.pull_f32(key, 1)[0];
    world.push(key, &[world.mine() as f32]);
    world.pull_f32(key, 1)[0] - before
}

fn restored_states_continue_exactly(world: &World) {
    world.vector("restored", 1);
    set(world, "sgd,lr=0.5,momentum=0.5");
    let path = world.folder.join(format!("restored-{}.states", world.rank()));
    let first = step(world, "restored");
    world.store.save_optimizer_states(&path, false).unwrap();
    let (second, third) = (step(world, "restored"), step(world, "restored"));
    assert!(first > second && second > third);
    world.store.load_optimizer_states(&path).unwrap();
    assert_eq!([step(world, "restored"), step(world, "restored")], [second, third]);
}

fn a_dumped_optimizer_is_restored_too(world: &World) {
    world.vector("dumped", 1);
    set(world, "sgd,lr=0.25,momentum=0.5");
    let path = world.folder.join(format!("dumped-{}.states", world.rank()));
    step(world, "dumped");
    world.store.save_optimizer_states(&path, true).unwrap();
    let second = step(world, "dumped");
    set(world, "test");
    assert_eq!(step(world, "dumped"), world.total() as f32);
    world.store.load_optimizer_states(&path).unwrap();
    assert_eq!(step(world, "dumped"), second);
}

fn a_damaged_states_file_is_an_error(world: &World) {
    let path = world.folder.join(format!("damaged-{}.states", world.rank()));
    std::fs::write(&path, "ringpull-states2\u{ff}").unwrap();
    for (path, part) in [(path, "damaged"), (world.folder.join("absent"), "cannot read")] {
        let error = world.store.load_optimizer_states(&path).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

fn an_updater_is_given_the_sum_and_changes_the_value(world: &World) {
    world.init("updater", DType::F32, &[2], 1.0);
    let double_and_add = |key: &ringpull_base::Key, received: &Tensor, stored: &Tensor| {
        assert_eq!(*key, "updater".into());
        let received = received.to_vec::<f32>()?;
        for (value, sum) in stored.write().as_mut_slice::<f32>().iter_mut().zip(received) {
            *value = 2.0 * *value + sum;
        }
        Ok(())
    };
    world.store.set_updater(Box::new(double_and_add)).unwrap();
    let mut expected = 1.0;
    for _ in 0..3 {
        let values = [Tensor::full(DType::F32, &[2], world.mine()), Tensor::full(DType::F32, &[2], 1.0)];
        world.store.push("updater", &values, 0).unwrap();
        expected = 2.0 * expected + world.total() + world.workers() as f64;
        assert_eq!(world.pull_f32("updater", 2), [expected as f32; 2]);
    }
}

fn an_updater_is_an_error_since_servers_run_no_code(world: &World) {
    let error = world.store.set_updater(Box::new(|_, _, _| Ok(()))).unwrap_err().to_string();
    assert!(error.contains("set_updater") && error.contains(world.store.kind().name()), "{error}");
}

fn a_push_without_an_optimizer_is_an_error(world: &World) {
    world.init("no optimizer", DType::F32, &[1], 2.0);
    let outcome = world.store.push("no optimizer", &[Tensor::zeros(DType::F32, &[1])], 0);
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("set_optimizer"), "{error}");
    assert_eq!(world.pull_f32("no optimizer", 1), [2.0]);
}

fn every_push_is_applied_once_when_all_have_met(world: &World) {
    set(world, "test");
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        world.init(&format!("met {dtype}"), dtype, &[257], 0.0);
    }
    world.init("met large", DType::F32, &[(3 << 20) / 4 + 1], 0.0);
    world.store.barrier().unwrap();
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        for _ in 0..=world.rank() {
            world.store.push(format!("met {dtype}"), &[Tensor::full(dtype, &[257], 2.0)], 0).unwrap();
        }
    }
    let large = Tensor::full(DType::F32, &[(3 << 20) / 4 + 1], world.mine());
    world.store.push("met large", &[large], 0).unwrap();
    world.store.wait_all().unwrap();
    world.store.barrier().unwrap();
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        ringpull_base::with_element!(dtype, T => {
            let expected = <T as ringpull_base::Element>::from_f64(2.0 * world.total());
            assert_eq!(world.pull::<T>(&format!("met {dtype}"), &[257]), vec![expected; 257], "{dtype}");
        });
    }
    let sum = world.total() as f32;
    assert!(world.pull_f32("met large", (3 << 20) / 4 + 1).iter().all(|value| *value == sum));
    world.store.barrier().unwrap();
}

fn a_key_has_a_rate_of_its_own_when_all_have_met(world: &World) {
    world.vector("met common", 2);
    world.vector("met slow", 2);
    let mut optimizer: Optimizer = "sgd,lr=1".parse().unwrap();
    optimizer.lr_mult = [("met slow".into(), 0.5)].into();
    world.set_optimizer(&optimizer).unwrap();
    for (key, rate) in [("met common", 1.0), ("met slow", 0.5)] {
        world.push(key, &[world.mine() as f32; 2]);
        world.store.wait_all().unwrap();
        world.store.barrier().unwrap();
        assert_eq!(world.pull_f32(key, 2), [-rate * world.total() as f32; 2], "{key}");
    }
}

fn own_pushes_are_seen_at_once(world: &World) {
    world.vector("own", 2);
    set(world, "test");
    let out = Tensor::zeros(DType::F32, &[2]);
    for round in 1..5u8 {
        world.push("own", &[1.0; 2]);
        world.store.pull("own", std::slice::from_ref(&out), 0).unwrap();
        let seen = out.to_vec::<f32>().unwrap()[0];
        assert!(seen >= f32::from(round), "{seen} after {round} pushes of my own");
    }
    world.store.barrier().unwrap();
}
