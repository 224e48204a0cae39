//! Tensors with `__cuda_array_interface__`, version 3 and older: Numba's arrays, and others without DLPack.
//!
//! The object names the stream on which its memory is ready, and the store works in the order of that stream,
//! as with DLPack. If the object names no stream, its memory is ready already, and the store works on a
//! stream of ours.

use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use ringpull_base::ElementType;
use ringpull_device::Devices;

use super::{Access, Foreign, Owner, Place, unknown_dtype};
use crate::errors::{argument, raise};

/// The name of the attribute.
pub(super) const NAME: &str = "__cuda_array_interface__";

/// The numbers of the default streams in the interface.
const NO_STREAM: u64 = 0;
const PER_THREAD: u64 = 2;

/// Borrows the memory of an object with the attribute.
pub(super) fn borrowed(object: &Bound<'_, PyAny>, access: Access, devices: Option<&Arc<Devices>>) -> PyResult<Foreign> {
    let py = object.py();
    let interface = object.getattr(NAME)?;
    let interface = interface.cast::<PyDict>()?;
    let wrong = |what: String, hint: &str| argument(py, format!("a {NAME} {what}"), hint);
    let entry = |name: &str| Ok::<_, PyErr>(interface.get_item(name)?.filter(|value| !value.is_none()));
    let needed = |name: &str| entry(name)?.ok_or_else(|| wrong(format!("without {name}"), "give a tensor with DLPack"));
    let (start, is_read_only): (usize, bool) = needed("data")?.extract()?;
    let shape: Vec<usize> = needed("shape")?.extract()?;
    let typestr: String = needed("typestr")?.extract()?;
    let Some(element) = ElementType::of_typestr(&typestr) else {
        return Err(unknown_dtype(object, &format!("typestr {typestr:?}")));
    };
    if entry("mask")?.is_some() {
        return Err(wrong("with a mask".to_owned(), "give an array without a mask"));
    }
    if is_read_only && access == Access::Write {
        return Err(argument(py, "a read-only tensor as an output", "give a writable tensor"));
    }
    let Some(devices) = devices else {
        return Err(wrong(
            "for a store that works in host memory".to_owned(),
            "create a store on devices: device, dist_sync_device, or dist_sync_mpi with RINGPULL_DEVICES=cuda",
        ));
    };
    let stream: Option<u64> = entry("stream")?.map(|stream| stream.extract()).transpose()?;
    match stream {
        Some(NO_STREAM) => {
            return Err(wrong("with stream 0, which it does not allow".to_owned(), "name the default stream by 1"));
        }
        Some(PER_THREAD) => {
            let hint = "use a stream that was created: no other thread can name this one";
            return Err(wrong("with the per-thread default stream".to_owned(), hint));
        }
        _ => {}
    }
    let strides: Option<Vec<i64>> = entry("strides")?.map(|strides| strides.extract()).transpose()?;
    let size = element.size_bytes() as i64;
    if strides.as_deref().unwrap_or_default().iter().any(|bytes| bytes % size != 0) {
        return Err(wrong("with strides between elements".to_owned(), "give a contiguous tensor"));
    }
    let strides: Option<Vec<i64>> = strides.map(|bytes| bytes.iter().map(|bytes| bytes / size).collect());
    let device =
        if shape.contains(&0) { 0 } else { devices.holder_of(start as u64).map_err(|error| raise(py, &error))? };
    let place = Place::Device { devices: Arc::clone(devices), device, stream };
    let owner = NonNull::new(object.clone().into_ptr()).map(Owner::Object).expect("a live object is somewhere");
    let foreign = Foreign { element, shape, start: start as *mut u8, owner, place, access };
    Foreign::checked(py, foreign, strides.as_deref())
}
