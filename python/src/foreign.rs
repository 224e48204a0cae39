//! Python objects as tensors, without a copy: by the buffer protocol, by DLPack, by MXNet's own DLPack
//! methods, or by `__cuda_array_interface__` (`interface`).
//!
//! The object is kept alive until the last tensor over its memory is gone. A store's thread may be the last
//! to use such a tensor. `ready` finds the place of the memory, and the stream on which it is ready.
#![allow(unsafe_code)]

mod interface;
mod ready;

use std::ffi::{CStr, c_int};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use ringpull_base::{Buffer, ELEMENT_TYPES, ElementType, Key, Result, Tensor, TensorRef};
use ringpull_device::{Devices, Loan};

use crate::dlpack::{self, DlTensor, Managed, Versioned};
use crate::errors::{argument, raise};
use crate::handle::SIGNALS;
use crate::interpreter;

/// A store's use of the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The owner that keeps the memory alive.
enum Owner {
    Buffer(Box<ffi::Py_buffer>),
    Managed(NonNull<Managed>),
    Versioned(NonNull<Versioned>),
    /// The object itself.
    Object(NonNull<ffi::PyObject>),
}

// SAFETY: the only operation on the owner is its drop, which does everything attached to the interpreter, or
// does nothing.
unsafe impl Send for Owner {}
// SAFETY: nothing can be done with a shared reference to it.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        // At the end of the program the memory need not be given back: its owner is about to end too.
        let _: Option<()> = interpreter::attached(|_| {
            // SAFETY: we took each of these over when the owner was made, and give it back once, attached.
            unsafe {
                match self {
                    Owner::Object(object) => ffi::Py_DecRef(object.as_ptr()),
                    Owner::Buffer(view) => ffi::PyBuffer_Release(&raw mut **view),
                    Owner::Managed(managed) => {
                        if let Some(deleter) = managed.as_ref().deleter {
                            deleter(managed.as_ptr());
                        }
                    }
                    Owner::Versioned(managed) => {
                        if let Some(deleter) = managed.as_ref().deleter {
                            deleter(managed.as_ptr());
                        }
                    }
                }
            }
        });
    }
}

/// The place of an object's memory.
enum Place {
    Host,
    Device {
        devices: Arc<Devices>,
        device: usize,
        /// The stream on which the memory's owner works, if it is known.
        stream: Option<u64>,
    },
}

/// An array whose library cannot pass its element type on to other libraries. `array` has the same memory,
/// with another element type of the same length.
#[pyclass(frozen, module = "ringpull._native")]
pub(crate) struct Named {
    array: Py<PyAny>,
    element: &'static ElementType,
}

#[pymethods]
impl Named {
    /// `name` is the element type's name in NumPy, PyTorch or JAX.
    #[new]
    fn new(py: Python<'_>, array: Py<PyAny>, name: &str) -> PyResult<Self> {
        let element = ElementType::of_name(name).ok_or_else(|| unknown_element(py, name))?;
        Ok(Named { array, element })
    }
}

fn immutable(py: Python<'_>) -> PyErr {
    argument(py, "a JAX array as an output, which nothing may change", "give a NumPy array")
}

/// Dense elements, in C order, in memory of another library.
pub(crate) struct Foreign {
    element: &'static ElementType,
    shape: Vec<usize>,
    start: *mut u8,
    owner: Owner,
    place: Place,
    access: Access,
}

impl Foreign {
    /// Borrows the memory of `object`, which may be on `devices` if there are any.
    pub(crate) fn of(object: &Bound<'_, PyAny>, access: Access, devices: Option<&Arc<Devices>>) -> PyResult<Self> {
        let py = object.py();
        if let Ok(named) = object.cast::<Named>() {
            let Named { array, element } = named.get();
            let seen = Self::of(array.bind(py), access, devices)?;
            if seen.element.size_bytes() != element.size_bytes() {
                return Err(argument(
                    py,
                    format!("{} seen as {}", element.name, seen.element.name),
                    "see it as an integer type of its length",
                ));
            }
            return Ok(Foreign { element, ..seen });
        }
        // SAFETY: the object is alive, and the call only reads its type's slots.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            match Self::by_buffer(object, access) {
                // Arrays of CuPy and JAX have the buffer protocol, but it refuses arrays on a GPU.
                Err(_) if ready::is_elsewhere(object) => {}
                Err(_) if access == Access::Write && ready::is_immutable(object)? => return Err(immutable(py)),
                Err(error) => return Self::by_integers(object, access)?.ok_or(error),
                borrowed => return borrowed,
            }
        }
        let writing = access == Access::Write;
        let own_method = if writing { "to_dlpack_for_write" } else { "to_dlpack_for_read" };
        if object.hasattr("__dlpack__")? {
            if writing && ready::is_immutable(object)? {
                return Err(immutable(py));
            }
            let place = ready::place_of(object, devices)?;
            let capsule = ready::capsule_of(object, &place)?;
            return Self::by_dlpack(object, capsule.cast::<PyCapsule>()?, access, Some(place), devices);
        }
        if object.hasattr(own_method)? {
            // Before it returns, MXNet waits for the work on the array.
            let capsule = object.call_method0(own_method)?;
            return Self::by_dlpack(object, capsule.cast::<PyCapsule>()?, access, None, devices);
        }
        if object.hasattr(interface::NAME)? {
            return interface::borrowed(object, access, devices);
        }
        let name = object.get_type().name()?;
        Err(argument(
            py,
            format!("{name} is not a tensor type"),
            "give an object with __dlpack__ or the buffer protocol: a NumPy array, an MXNet NDArray, a torch tensor, a JAX array",
        ))
    }

    /// Borrows the memory of a value that a store is to hold, or of an output for such a value.
    pub(crate) fn of_value(
        key: &Key,
        object: &Bound<'_, PyAny>,
        access: Access,
        devices: Option<&Arc<Devices>>,
    ) -> PyResult<Self> {
        let foreign = Self::of(object, access, devices)?;
        if foreign.element.is_of_stores() {
            return Ok(foreign);
        }
        Err(argument(
            object.py(),
            format!("key {key}: a store holds no values of {}", foreign.element.name),
            "cast it, to float32 or int32 for example; the collectives of ringpull.communicator() take it as it is",
        ))
    }

    /// The element type.
    pub(crate) fn element(&self) -> &'static ElementType {
        self.element
    }

    /// A tensor over the memory, with the element type by which its elements travel. First waits until no
    /// earlier call uses the memory, or a part of it, in a way that conflicts with this access. Ctrl-C ends
    /// the wait.
    pub(crate) fn into_tensor(self, py: Python<'_>) -> PyResult<Tensor> {
        let is_written = self.access == Access::Write;
        let tensor = self.over(py)?;
        while !tensor.is_free_within(is_written, Duration::ZERO) {
            py.detach(|| tensor.is_free_within(is_written, SIGNALS));
            py.check_signals()?;
        }
        Ok(tensor)
    }

    fn over(self, py: Python<'_>) -> PyResult<Tensor> {
        let len_bytes = self.len_bytes();
        match self.place {
            Place::Host => {
                let start = NonNull::new(self.start).unwrap_or(NonNull::<u64>::dangling().cast());
                // SAFETY: the owner keeps the memory alive, and its alignment was checked. The methods of
                // `KVStore` require of their callers that no other library writes it meanwhile. Tensors over
                // the same addresses have one lock.
                let buffer = unsafe { Buffer::foreign(start, len_bytes, Box::new(self.owner)) };
                Ok(Tensor::from_buffer(self.element.dtype, &self.element.travelling(&self.shape), buffer))
            }
            Place::Device { devices, device, stream } => {
                // SAFETY: as above. The capsule names the device, and the stream orders the work on it.
                let loan = unsafe { Loan::new(self.start as u64, len_bytes) };
                let shape = self.element.travelling(&self.shape);
                let lent = devices.lent(device, (self.element.dtype, &shape), &loan, stream, Box::new(self.owner));
                lent.map_err(|error| raise(py, &error))
            }
        }
    }

    /// A tensor over a copy of the memory. The memory itself may be changed as soon as this returns; memory
    /// on a device may be changed in the order of its owner's stream.
    pub(crate) fn copied(self, py: Python<'_>) -> PyResult<Tensor> {
        if let Place::Device { devices, .. } = &self.place {
            let devices = Arc::clone(devices);
            let tensor = self.into_tensor(py)?;
            let copied = py.detach(|| {
                let copy = devices.copy_beside(&tensor)?;
                devices.settle(&tensor).map(|()| copy)
            });
            return copied.map_err(|error| raise(py, &error));
        }
        let tensor = self.into_tensor(py)?;
        let copy = |guard: TensorRef| -> Result<Tensor> {
            let copy = Buffer::try_copy_of(guard.bytes(), "the copy of a value")?;
            Ok(Tensor::from_buffer(guard.dtype(), guard.shape(), copy))
        };
        // The memory is free, unless another thread has given it to a store in this moment.
        let copied = match tensor.read_within(Duration::ZERO) {
            Ok(None) => py.detach(|| tensor.read().and_then(copy)),
            free => free.and_then(|guard| copy(guard.expect("it was just there"))),
        };
        copied.map_err(|error| raise(py, &error))
    }

    /// The addresses of the memory.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.start as usize;
        start..start.saturating_add(self.len_bytes())
    }

    /// Returns true if both have the same elements in memory.
    pub(crate) fn is_same(&self, other: &Foreign) -> bool {
        self.len_bytes() > 0 && (self.start, self.element, &self.shape) == (other.start, other.element, &other.shape)
    }

    fn len_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element.size_bytes()
    }

    /// An array of NumPy or JAX in host memory whose element type is of `ml_dtypes`, such as `bfloat16`. The
    /// buffer protocol has no format for these, so the memory is seen as integers of their length.
    fn by_integers(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Option<Self>> {
        /// Value of NumPy's `isbuiltin` for a type that another package has registered.
        const REGISTERED: u8 = 2;
        let Ok(dtype) = object.getattr("dtype") else { return Ok(None) };
        if dtype.getattr("isbuiltin").and_then(|kind| kind.extract()).ok() != Some(REGISTERED) {
            return Ok(None);
        }
        let name: String = dtype.getattr("name")?.extract()?;
        let Some(element) = ElementType::of_name(&name) else { return Err(unknown_dtype(object, &name)) };
        let array = object.py().import("numpy")?.call_method1("asarray", (object,))?;
        let integers = array.call_method1("view", (format!("i{}", element.size_bytes()),))?;
        Ok(Some(Foreign { element, ..Self::by_buffer(&integers, access)? }))
    }

    fn by_buffer(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        let py = object.py();
        let mut view = Box::new(ffi::Py_buffer::new());
        let flags =
            ffi::PyBUF_FORMAT | ffi::PyBUF_STRIDES | if access == Access::Write { ffi::PyBUF_WRITABLE } else { 0 };
        // SAFETY: the view is valid memory for the result.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } != 0 {
            let cause = PyErr::fetch(py);
            let error = argument(
                py,
                format!("the memory of a {} cannot be used: {}", object.get_type().name()?, cause.value(py)),
                if access == Access::Write {
                    "give a writable array for an output"
                } else {
                    "give an array of numbers"
                },
            );
            error.set_cause(py, Some(cause));
            return Err(error);
        }
        let owner = Owner::Buffer(view);
        let Owner::Buffer(view) = &owner else { unreachable!("it was just made") };
        let ndim = view.ndim as usize;
        // SAFETY: with these flags `shape` and `strides` hold `ndim` numbers.
        let (shape, strides) = unsafe { (lengths(view.shape, ndim), lengths(view.strides, ndim)) };
        let format = if view.format.is_null() {
            c"B"
        } else {
            // SAFETY: the producer's format ends with a zero and lives as long as the view.
            unsafe { CStr::from_ptr(view.format) }
        };
        let size = view.itemsize as usize;
        let format = format.to_string_lossy();
        let Some(element) = ElementType::of_format(&format, size) else {
            return Err(unknown_dtype(object, &format!("format {format:?}")));
        };
        let shape: Vec<usize> = shape.into_iter().map(|len| len as usize).collect();
        let strides: Vec<i64> = strides.into_iter().map(|bytes| (bytes / size as isize) as i64).collect();
        let start = view.buf.cast::<u8>();
        Self::checked(py, Foreign { element, shape, start, owner, place: Place::Host, access }, Some(&strides))
    }

    /// `place` is the place that the object gives for its memory. It is `None` if only the capsule gives the
    /// place, as with MXNet's arrays.
    fn by_dlpack(
        object: &Bound<'_, PyAny>,
        capsule: &Bound<'_, PyCapsule>,
        access: Access,
        place: Option<Place>,
        devices: Option<&Arc<Devices>>,
    ) -> PyResult<Self> {
        let py = capsule.py();
        let rename = |name: &'static CStr| -> PyResult<()> {
            // SAFETY: the capsule is alive and the name is static. A capsule with the name of a used one does
            // not call the deleter, so we call it.
            match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
                0 => Ok(()),
                _ => Err(PyErr::fetch(py)),
            }
        };
        let versioned = is_named(capsule, dlpack::VERSIONED_NAME);
        let name = if versioned { dlpack::VERSIONED_NAME } else { dlpack::NAME };
        // SAFETY: the call compares the name. DLPack defines the pointer of a capsule with this name.
        let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) };
        let Some(pointer) = NonNull::new(pointer) else { return Err(PyErr::fetch(py)) };
        let (owner, read_only): (Owner, bool) = if versioned {
            let managed = pointer.cast::<Versioned>();
            // SAFETY: a capsule of this name points to a versioned tensor.
            let (version, flags) = unsafe { (managed.as_ref().version, managed.as_ref().flags) };
            if version[0] != 1 {
                return Err(argument(
                    py,
                    format!("DLPack of version {}.{}", version[0], version[1]),
                    "give a tensor of DLPack 1, or a NumPy array of it",
                ));
            }
            rename(dlpack::USED_VERSIONED_NAME)?;
            (Owner::Versioned(managed), flags & dlpack::READ_ONLY != 0)
        } else {
            rename(dlpack::USED_NAME)?;
            (Owner::Managed(pointer.cast::<Managed>()), false)
        };
        // SAFETY: the owner keeps the structure alive.
        let tensor: &DlTensor = unsafe {
            match &owner {
                Owner::Versioned(managed) => &managed.as_ref().tensor,
                Owner::Managed(managed) => &managed.as_ref().tensor,
                Owner::Buffer(_) | Owner::Object(_) => unreachable!("it came by DLPack"),
            }
        };
        let place = ready::agreed(py, place, tensor.device, devices)?;
        if read_only && access == Access::Write {
            return Err(argument(py, "a read-only tensor as an output", "give a writable tensor"));
        }
        let Some(element) = tensor.element() else {
            let (code, bits) = (tensor.dtype.code, tensor.dtype.bits);
            return Err(unknown_dtype(object, &format!("DLPack's type code {code} with {bits} bits")));
        };
        // SAFETY: DLPack promises `ndim` numbers at each of the two pointers.
        let (shape, strides) = unsafe { (tensor.shape(), tensor.strides()) };
        let start = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        Self::checked(py, Foreign { element, shape, start, owner, place, access }, strides.as_deref())
    }

    fn checked(py: Python<'_>, foreign: Foreign, strides: Option<&[i64]>) -> PyResult<Self> {
        // A producer may give any numbers, also negative lengths, and the code below multiplies them.
        foreign
            .element
            .dtype
            .len_bytes(&foreign.element.travelling(&foreign.shape))
            .map_err(|error| raise(py, &error))?;
        if let Some(strides) = strides
            && !is_c_order(&foreign.shape, strides)
        {
            return Err(argument(
                py,
                format!("a tensor of shape {:?} with strides {strides:?}", foreign.shape),
                "give contiguous tensors: numpy.ascontiguousarray(x), x.contiguous()",
            ));
        }
        if foreign.len_bytes() > 0 && !(foreign.start as usize).is_multiple_of(foreign.element.dtype.size_bytes()) {
            return Err(argument(py, "a tensor whose elements are not aligned", "give a copy of it"));
        }
        Ok(foreign)
    }
}

fn is_named(capsule: &Bound<'_, PyCapsule>, name: &CStr) -> bool {
    // SAFETY: the capsule is alive.
    unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 1 as c_int }
}

unsafe fn lengths(start: *const ffi::Py_ssize_t, count: usize) -> Vec<isize> {
    if start.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, count) }.to_vec()
}

fn is_c_order(shape: &[usize], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(len, stride)| {
        let fits = *len == 1 || *stride == expected;
        expected *= *len as i64;
        fits
    })
}

/// The error for a tensor whose element type is not in the table. It has the type's name in the tensor's
/// library, or else `otherwise`.
fn unknown_dtype(object: &Bound<'_, PyAny>, otherwise: &str) -> PyErr {
    let named = object.getattr("dtype").and_then(|dtype| Ok(dtype.str()?.to_string())).ok();
    let named = named.map(|name| name.strip_prefix("torch.").unwrap_or(&name).to_owned());
    unknown_element(object.py(), named.as_deref().unwrap_or(otherwise))
}

fn unknown_element(py: Python<'_>, name: &str) -> PyErr {
    let names: Vec<&str> = ELEMENT_TYPES.iter().map(|element| element.name).collect();
    argument(
        py,
        format!("a tensor of {name}, which does not travel"),
        format!("the element types are {}", names.join(", ")),
    )
}
