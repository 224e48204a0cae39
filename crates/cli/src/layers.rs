//! A model as layers: which keys a layer has, and which part of a step's computing it takes.
//!
//! The parts follow from the layers' multiplications: for the built-in models by their architectures, for a file by its
//! third column, and where that is missing by the tensors' sizes.

use std::ops::Range;

use ringpull_base::Result;
use ringpull_workload::models::{self, ModelKey};

/// The tokens of a sequence that BERT is trained on.
const SEQUENCE: f64 = 512.0;

/// What the names of one layer's tensors end with.
const ENDINGS: [&str; 4] = ["weight", "bias", "gamma", "beta"];

/// Keys that get their gradients together.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// What its keys' names begin with.
    pub name: String,
    /// Its keys, as places in the model's list.
    pub keys: Range<usize>,
    /// Its part of the step's computing; all layers' parts add up to 1.
    pub part: f64,
}

/// A model to replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// The keys, in the order of the forward pass.
    pub keys: Vec<ModelKey>,
    /// The layers, in that order.
    pub layers: Vec<Layer>,
}

/// The model by name, or of a file, every tensor scaled to `scale` of its elements. The layers' parts do not change with it.
pub fn load(model: &str, scale: f64) -> Result<Network> {
    let keys = models::load(model, scale)?;
    let whole = models::load_whole(model)?;
    let by_name = |key: &ModelKey| match model {
        "vgg16" => Some(vgg16(key)),
        "resnet50" => Some(resnet50(key)),
        "bert-large" => Some(bert_large(key)),
        _ => None,
    };
    let costs: Vec<f64> =
        whole.iter().map(|(key, flops)| flops.or_else(|| by_name(key)).unwrap_or(key.len() as f64)).collect();
    Ok(Network { layers: layers(&keys, &costs), keys })
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

/// `fc6` of `fc6_weight` and `fc6.bias`; a name without such an ending is a layer's own.
fn stem(name: &str) -> &str {
    match name.rsplit_once(['_', '.']) {
        Some((stem, ending)) if ENDINGS.contains(&ending) => stem,
        _ => name,
    }
}

/// A convolution's weights are used at every place of its output; a stage of VGG-16 has half the side of the one before.
fn vgg16(key: &ModelKey) -> f64 {
    let stage = key.name.strip_prefix("conv").and_then(|rest| rest.split('_').next()?.parse::<u32>().ok());
    let side = stage.map_or(1.0, |stage| 224.0 / f64::from(1 << (stage - 1)));
    weights(key) * side * side
}

fn resnet50(key: &ModelKey) -> f64 {
    let stage = key.name.strip_prefix("stage").and_then(|rest| rest.split('_').next()?.parse::<u32>().ok());
    let side = match stage {
        Some(stage) => 56.0 / f64::from(1 << (stage - 1)),
        None if key.name.starts_with("stem") => 112.0,
        None => 1.0,
    };
    weights(key) * side * side
}

/// For one token: an embedding is looked up, and the pooler sees one token of a sequence.
fn bert_large(key: &ModelKey) -> f64 {
    if key.name.starts_with("embedding") {
        return 0.0;
    }
    if key.name.starts_with("pooler") {
        return weights(key) / SEQUENCE;
    }
    // Every token is held against every other, for the scores and for the values.
    let attention = if key.name.ends_with("attention_out_weight") {
        2.0 * SEQUENCE * key.shape.first().map_or(0.0, |rows| *rows as f64)
    } else {
        0.0
    };
    weights(key) + attention
}

/// Biases and the like are added once for each output, which is nothing beside the multiplications.
fn weights(key: &ModelKey) -> f64 {
    if key.name.ends_with("weight") { key.len() as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplications of one image or token, as the models' papers count them.
    fn total(model: &str, cost: fn(&ModelKey) -> f64) -> f64 {
        models::load(model, 1.0).unwrap().iter().map(cost).sum()
    }

    #[test]
    fn the_built_in_models_have_the_published_multiplications() {
        assert!((total("vgg16", vgg16) / 15.47e9 - 1.0).abs() < 0.01, "{}", total("vgg16", vgg16));
        assert!((total("resnet50", resnet50) / 3.86e9 - 1.0).abs() < 0.01, "{}", total("resnet50", resnet50));
        let bert = total("bert-large", bert_large);
        assert!((bert / 3.272e8 - 1.0).abs() < 0.01, "24 layers of 12 x 1024^2 and 2 x 512 x 1024: {bert}");
    }

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
