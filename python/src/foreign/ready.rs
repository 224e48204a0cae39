//! The place of a DLPack tensor, and the stream on which it is ready.
//!
//! A consumer passes to `__dlpack__` the stream on which it will use the tensor, and the producer makes that
//! stream wait for the producer's work. If `ringpull/streams.py` can find the producer's own present stream,
//! we pass that one: then the producer's next work comes after the store's work. Otherwise we pass a stream
//! of ours, and the host waits for it before the caller goes on.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use ringpull_device::{self as device, Devices};

use super::Place;
use crate::dlpack::Device;
use crate::errors::{argument, raise};

/// Returns true if `object` declares that its memory is not on the host.
pub(super) fn is_elsewhere(object: &Bound<'_, PyAny>) -> bool {
    named_by(object).is_ok_and(|named| named.is_some_and(|named| !named.is_host()))
}

/// Returns true if `object` is an array of JAX. Such arrays never change, but their capsules are not marked
/// as read-only.
pub(super) fn is_immutable(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let module = object.get_type().module()?;
    let name = module.to_str()?;
    Ok(matches!(name.split('.').next(), Some("jax" | "jaxlib")))
}

/// Returns the device that `object` names for its memory, if it names one.
fn named_by(object: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    if !object.hasattr("__dlpack_device__")? {
        return Ok(None);
    }
    let (kind, id): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    Ok(Some(Device { kind, id }))
}

/// Returns the place that `object` names for its memory; host memory if it names none.
pub(super) fn place_of(object: &Bound<'_, PyAny>, devices: Option<&Arc<Devices>>) -> PyResult<Place> {
    let Some(named) = named_by(object)?.filter(|named| !named.is_host()) else { return Ok(Place::Host) };
    let py = object.py();
    let stream = py.import("ringpull.streams")?.call_method1("current", (object,))?.extract()?;
    found(py, named, stream, devices)
}

/// Returns the place of a capsule's memory. The capsule names the device `named`. `told` is the place that
/// the producer has given before, if it has given one; raises if the two differ.
pub(super) fn agreed(
    py: Python<'_>,
    told: Option<Place>,
    named: Device,
    devices: Option<&Arc<Devices>>,
) -> PyResult<Place> {
    let Some(told) = told else { return found(py, named, None, devices) };
    let agrees = match &told {
        Place::Host => named.is_host(),
        Place::Device { devices, device, .. } => devices.named_by_dlpack(named.kind, named.id) == Some(*device),
    };
    if agrees {
        return Ok(told);
    }
    let what = format!("a tensor on {named} whose __dlpack_device__ names another device");
    Err(argument(py, what, "give a tensor whose two methods of DLPack agree: without them its stream is not known"))
}

/// The place of memory on the device `named`, which must be one of `devices`.
fn found(py: Python<'_>, named: Device, stream: Option<u64>, devices: Option<&Arc<Devices>>) -> PyResult<Place> {
    if named.is_host() {
        return Ok(Place::Host);
    }
    let Some(devices) = devices else {
        return Err(argument(py, format!("a tensor on {named} for a store that works in host memory"), remedy()));
    };
    let Some(device) = devices.named_by_dlpack(named.kind, named.id) else {
        let known: Vec<String> = (0..devices.count()).map(|device| devices.place(device)).collect();
        return Err(argument(
            py,
            format!("a tensor on {named} for a store that works on {}", known.join(", ")),
            "name the device in RINGPULL_DEVICES before the store is created, or give a tensor on one of these",
        ));
    };
    Ok(Place::Device { devices: Arc::clone(devices), device, stream })
}

/// Returns the remedy: a store on devices, with the facts about this machine's devices.
fn remedy() -> String {
    let survey = device::survey();
    let found = format!("here: CUDA driver {}; NCCL {}; NVRTC {}", survey.driver, survey.nccl, survey.nvrtc);
    format!(
        "give a copy on the CPU, or create a store on devices: device, dist_sync_device, or dist_sync_mpi with RINGPULL_DEVICES=cuda ({found})"
    )
}

/// The capsule of `object`. Its memory is ready on the stream of `place`.
pub(super) fn capsule_of<'py>(object: &Bound<'py, PyAny>, place: &Place) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let keywords = PyDict::new(py);
    if let Place::Device { devices, device, stream } = place {
        let own = devices.own_stream(*device).map_err(|error| raise(py, &error))?;
        keywords.set_item("stream", stream.unwrap_or(own))?;
    }
    let newest = keywords.copy()?;
    newest.set_item("max_version", (1, 1))?;
    match object.call_method("__dlpack__", (), Some(&newest)) {
        // Producers that are older than versioned capsules do not know this keyword.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method("__dlpack__", (), Some(&keywords)),
        other => other,
    }
}
