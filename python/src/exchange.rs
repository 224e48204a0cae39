//! What a `push_pull` takes from Python: keys with their values and outputs as tensors.

use std::sync::Arc;

use pyo3::prelude::*;

use ringpull::KvStore;
use ringpull_base::{Key, Result, Tensor};
use ringpull_device::Devices;

use crate::foreign::{Access, Foreign};

/// Tensors over the memory of `objects`, each memory once.
pub(crate) fn outputs(
    objects: &[Bound<'_, PyAny>],
    devices: Option<&Arc<Devices>>,
) -> PyResult<Vec<((usize, usize), Tensor)>> {
    let mut outs: Vec<((usize, usize), Tensor)> = Vec::new();
    for object in objects {
        let foreign = Foreign::of(object, Access::Write, devices)?;
        let place = foreign.place();
        if !outs.iter().any(|(known, _)| *known == place) {
            outs.push((place, foreign.into_tensor(object.py())?));
        }
    }
    Ok(outs)
}

/// Keys, each with its values or its outputs.
pub(crate) type Pairs<'py> = Vec<(Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>)>;

/// A `push_pull` of one key.
pub(crate) struct Exchange {
    key: Key,
    pub(crate) values: Vec<Tensor>,
    pub(crate) outs: Vec<Tensor>,
}

impl Exchange {
    /// Of these values into these outputs, or into the values if there are none.
    pub(crate) fn new(
        py: Python<'_>,
        key: Key,
        values: &[Bound<'_, PyAny>],
        outs: Option<&[Bound<'_, PyAny>]>,
        keep: bool,
        devices: Option<&Arc<Devices>>,
    ) -> PyResult<Self> {
        let mut outs_by_place = outputs(outs.unwrap_or(values), devices)?;
        if !keep {
            outs_by_place = outs_by_place.into_iter().map(|(place, out)| (place, out.unkept())).collect();
        }
        let values = match (outs, &outs_by_place[..]) {
            (None, [(_, only)]) => vec![only.clone(); values.len()],
            _ => values
                .iter()
                .map(|value| {
                    let foreign = Foreign::of(value, Access::Read, devices)?;
                    let place = foreign.place();
                    let same = outs_by_place.iter().find(|(known, _)| *known == place && place.1 > 0);
                    same.map_or_else(|| foreign.into_tensor(py), |(_, out)| Ok(out.clone()))
                })
                .collect::<PyResult<Vec<_>>>()?,
        };
        Ok(Exchange { key, values, outs: outs_by_place.into_iter().map(|(_, out)| out).collect() })
    }

    /// Calls the store.
    pub(crate) fn make(&self, store: &KvStore, priority: i32) -> Result<()> {
        store.push_pull(self.key.clone(), &self.values, &self.outs, priority)
    }
}
