//! The key lists of models: the name and shape of every trained tensor, in the order of the forward pass.
//!
//! The lists are generated from the architectures' own rules; a file of `name shape` or `name shape FLOPs`
//! lines serves for any other model.

use std::collections::BTreeSet;
use std::path::Path;

use ringpull_base::{DType, Error, Result};

/// The names that [`load`] knows.
pub const NAMES: [&str; 3] = ["vgg16", "resnet50", "bert-large"];

/// One trained tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelKey {
    /// Its name, which is its key in the store.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl ModelKey {
    fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        ModelKey { name: name.into(), shape: shape.to_vec() }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the key list of a model, by its name or from a file. Every tensor is scaled to `scale` times its
/// number of elements, and keeps at least one element.
///
/// At a scale other than 1 the tensors become vectors: only their sizes matter to a store.
pub fn load(model: &str, scale: f64) -> Result<Vec<ModelKey>> {
    if !(scale > 0.0 && scale <= 1000.0) {
        return Err(Error::argument(
            format!("invalid --scale {scale}: expected a factor above 0 and at most 1000"),
            "give a factor above 0, such as 0.1",
        ));
    }
    let keys = load_whole(model)?.into_iter().map(|(key, _)| key);
    if scale == 1.0 {
        return Ok(keys.collect());
    }
    let scaled = |key: ModelKey| ModelKey { shape: vec![((key.len() as f64 * scale).round() as usize).max(1)], ..key };
    Ok(keys.map(scaled).collect())
}

/// Keys with their multiplications in a forward pass: of one image, or of one token in its sequence.
type Counted = Vec<(ModelKey, Option<f64>)>;

/// Adds a layer. Each of its weights is multiplied `uses` times. The tensors `beside` the weights, such as a
/// bias, are added once for each output, which is negligible beside the multiplications.
fn add(keys: &mut Counted, name: &str, shape: &[usize], uses: f64, beside: &[&str]) {
    let weights = ModelKey::new(format!("{name}_weight"), shape);
    let multiplications = weights.len() as f64 * uses;
    keys.push((weights, Some(multiplications)));
    keys.extend(beside.iter().map(|ending| (ModelKey::new(format!("{name}_{ending}"), &shape[..1]), Some(0.0))));
}

/// VGG-16 (Simonyan and Zisserman 2014, configuration D): 13 convolutions of 3x3 and 3 dense layers, all with
/// bias.
fn vgg16() -> Counted {
    let mut keys = Vec::new();
    let mut channels = 3;
    for (stage, (width, layers)) in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)].into_iter().enumerate() {
        // A weight is used at every position of its output. Each stage has half the width and height of the
        // stage before.
        let places = f64::from(224 >> stage).powi(2);
        for layer in 1..=layers {
            add(&mut keys, &format!("conv{}_{layer}", stage + 1), &[width, channels, 3, 3], places, &["bias"]);
            channels = width;
        }
    }
    for (name, from, to) in [("fc6", 512 * 7 * 7, 4096), ("fc7", 4096, 4096), ("fc8", 4096, 1000)] {
        add(&mut keys, name, &[to, from], 1.0, &["bias"]);
    }
    keys
}

/// ResNet-50 (He et al. 2015): bottleneck blocks of 1x1, 3x3 and 1x1 convolutions without bias, each with
/// batch norm.
fn resnet50() -> Counted {
    const NORM: [&str; 2] = ["gamma", "beta"];
    let mut keys = Vec::new();
    add(&mut keys, "stem", &[64, 3, 7, 7], 112.0 * 112.0, &NORM);
    let mut channels = 64;
    for (stage, (width, blocks)) in [(64, 3), (128, 4), (256, 6), (512, 3)].into_iter().enumerate() {
        let places = f64::from(56 >> stage).powi(2);
        for block in 1..=blocks {
            let mut conv = |part: &str, to: usize, from: usize, side: usize| {
                let name = format!("stage{}_block{block}_{part}", stage + 1);
                add(&mut keys, &name, &[to, from, side, side], places, &NORM);
            };
            conv("a", width, channels, 1);
            conv("b", width, width, 3);
            conv("c", 4 * width, width, 1);
            if block == 1 {
                conv("shortcut", 4 * width, channels, 1);
            }
            channels = 4 * width;
        }
    }
    add(&mut keys, "fc", &[1000, 2048], 1.0, &["bias"]);
    keys
}

/// BERT-large (Devlin et al. 2018), uncased: 24 layers of width 1024 with a pooler and no head.
fn bert_large() -> Counted {
    const WIDTH: usize = 1024;
    /// The tokens in a training sequence.
    const SEQUENCE: f64 = 512.0;
    let mut keys = Vec::new();
    for (name, rows) in [("word", 30522), ("position", 512), ("token_type", 2)] {
        // An embedding is looked up, not multiplied.
        add(&mut keys, &format!("embedding_{name}"), &[rows, WIDTH], 0.0, &[]);
    }
    let norm = |keys: &mut Counted, name: &str| {
        let key = |ending| (ModelKey::new(format!("{name}_{ending}"), &[WIDTH]), Some(0.0));
        keys.extend(["gamma", "beta"].map(key));
    };
    norm(&mut keys, "embedding_norm");
    for layer in 0..24 {
        let name = |part: &str| format!("layer{layer}_{part}");
        for part in ["query", "key", "value"] {
            add(&mut keys, &name(part), &[WIDTH, WIDTH], 1.0, &["bias"]);
        }
        // Attention multiplies every token with every token, once for the scores and once for the values.
        let uses = 1.0 + 2.0 * SEQUENCE / WIDTH as f64;
        add(&mut keys, &name("attention_out"), &[WIDTH, WIDTH], uses, &["bias"]);
        norm(&mut keys, &name("attention_norm"));
        add(&mut keys, &name("ffn_in"), &[4 * WIDTH, WIDTH], 1.0, &["bias"]);
        add(&mut keys, &name("ffn_out"), &[WIDTH, 4 * WIDTH], 1.0, &["bias"]);
        norm(&mut keys, &name("ffn_norm"));
    }
    // The pooler sees one token of a sequence.
    add(&mut keys, "pooler", &[WIDTH, WIDTH], 1.0 / SEQUENCE, &["bias"]);
    keys
}

/// Returns the unscaled keys of a model with their multiplications. Those of a file are the third column of
/// its lines.
pub fn load_whole(model: &str) -> Result<Vec<(ModelKey, Option<f64>)>> {
    match model {
        "vgg16" => Ok(vgg16()),
        "resnet50" => Ok(resnet50()),
        "bert-large" => Ok(bert_large()),
        file => read(file),
    }
}

fn read(file: &str) -> Result<Vec<(ModelKey, Option<f64>)>> {
    let text = std::fs::read_to_string(Path::new(file)).map_err(|cause| {
        Error::argument(
            format!("unknown model {file:?}, which cannot be read as a file either: {cause}"),
            format!("the known models are {}; a file holds lines such as `conv1_weight 64x3x3x3`", NAMES.join(", ")),
        )
    })?;
    parse(file, &text)
}

/// Parses lines of `name shape` or `name shape FLOPs`, the shape as `64x3x3x3`. Empty lines and lines that
/// begin with `#` are skipped. FLOPs are those of the layer's forward pass, in any unit. Either all lines
/// have FLOPs or none has.
pub fn parse(file: &str, text: &str) -> Result<Vec<(ModelKey, Option<f64>)>> {
    let mut keys: Vec<(ModelKey, Option<f64>)> = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: String| {
            Error::argument(
                format!("{file}:{}: {what}", index + 1),
                "a line is a name, a shape and perhaps FLOPs, such as `conv1_weight 64x3x3x3` or `conv1_weight 64x3x3x3 8.7e7`",
            )
        };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (name, shape, flops) = match fields[..] {
            [name, shape] => (name, shape, None),
            [name, shape, flops] => (name, shape, Some(flops)),
            _ => return Err(wrong(format!("{} fields; expected 2 or 3", fields.len()))),
        };
        let flops = flops
            .map(|flops| {
                let number = flops.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
                number.ok_or_else(|| wrong(format!("bad FLOPs {flops:?}")))
            })
            .transpose()?;
        if keys.first().is_some_and(|(_, first)| first.is_some() != flops.is_some()) {
            return Err(wrong("some lines have FLOPs and some have none".to_owned()));
        }
        let shape = shape
            .split('x')
            .map(|side| side.parse().ok().filter(|side| *side > 0).ok_or_else(|| wrong(format!("bad shape {shape:?}"))))
            .collect::<Result<Vec<usize>>>()?;
        if !seen.insert(name.to_owned()) {
            return Err(wrong(format!("{name:?} is named twice")));
        }
        DType::F64.len_bytes(&shape).map_err(|_| wrong(format!("shape {shape:?} has too many elements")))?;
        keys.push((ModelKey::new(name, &shape), flops));
    }
    if keys.is_empty() {
        return Err(Error::argument(format!("{file} names no tensor"), "write one line `name shape` for each tensor"));
    }
    if keys.iter().all(|(_, flops)| *flops == Some(0.0)) {
        return Err(Error::argument(
            format!("{file} gives every tensor 0 FLOPs"),
            "give at least one tensor FLOPs, or leave the numbers out",
        ));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(model: &str) -> (usize, usize) {
        let keys = load(model, 1.0).unwrap();
        let names: BTreeSet<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(names.len(), keys.len(), "every name of {model} is unique");
        (keys.len(), keys.iter().map(ModelKey::len).sum())
    }

    #[test]
    fn the_models_have_the_published_numbers_of_tensors_and_parameters() {
        assert_eq!(totals("vgg16"), (32, 138_357_544));
        assert_eq!(totals("resnet50"), (161, 25_557_032));
        assert_eq!(totals("bert-large"), (391, 335_141_888));
    }

    #[test]
    fn the_built_in_models_have_the_published_multiplications() {
        // BERT has 24 layers, each of 12 x 1024^2 and 2 x 512 x 1024 multiplications.
        for (model, published) in [("vgg16", 15.47e9), ("resnet50", 3.86e9), ("bert-large", 3.272e8)] {
            let counted: f64 = load_whole(model).unwrap().iter().filter_map(|(_, count)| *count).sum();
            assert!((counted / published - 1.0).abs() < 0.01, "{model}: {counted}");
        }
    }

    #[test]
    fn scaling_keeps_the_number_of_tensors_and_scales_the_total() {
        let keys = load("vgg16", 0.01).unwrap();
        assert_eq!(keys.len(), 32);
        let total: usize = keys.iter().map(ModelKey::len).sum();
        assert!((total as f64 / 1_383_575.44 - 1.0).abs() < 1e-3, "{total}");
        assert!(load("vgg16", 1e-9).unwrap().iter().all(|key| key.len() == 1));
        assert!(load("vgg16", 0.0).is_err() && load("vgg16", f64::NAN).is_err());
    }

    #[test]
    fn a_file_is_read_strictly_and_its_errors_name_the_line() {
        let keys = parse("m", "# two tensors\n\nw 2x3\n b\t4\n").unwrap();
        assert_eq!(keys, [(ModelKey::new("w", &[2, 3]), None), (ModelKey::new("b", &[4]), None)]);
        assert_eq!(parse("m", "w 2x3 1.5e9").unwrap()[0].1, Some(1.5e9));
        for (text, line) in [
            ("w 2x3\nb", 2),
            ("w 2x", 1),
            ("w 0", 1),
            ("a 1\nb 2\na 3", 3),
            ("w 2 x", 1),
            ("w 2 -3", 1),
            ("w 2 3 4", 1),
            ("w 2 3\nb 2", 2),
            ("w -1", 1),
        ] {
            let error = parse("m", text).unwrap_err().to_string();
            assert!(error.contains(&format!("m:{line}: ")), "{error}");
        }
        assert!(parse("m", "# nothing").is_err());
        assert!(load("vgg61", 1.0).unwrap_err().to_string().contains("vgg16, resnet50, bert-large"));
    }
}
