//! Tests sums with helpers, and jobs that lose a helper.

use std::sync::Arc;

use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, Tensor};

use crate::progress::engine::Engine;

const LEN: usize = 4 << 20;

/// Sums every worker's `rank + 1`. Returns the first element, and true if all elements are equal.
fn sum_on(engine: &Arc<Engine>, len: usize) -> ringpull_base::Result<(f32, bool)> {
    let tensor = Tensor::from_slice(&[len], &vec![engine.rank() as f32 + 1.0; len]);
    let summed = tensor.clone();
    engine.collective("sum", move |comm, stamp| comm.allreduce_tensor(AlgorithmChoice::Auto, &summed, stamp))?;
    let values = tensor.to_vec::<f32>()?;
    Ok((values[0], values.iter().all(|value| *value == values[0])))
}

#[test]
fn workers_and_helpers_sum_and_helpers_are_not_counted() {
    for (workers, helpers) in [(1, 1), (2, 3), (3, 1), (4, 2), (3, 5)] {
        let engines = Engine::in_process_with_helpers(workers, helpers, &Config::default()).unwrap();
        let expected = (workers * (workers + 1) / 2) as f32;
        std::thread::scope(|scope| {
            for helper in &engines[workers..] {
                assert!(helper.is_helper());
                scope.spawn(|| helper.serve().unwrap());
            }
            for engine in &engines[..workers] {
                scope.spawn(move || {
                    assert_eq!(engine.size(), workers);
                    for len in [1, 1000, LEN, LEN + 1] {
                        assert_eq!(sum_on(engine, len).unwrap(), (expected, true), "{len} of {workers}");
                    }
                    engine.barrier().unwrap();
                    engine.leave();
                });
            }
        });
        let is_useful = workers > 2;
        for helper in &engines[workers..] {
            assert_eq!(helper.traffic().0 > 0, is_useful, "{workers} workers, {helpers} helpers");
        }
    }
}

#[test]
fn a_helper_that_is_gone_is_an_error_on_every_rank_that_names_it() {
    let mut engines = Engine::in_process_with_helpers(3, 2, &Config::default()).unwrap();
    // The helper ends without having served.
    drop(engines.pop());
    std::thread::scope(|scope| {
        let served = scope.spawn(|| engines[3].serve());
        let workers: Vec<_> = engines[..3]
            .iter()
            .map(|engine| scope.spawn(move || (0..100).try_for_each(|_| sum_on(engine, LEN).map(drop))))
            .collect();
        for rank in workers.into_iter().chain([served]) {
            let error = rank.join().unwrap().unwrap_err().to_string();
            assert!(error.contains("helper 1 "), "{error}");
        }
    });
}
