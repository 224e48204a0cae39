//! Wrong arguments give one clear error on the caller, and change nothing.

use std::slice::from_ref;

use ringpull::create;
use ringpull_base::{DType, Error, Kind, Result, RowSparse, Tensor};
use ringpull_kernels::compress::{Codec, Compression};

use crate::rows::sparse;
use crate::world::{Promise, World, promises};

/// For every kind.
pub(crate) const ANY: &[Promise] = promises![
    an_unknown_kind_is_an_error_that_lists_the_kinds,
    a_device_kind_says_what_it_needs,
    an_unknown_key_is_an_error_that_names_it,
    a_second_init_is_an_error_and_the_first_stays,
    a_key_of_the_other_type_is_an_error,
    a_value_that_does_not_fit_is_an_error_and_changes_nothing,
    rows_that_do_not_exist_are_an_error,
    compression_with_parameters_that_cannot_be_used_is_an_error,
];

/// For a store of integer keys, with `RINGPULL_CHECK_NAN=1`.
pub(crate) const INTEGERS: &[Promise] = promises![
    integer_keys_work_as_string_keys_do,
    a_string_among_integers_is_an_error,
    a_value_that_is_not_finite_is_an_error_that_names_key_and_rank,
];

/// Returns the error. Checks that its text has all of `parts` and a hint.
fn complaint<T>(outcome: Result<T>, parts: &[&str]) -> Error {
    let error = outcome.err().expect("a wrong argument is an error");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    error
}

fn an_unknown_kind_is_an_error_that_lists_the_kinds(_: &World) {
    for kind in ["dist_snyc", "", "LOCAL", "horovod"] {
        complaint(create(kind), &[&format!("{kind:?}"), "local", "dist_sync_mpi", "hint:"]);
    }
}

fn a_device_kind_says_what_it_needs(_: &World) {
    if ringpull_base::config::devices().is_some() || !ringpull_device::survey().devices.is_empty() {
        return;
    }
    complaint(create("device"), &["CUDA driver", "NCCL", "hint:"]);
}

fn an_unknown_key_is_an_error_that_names_it(world: &World) {
    let (tensor, rank) = (Tensor::zeros(DType::F32, &[1]), format!("rank {}", world.rank()));
    let outs = std::slice::from_ref(&tensor);
    complaint(world.store.push("nobody", outs, 0), &["push of key \"nobody\"", &rank, "hint:"]);
    complaint(world.store.pull("nobody", outs, 0), &["pull of key \"nobody\"", &rank, "hint:"]);
    complaint(world.store.push_pull("nobody", outs, outs, 0), &["push_pull of key \"nobody\"", &rank]);
    complaint(world.store.pull_rows("nobody", &[0], 0), &["pull_rows of key \"nobody\"", &rank]);
    complaint(world.store.push_rows("nobody", &[sparse([1, 1], &[])], 0), &["push_rows of key \"nobody\"", &rank]);
}

fn a_second_init_is_an_error_and_the_first_stays(world: &World) {
    world.init("init twice", DType::F32, &[2], 6.0);
    let rank = format!("rank {}", world.rank());
    let other = Tensor::full(DType::F32, &[2], 7.0);
    complaint(world.store.init("init twice", &other), &["duplicate init", "\"init twice\"", &rank, "hint:"]);
    complaint(world.store.broadcast("init twice", &other, from_ref(&other), 0), &["duplicate init"]);
    assert_eq!(world.pull_f32("init twice", 2), [6.0; 2]);
}

fn a_key_of_the_other_type_is_an_error(world: &World) {
    let (tensor, rank) = (Tensor::zeros(DType::F32, &[1]), format!("rank {}", world.rank()));
    complaint(world.store.init(7, &tensor), &["mixed key types", "key 7", &rank, "hint:"]);
    complaint(world.store.push(7, from_ref(&tensor), 0), &["mixed key types", "key 7", &rank]);
    complaint(world.store.pull(7, &[tensor], 0), &["mixed key types", "key 7", &rank]);
}

fn a_value_that_does_not_fit_is_an_error_and_changes_nothing(world: &World) {
    world.init("fit", DType::F32, &[2, 3], 6.0);
    let rank = format!("rank {}", world.rank());
    let fits = || Tensor::full(DType::F32, &[2, 3], 1.0);
    let wrong_shape = Tensor::zeros(DType::F32, &[3, 2]);
    let wrong_dtype = Tensor::zeros(DType::F64, &[2, 3]);
    let shape = ["key \"fit\"", &rank, "[3, 2]", "[2, 3]", "hint:"];
    let dtype = ["key \"fit\"", &rank, "f64", "f32", "hint:"];
    for (wrong, parts) in [(&wrong_shape, shape), (&wrong_dtype, dtype)] {
        complaint(world.store.push("fit", from_ref(wrong), 0), &parts);
        complaint(world.store.push("fit", &[fits(), wrong.clone()], 0), &parts);
        complaint(world.store.push_pull("fit", &[fits()], &[fits(), wrong.clone()], 0), &parts);
        complaint(world.store.pull("fit", &[fits(), wrong.clone()], 0), &parts);
    }
    complaint(world.store.push_rows("fit", &[sparse([5, 3], &[(0, 1.0)])], 0), &["key \"fit\"", &rank, "[5, 3]"]);
    assert_eq!(world.pull::<f32>("fit", &[2, 3]), [6.0; 6]);
}

fn rows_that_do_not_exist_are_an_error(world: &World) {
    world.init("bad rows", DType::F32, &[2, 3], 6.0);
    world.init("bad rows scalar", DType::F32, &[], 6.0);
    complaint(world.store.pull_rows("bad rows", &[2], 0), &["row id 2", "hint:"]);
    complaint(world.store.pull_rows("bad rows", &[-1], 0), &["row id -1", "hint:"]);
    complaint(world.store.pull_rows("bad rows scalar", &[0], 0), &["scalar", "hint:"]);
    complaint(RowSparse::new(&[2, 3], &[2], Tensor::zeros(DType::F32, &[1, 3])), &["row id 2"]);
    complaint(RowSparse::new(&[2, 3], &[0], Tensor::zeros(DType::F32, &[2, 3])), &["1 row ids", "hint:"]);
    assert_eq!(world.pull::<f32>("bad rows", &[2, 3]), [6.0; 6]);
}

fn compression_with_parameters_that_cannot_be_used_is_an_error(world: &World) {
    let codec = Codec::TwoBit { threshold: 0.0 };
    complaint(world.store.set_gradient_compression(&Compression::Codec(codec)), &["greater than 0", "hint:"]);
    let two_bit = "2bit".parse().unwrap();
    if world.store.kind() == Kind::Local {
        complaint(world.store.set_gradient_compression(&two_bit), &["2bit", "not supported", "local"]);
    }
    if world.store.kind() == Kind::DistAsync {
        return;
    }
    // Nothing was changed: a sum of codes would have another value.
    world.vector("not compressed", 1);
    world.push("not compressed", &[0.375]);
    assert_eq!(world.pull_f32("not compressed", 1), [0.375 * world.workers() as f32]);
}

fn integer_keys_work_as_string_keys_do(world: &World) {
    for key in [3, -1, i64::MAX] {
        world.store.init(key, &Tensor::full(DType::F32, &[3], 1.0)).unwrap();
    }
    for key in [i64::MAX, 3, -1] {
        let tensor = Tensor::full(DType::F32, &[3], world.mine());
        world.store.push_pull(key, from_ref(&tensor), from_ref(&tensor), 0).unwrap();
        assert_eq!(world.see::<f32>(&tensor), [world.total() as f32; 3]);
    }
}

fn a_string_among_integers_is_an_error(world: &World) {
    complaint(world.store.init("w", &Tensor::zeros(DType::F32, &[1])), &["mixed key types", "key \"w\"", "hint:"]);
}

fn a_value_that_is_not_finite_is_an_error_that_names_key_and_rank(world: &World) {
    world.store.init(50, &Tensor::zeros(DType::F32, &[3])).unwrap();
    let last = world.workers() - 1;
    if world.rank() == last {
        let rank = format!("rank {last}");
        for (value, name) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "Inf")] {
            let tensor = Tensor::from_slice(&[3], &[0.0, value, 0.0]);
            let parts = [name, "element 1", "key 50", &rank, "RINGPULL_CHECK_NAN"];
            complaint(world.store.push(50, from_ref(&tensor), 0), &parts);
            complaint(world.store.push_pull(50, from_ref(&tensor), from_ref(&tensor), 0), &parts);
        }
    }
    let tensor = Tensor::full(DType::F32, &[3], world.mine());
    world.store.push_pull(50, from_ref(&tensor), from_ref(&tensor), 0).unwrap();
    assert_eq!(world.see::<f32>(&tensor), [world.total() as f32; 3]);
}
