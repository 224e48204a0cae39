//! A model as layers: the keys of each layer, and the layer's part of a step's computing.
//!
//! The parts are proportional to the layers' multiplications. These follow from the architecture for a
//! built-in model, and from the third column for a file. A file without a third column gives only the
//! tensors' sizes, which are taken instead.

use std::ops::Range;

use ringpull_base::config::{self, Config};
use ringpull_base::{Error, Result};
use ringpull_workload::models::{self, ModelKey};

/// The endings of the names of a layer's tensors.
const ENDINGS: [&str; 4] = ["weight", "bias", "gamma", "beta"];

/// Keys whose gradients are computed together.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// The common beginning of its keys' names.
    pub name: String,
    /// Its keys, as indices of the model's list.
    pub keys: Range<usize>,
    /// Its part of the step's computing. The parts of all layers add up to 1.
    pub part: f64,
}

/// A model to replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// The keys, in the order of the forward pass.
    pub keys: Vec<ModelKey>,
    /// The layers, in the order of the forward pass.
    pub layers: Vec<Layer>,
    /// The number of elements from which on a key is divided among servers.
    pub bigarray_bound: usize,
}

/// Loads a model by its name or from a file. Every tensor is scaled to `scale` times its number of elements;
/// the layers' parts stay those of the unscaled model.
pub fn load(model: &str, scale: f64) -> Result<Network> {
    let keys = models::load(model, scale)?;
    let whole = models::load_whole(model)?;
    let costs: Vec<f64> = whole.iter().map(|(key, flops)| flops.unwrap_or(key.len() as f64)).collect();
    Ok(Network { layers: layers(&keys, &costs), keys, bigarray_bound: bigarray_bound(scale)? })
}

/// Returns the bound of a job whose tensors are scaled: the default times `scale`, so that servers divide the
/// same keys as in the whole model. If `MXNET_KVSTORE_BIGARRAY_BOUND` is set, returns its value unscaled.
pub fn bigarray_bound(scale: f64) -> Result<usize> {
    let bound = Config::from_env()?.bigarray_bound;
    let is_set = config::text(BIGARRAY_BOUND).is_some();
    Ok(if is_set { bound } else { ((bound as f64 * scale) as usize).max(1) })
}

/// The variable that [`bigarray_bound`] reads.
pub const BIGARRAY_BOUND: &str = "MXNET_KVSTORE_BIGARRAY_BOUND";

/// The arguments of `ringpull bench` that name this model.
pub fn named(model: &str, scale: f64) -> Result<Vec<String>> {
    let is_file = !models::NAMES.contains(&model);
    let file = std::path::absolute(model).map_err(|cause| Error::io("find", model, &cause))?;
    let model = if is_file { file.display().to_string() } else { model.to_owned() };
    Ok(vec!["--model".to_owned(), model, "--scale".to_owned(), scale.to_string()])
}

fn layers(keys: &[ModelKey], costs: &[f64]) -> Vec<Layer> {
    let total: f64 = costs.iter().sum();
    let mut layers: Vec<Layer> = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        let part = costs[index] / total;
        let name = stem(&key.name);
        match layers.last_mut() {
            Some(last) if last.name == name => {
                last.keys.end = index + 1;
                last.part += part;
            }
            _ => layers.push(Layer { name: name.to_owned(), keys: index..index + 1, part }),
        }
    }
    layers
}

/// Returns the layer's part of a tensor's name: `fc6` for `fc6_weight` and `fc6.bias`. A name without such an
/// ending is a layer of its own.
fn stem(name: &str) -> &str {
    match name.rsplit_once(['_', '.']) {
        Some((stem, ending)) if ENDINGS.contains(&ending) => stem,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_its_weight_and_what_goes_with_it_and_the_parts_make_a_whole() {
        for (model, count) in [("vgg16", 16), ("resnet50", 54), ("bert-large", 197)] {
            let network = load(model, 0.001).unwrap();
            assert_eq!(network.layers.len(), count, "{model}");
            assert!((network.layers.iter().map(|layer| layer.part).sum::<f64>() - 1.0).abs() < 1e-9);
            assert_eq!(network.layers.iter().map(|layer| layer.keys.len()).sum::<usize>(), network.keys.len());
        }
        let vgg = load("vgg16", 1.0).unwrap();
        let dense: f64 = vgg.layers[13..].iter().map(|layer| layer.part).sum();
        assert!(vgg.layers[13].name == "fc6" && (0.005..0.01).contains(&dense), "{dense}");
    }

    #[test]
    fn a_file_weighs_its_layers_by_its_third_column_or_by_their_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let parts = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let network = load(path.to_str().unwrap(), 1.0).unwrap();
            network.layers.iter().map(|layer| (layer.name.clone(), layer.part)).collect::<Vec<_>>()
        };
        let weighed = [("a".to_owned(), 0.25), ("b.norm".to_owned(), 0.75)];
        assert_eq!(parts("a_weight 2x3 1\na_bias 2 0\nb.norm.weight 3 3e0\n"), weighed);
        assert_eq!(parts("a_weight 2x1\nb.norm.weight 3\nb.norm.bias 3\n"), weighed);
    }
}
