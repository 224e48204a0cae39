//! Figures added up over all workers, through a store that runs an optimizer on whatever is pushed.

use ringpull::{DType, Error, KvStore, Optimizer, Result, RowSparse, Rule, Tensor};

/// The sums of `figures` over all workers. Collective; `key` must be new. `optimizer` is the store's, and stays so: for this one
/// push it takes a step of the sum itself, with its rule unchanged, so that the states of other keys are kept.
pub fn total(store: &KvStore, optimizer: &Optimizer, key: &str, figures: &[f64]) -> Result<Vec<f64>> {
    // The first step of a key has no momentum behind it.
    let rescale_grad = match optimizer.rule {
        Rule::Sgd { nesterov: false, .. } => -1.0,
        Rule::Sgd { momentum, nesterov: true } => -1.0 / (1.0 + momentum),
        Rule::Test => 1.0,
        Rule::Adam { .. } => {
            return Err(Error::argument(
                "a sum of figures in a store that runs adam, whose steps are no sums",
                "evaluate on one worker, or train with sgd or nag",
            ));
        }
    };
    let shape = [figures.len()];
    store.init(key, &Tensor::zeros(DType::F64, &shape))?;
    store.set_optimizer(&Optimizer {
        learning_rate: 1.0,
        rescale_grad,
        weight_decay: 0.0,
        clip_gradient: None,
        ..optimizer.clone()
    })?;
    // Rows are never compressed.
    let ids: Vec<i64> = (0..figures.len() as i64).collect();
    store.push_rows(key, &[RowSparse::new(&shape, &ids, Tensor::from_slice(&shape, figures))?], 0)?;
    store.set_optimizer(optimizer)?;
    store.wait_all()?;
    store.barrier()?;
    let out = Tensor::zeros(DType::F64, &shape);
    store.pull(key, std::slice::from_ref(&out), 0)?;
    out.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringpull::create;
    use std::slice::from_ref;

    #[test]
    fn figures_are_summed_and_training_goes_on_as_if_nothing_had_been() {
        for (text, moved) in [("sgd,lr=0.5,momentum=0.5", 1.25), ("nag,lr=0.5,momentum=0.5", 1.625), ("test", -2.0)] {
            let (store, optimizer) = (create("local").unwrap(), text.parse().unwrap());
            let one = Tensor::full(DType::F32, &[1], 1.0);
            let out = Tensor::full(DType::F32, &[1], 0.0);
            store.init("w", &out).unwrap();
            store.set_optimizer(&optimizer).unwrap();
            store.push("w", from_ref(&one), 0).unwrap();
            assert_eq!(total(&store, &optimizer, "figures", &[3.0, 0.0, 7.5]).unwrap(), [3.0, 0.0, 7.5], "{text}");
            store.push_pull("w", &[one], from_ref(&out), 0).unwrap();
            assert_eq!(out.to_vec::<f32>().unwrap(), [-moved], "{text}");
        }
        let (store, adam) = (create("local").unwrap(), "adam".parse().unwrap());
        assert!(total(&store, &adam, "figures", &[1.0]).is_err());
    }
}
