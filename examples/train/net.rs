//! A small convolutional network on candle, with its weights as tensors of the store.

use std::sync::Arc;

use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::loss::cross_entropy;
use candle_nn::{Conv2d, Conv2dConfig, Linear};

use ringpull::Devices;
use ringpull_examples::dataset::Dataset;
use ringpull_examples::shard::Random;

use crate::lend::lend;

/// Name and shape of each weight, in the order of the layers.
const WEIGHTS: [(&str, &[usize]); 6] = [
    ("conv1.weight", &[8, 1, 5, 5]),
    ("conv1.bias", &[8]),
    ("conv2.weight", &[16, 8, 3, 3]),
    ("conv2.bias", &[16]),
    ("linear.weight", &[10, 16 * 7 * 7]),
    ("linear.bias", &[10]),
];

/// Two strided convolutions and a linear layer: 28x28 pixels to 14x14, to 7x7, to 10 classes.
pub(crate) struct Net {
    weights: Vec<Var>,
    device: Device,
    /// The devices on which the store takes candle's tensors. `None` if tensors go through host memory.
    lent_to: Option<Arc<Devices>>,
}

/// Returns the device on which candle computes.
pub(crate) fn device(name: &str) -> std::result::Result<Device, String> {
    match name {
        "cpu" => Ok(Device::Cpu),
        _ if !candle_core::utils::cuda_is_available() => Err(format!(
            "this program cannot train on {name}: candle was built without CUDA\n  hint: build it where the CUDA 13 toolkit is, with \
             `RUSTFLAGS='--cfg candle_cuda' cargo build --release --example train --features candle-core/cuda`"
        )),
        // By default each thread of candle has its own stream. With such streams the store's threads could
        // not wait for candle's work.
        _ => Device::new_cuda_with_stream(0).map_err(|cause| format!("the first GPU cannot be used: {cause}")),
    }
}

impl Net {
    /// Makes the weights from `seed`, evenly distributed within `1 / sqrt(inputs)` of 0.
    pub(crate) fn new(seed: u64, device: &Device) -> Result<Self> {
        let mut random = Random::new(seed);
        let mut weight = |shape: &[usize]| {
            let bound = match shape {
                [_] => 0.0,
                _ => 1.0 / (shape[1..].iter().product::<usize>() as f32).sqrt(),
            };
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.signed_unit() * bound).collect();
            Var::from_vec(values, shape, device)
        };
        let weights = WEIGHTS.iter().map(|(_, shape)| weight(shape)).collect::<Result<_>>()?;
        Ok(Net { weights, device: device.clone(), lent_to: None })
    }

    /// If candle's tensors are on a GPU, lends them to a store that works on `devices`.
    pub(crate) fn over(self, devices: Option<&Arc<Devices>>) -> Self {
        Net { lent_to: devices.filter(|_| self.device.is_cuda()).cloned(), ..self }
    }

    /// Each weight with its name, as a tensor that the store can write.
    pub(crate) fn export(&self) -> Result<Vec<(&'static str, ringpull::Tensor)>> {
        WEIGHTS.iter().zip(&self.weights).map(|((name, _), weight)| Ok((*name, self.to_store(weight)?))).collect()
    }

    /// Takes over the weights that the store has written. Blocks until they are written.
    pub(crate) fn import(
        &self,
        weights: &[(&str, ringpull::Tensor)],
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        for (weight, (_, tensor)) in self.weights.iter().zip(weights) {
            if tensor.remote().is_some() {
                // It is the weight's own memory. Candle's work from here on comes after the work that the
                // store has queued.
                drop(tensor.read_anywhere()?);
                continue;
            }
            weight.set(&Tensor::from_slice(tensor.read()?.as_slice::<f32>(), weight.shape(), &self.device)?)?;
        }
        Ok(())
    }

    /// The loss summed over `samples`, and the number of samples that are classified rightly.
    fn forward(&self, data: &Dataset, samples: &[usize]) -> Result<(Tensor, f64)> {
        let [height, width] = data.size;
        let pixels: Vec<f32> =
            samples.iter().flat_map(|index| data.image(*index)).map(|pixel| f32::from(*pixel) / 255.0 - 0.3).collect();
        let labels: Vec<u32> = samples.iter().map(|index| data.label(*index).into()).collect();
        let images = Tensor::from_vec(pixels, (samples.len(), 1, height, width), &self.device)?;
        let labels = Tensor::from_vec(labels, samples.len(), &self.device)?;
        let layer =
            |index: usize| (self.weights[index].as_tensor().clone(), Some(self.weights[index + 1].as_tensor().clone()));
        let conv = |index, padding| {
            let (weight, bias) = layer(index);
            Conv2d::new(weight, bias, Conv2dConfig { padding, stride: 2, ..Conv2dConfig::default() })
        };
        let (weight, bias) = layer(4);
        let hidden = conv(2, 1).forward(&conv(0, 2).forward(&images)?.relu()?)?.relu()?;
        let logits = Linear::new(weight, bias).forward(&hidden.flatten_from(1)?)?;
        let right = logits.argmax(D::Minus1)?.eq(&labels)?.to_dtype(DType::F64)?.sum_all()?.to_scalar()?;
        Ok(((cross_entropy(&logits, &labels)? * samples.len() as f64)?, right))
    }

    /// The loss summed over `samples` and its gradient for each weight, times `scale`.
    pub(crate) fn gradients(
        &self,
        data: &Dataset,
        samples: &[usize],
        scale: f64,
    ) -> Result<(f64, Vec<ringpull::Tensor>)> {
        if samples.is_empty() {
            let zeros = WEIGHTS.iter().map(|(_, shape)| ringpull::Tensor::zeros(ringpull::DType::F32, shape));
            return Ok((0.0, zeros.collect()));
        }
        let (loss, _) = self.forward(data, samples)?;
        let found = loss.backward()?;
        let gradients = self.weights.iter().map(|weight| match found.get(weight) {
            Some(gradient) if scale == 1.0 => self.to_store(gradient),
            Some(gradient) => self.to_store(&(gradient * scale)?),
            None => self.to_store(&weight.zeros_like()?),
        });
        Ok((loss.to_scalar::<f32>()?.into(), gradients.collect::<Result<_>>()?))
    }

    /// The accuracy in per cent and the mean loss over `data`.
    pub(crate) fn evaluate(&self, data: &Dataset) -> Result<(f64, f64)> {
        let (mut all_right, mut all_loss) = (0.0, 0.0);
        for batch in (0..data.len()).collect::<Vec<_>>().chunks(500) {
            let (loss, right) = self.forward(data, batch)?;
            all_right += right;
            all_loss += f64::from(loss.to_scalar::<f32>()?);
        }
        Ok((100.0 * all_right / data.len() as f64, all_loss / data.len() as f64))
    }

    /// The tensor for the store: the tensor itself if the store works on candle's GPU, otherwise a copy in
    /// host memory.
    fn to_store(&self, tensor: &Tensor) -> Result<ringpull::Tensor> {
        match &self.lent_to {
            Some(devices) => lend(devices, tensor),
            None => to_host(tensor),
        }
    }
}

fn to_host(tensor: &Tensor) -> Result<ringpull::Tensor> {
    let values = tensor.flatten_all()?.to_vec1::<f32>()?;
    Ok(ringpull::Tensor::from_slice(tensor.dims(), &values))
}
