//! The arguments of `push_pull` and `pull` from Python: keys with their values and outputs as tensors.
//!
//! Before the first key is pushed, the memory of all keys is compared, by address. An output that is a
//! value of its own key is summed in place. Any other value that shares memory with an output, of any key,
//! is copied first. Two outputs that share memory are an error, as this memory could not hold both results.
//! If earlier calls still use the memory, the call waits for them (`Foreign::into_tensor`).

use std::sync::Arc;

use pyo3::prelude::*;

use ringpull::KvStore;
use ringpull_base::{Key, Result, Tensor};
use ringpull_device::Devices;

use crate::errors::argument;
use crate::foreign::{Access, Foreign};

/// The memory of outputs, without repetitions.
fn outputs(key: &Key, objects: &[Bound<'_, PyAny>], devices: Option<&Arc<Devices>>) -> PyResult<Vec<Foreign>> {
    let mut outs = Vec::new();
    objects.iter().try_for_each(|object| place(key, &mut outs, object, devices).map(drop))?;
    Ok(outs)
}

/// Returns the index of the object's memory in `outs`. Adds the memory if it is not there yet.
fn place(
    key: &Key,
    outs: &mut Vec<Foreign>,
    object: &Bound<'_, PyAny>,
    devices: Option<&Arc<Devices>>,
) -> PyResult<usize> {
    let foreign = Foreign::of_value(key, object, Access::Write, devices)?;
    Ok(outs.iter().position(|out| out.is_same(&foreign)).unwrap_or_else(|| {
        outs.push(foreign);
        outs.len() - 1
    }))
}

/// Keys, each with its values or its outputs.
pub(crate) type Pairs<'py> = Vec<(Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>)>;

/// A value of a `push_pull`.
enum Value {
    /// The value is the output with this index.
    Output(usize),
    Other(Foreign),
}

/// The memory of a `push_pull` of one key.
pub(crate) struct BorrowedMemory {
    key: Key,
    values: Vec<Value>,
    outs: Vec<Foreign>,
}

impl BorrowedMemory {
    /// The memory of these values and outputs. Without `outs` the values are also the outputs.
    pub(crate) fn of(
        key: Key,
        values: &[Bound<'_, PyAny>],
        outs: Option<&[Bound<'_, PyAny>]>,
        devices: Option<&Arc<Devices>>,
    ) -> PyResult<Self> {
        let Some(outs) = outs else {
            let mut outs = Vec::with_capacity(values.len());
            let values = values.iter().map(|value| place(&key, &mut outs, value, devices).map(Value::Output));
            let values = values.collect::<PyResult<_>>()?;
            return Ok(BorrowedMemory { key, values, outs });
        };
        let outs = outputs(&key, outs, devices)?;
        let values = values.iter().map(|value| {
            let foreign = Foreign::of_value(&key, value, Access::Read, devices)?;
            let output = outs.iter().position(|out| out.is_same(&foreign));
            Ok(output.map_or(Value::Other(foreign), Value::Output))
        });
        let values = values.collect::<PyResult<_>>()?;
        Ok(BorrowedMemory { key, values, outs })
    }
}

/// Returns the address ranges of the outputs of all keys, in ascending order. Returns an error if two outputs
/// share memory.
fn places_of_outputs(py: Python<'_>, what: &str, all: &[BorrowedMemory], rank: usize) -> PyResult<Vec<(usize, usize)>> {
    let outs = all.iter().enumerate().flat_map(|(index, one)| one.outs.iter().map(move |out| (out.range(), index)));
    let mut outs: Vec<_> = outs.filter(|(range, _)| !range.is_empty()).collect();
    outs.sort_unstable_by_key(|(range, _)| range.start);
    if let Some(pair) = outs.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
        let (one, other) = (&all[pair[0].1].key, &all[pair[1].1].key);
        let whose = if one == other {
            format!("two outputs of key {one}")
        } else {
            format!("outputs of keys {one} and {other}")
        };
        return Err(argument(
            py,
            format!("{what} on rank {rank}: {whose} share memory, which cannot hold the results of both"),
            "give each output memory of its own",
        ));
    }
    Ok(outs.into_iter().map(|(range, _)| (range.start, range.end)).collect())
}

/// A `push_pull` of one key.
pub(crate) struct Exchange {
    pub(crate) key: Key,
    pub(crate) values: Vec<Tensor>,
    pub(crate) outs: Vec<Tensor>,
}

impl Exchange {
    /// The exchanges of one call on this rank. Waits for earlier calls that use their memory.
    pub(crate) fn all(
        py: Python<'_>,
        what: &str,
        borrowed: Vec<BorrowedMemory>,
        keep: bool,
        rank: usize,
    ) -> PyResult<Vec<Self>> {
        let written = places_of_outputs(py, what, &borrowed, rank)?;
        let is_written = |value: &Foreign| {
            let range = value.range();
            let before = written.partition_point(|(start, _)| *start < range.end);
            !range.is_empty() && before > 0 && written[before - 1].1 > range.start
        };
        let exchange = |BorrowedMemory { key, values, outs }: BorrowedMemory| {
            let outs = outs.into_iter().map(|out| {
                let out = out.into_tensor(py)?;
                Ok(if keep { out } else { out.unkept() })
            });
            let outs = outs.collect::<PyResult<Vec<_>>>()?;
            let values = values.into_iter().map(|value| match value {
                Value::Output(index) => Ok(outs[index].clone()),
                Value::Other(foreign) if is_written(&foreign) => foreign.copied(py),
                Value::Other(foreign) => foreign.into_tensor(py),
            });
            Ok(Exchange { key, values: values.collect::<PyResult<_>>()?, outs })
        };
        borrowed.into_iter().map(exchange).collect()
    }

    /// Calls the store.
    pub(crate) fn make(&self, store: &KvStore, priority: i32) -> Result<()> {
        store.push_pull(self.key.clone(), &self.values, &self.outs, priority)
    }
}
