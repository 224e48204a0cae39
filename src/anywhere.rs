//! Values and outputs that may be in the memory of devices, for backends that take them.

use std::sync::Arc;

use ringpull_base::{Buffer, Remote, Result, Tensor, TensorMut, TensorRef};
use ringpull_device::Devices;

use crate::Entry;
use crate::contribution::{self, Contribution};

/// A backend that takes tensors wherever they are. Its `push` and `pull` are called in place of [`Backend`](super::Backend)'s.
pub trait Anywhere {
    /// The devices that it works on.
    fn devices(&self) -> &Arc<Devices>;
    /// Adds this worker's gradient, as `Backend::push` does.
    fn push(&self, entry: &Entry, gradient: Gradient, outs: Vec<TensorMut>, priority: i32) -> Result<()>;
    /// Writes the key's value into `outs`, as `Backend::pull` does. Those on devices are ready on their streams.
    fn pull(&self, entry: &Entry, outs: Vec<TensorMut>, priority: i32) -> Result<()>;
    /// An error if `tensor` holds a NaN or an Inf. Blocks.
    fn check_finite(&self, entry: &Entry, tensor: &Tensor) -> Result<()>;
}

/// One of the values of a push.
pub enum Value {
    /// Locked against writers until it has been used.
    Held(TensorRef),
    /// Summed on the host before.
    Summed(Buffer),
    /// The value stands in this output.
    InPlace(usize),
}

impl Value {
    /// Its memory, if it is not the host's; `outs` came with it.
    pub fn remote<'a>(&'a self, outs: &'a [TensorMut]) -> Option<&'a Remote> {
        match self {
            Value::Held(held) => held.remote(),
            Value::Summed(_) => None,
            Value::InPlace(index) => outs[*index].remote(),
        }
    }
}

/// What one process adds to a key in one push, not yet summed.
pub struct Gradient {
    /// The values in the order they were given, at least one.
    pub values: Vec<Value>,
}

impl Gradient {
    /// Where those values are that are not in host memory.
    pub fn remotes<'a>(&'a self, outs: &'a [TensorMut]) -> impl Iterator<Item = &'a Remote> {
        self.values.iter().filter_map(|value| value.remote(outs))
    }
}

impl From<Contribution> for Gradient {
    fn from(contribution: Contribution) -> Self {
        let value = match contribution {
            Contribution::Held(held) => Value::Held(held),
            Contribution::Summed(sum) => Value::Summed(sum),
            Contribution::InPlace(index) => Value::InPlace(index),
        };
        Gradient { values: vec![value] }
    }
}

/// As `Anywhere::check_finite`, of host memory.
pub(super) fn check_finite(entry: &Entry, rank: usize, tensor: &Tensor) -> Result<()> {
    contribution::check_finite(entry, rank, tensor.read()?.bytes())
}
