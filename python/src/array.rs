//! Our tensors as Python arrays: they are lent to updaters, and read back from them.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use ringpull_base::{Buffer, DType, Result, Tensor};

use crate::errors::raise;
use crate::numbers::numbers;

/// Elements in host memory, with the buffer protocol: `numpy.asarray(array)` uses them without a copy.
#[pyclass(frozen, module = "ringpull._native")]
pub(crate) struct Array {
    dtype: DType,
    shape: Vec<usize>,
    data: Arc<Buffer>,
    writable: bool,
}

impl Array {
    /// The tensor's present elements, which Python cannot change.
    pub(crate) fn reading(tensor: &Tensor) -> Result<Self> {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        Ok(Array { dtype, shape, data: tensor.read()?.snapshot(), writable: false })
    }

    /// A copy of the tensor's elements for Python to change.
    pub(crate) fn writing(tensor: &Tensor) -> Result<Self> {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        let data = Arc::new(Buffer::try_copy_of(tensor.read()?.bytes(), "the value that an updater changes")?);
        Ok(Array { dtype, shape, data, writable: true })
    }

    /// Zeros for Python to change. They are in memory that the ranks of one host share, if they are long
    /// enough for that. Forked children have copies.
    fn zeros(dtype: DType, shape: Vec<usize>) -> Result<Self> {
        let data = Arc::new(Buffer::try_zeroed(dtype.len_bytes(&shape)?, "an array")?);
        data.keep_for_children();
        Ok(Array { dtype, shape, data, writable: true })
    }

    /// An array that Python may change.
    pub(crate) fn over(dtype: DType, shape: Vec<usize>, data: Arc<Buffer>) -> Self {
        Array { dtype, shape, data, writable: true }
    }

    /// The elements after Python's changes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }
}

/// The lengths and strides to which a view of the buffer protocol points.
struct Layout {
    format: CString,
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

fn format_of(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::F16 => c"e",
        DType::I8 => c"b",
        DType::U8 => c"B",
        DType::I32 => c"i",
        DType::I64 => c"q",
        DType::BF16 => return None,
    })
}

#[pymethods]
impl Array {
    #[new]
    fn new(py: Python<'_>, #[pyo3(from_py_with = numbers)] shape: Vec<usize>, dtype: &str) -> PyResult<Self> {
        let made = dtype.parse().and_then(|dtype| Array::zeros(dtype, shape));
        made.map_err(|error| raise(py, &error))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let Some(format) = format_of(this.dtype) else {
            return Err(PyBufferError::new_err("the buffer protocol has no bf16"));
        };
        if flags & ffi::PyBUF_WRITABLE != 0 && !this.writable {
            return Err(PyBufferError::new_err("the received gradient cannot be written"));
        }
        let size = this.dtype.size_bytes() as ffi::Py_ssize_t;
        let shape: Vec<_> = this.shape.iter().map(|len| *len as ffi::Py_ssize_t).collect();
        let mut strides = vec![size; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at] * shape[at];
        }
        let mut layout = Box::new(Layout { format: format.to_owned(), shape, strides });
        // SAFETY: the interpreter gives us a view to fill in. `layout` lives until the view is released. The
        // elements live as long as this object, and the view holds a reference to it.
        unsafe {
            (*view).buf = this.data.bytes().as_ptr().cast_mut().cast();
            (*view).len = this.data.bytes().len() as ffi::Py_ssize_t;
            (*view).readonly = c_int::from(!this.writable);
            (*view).itemsize = size;
            (*view).ndim = layout.shape.len() as c_int;
            (*view).format =
                if flags & ffi::PyBUF_FORMAT == 0 { std::ptr::null_mut() } else { layout.format.as_ptr().cast_mut() };
            (*view).shape = layout.shape.as_mut_ptr();
            (*view).strides = layout.strides.as_mut_ptr();
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = Box::into_raw(layout).cast();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }

    #[allow(clippy::unused_self)]
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `internal` is the layout that `__getbuffer__` put there for this view.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Layout>()) });
    }

    /// The element type's name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// The lengths of the dimensions.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }
}
