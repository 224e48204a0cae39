//! Operations in MXNet's dependency engine. The engine calls us when an array's earlier uses are done, and we
//! notify the engine when our use is done.
//!
//! `MXEnginePushAsyncND` of MXNet's C API takes a function, which is called on one of the engine's threads,
//! and a completion, which we call from the store's thread when nothing uses the array any more. So an
//! operation occupies no thread while it waits for its peers. A later use of the array waits for our
//! operation as for any operation of MXNet.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;

use ringpull::KvStore;
use ringpull_base::{Buffer, DType, Error, Key, Result, Tensor};

use crate::errors::raise;
use crate::store::{Store, key_of};

type Function = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void);
type Deleter = unsafe extern "C" fn(*mut c_void);

/// `MXEnginePushAsyncND` of MXNet 1.6 to 1.9.
type PushAsyncNd = unsafe extern "C" fn(
    function: Function,
    parameter: *mut c_void,
    deleter: Deleter,
    context: *const Context,
    read: *const *mut c_void,
    read_count: c_int,
    written: *const *mut c_void,
    written_count: c_int,
    property: *const c_int,
    priority: c_int,
    name: *const c_char,
    wait: bool,
) -> c_int;

/// MXNet's `Context`.
#[repr(C)]
struct Context {
    device: i32,
    id: i32,
}

static CPU: Context = Context { device: 1, id: 0 };

/// `FnProperty::kCPUPrioritized`: such operations have threads of their own and do not wait for computations.
static CPU_PRIORITIZED: c_int = 3;

const NAME: &CStr = c"ringpull";

/// MXNet's `CallbackOnComplete`. It must be called once, and may be called from any thread.
#[repr(C)]
#[derive(Clone, Copy)]
struct OnComplete {
    callback: unsafe extern "C" fn(engine: *mut c_void, parameter: *mut c_void, error: *const RuntimeError),
    engine: *mut c_void,
    parameter: *mut c_void,
}

// SAFETY: MXNet's engine may be called from any thread.
unsafe impl Send for OnComplete {}
// SAFETY: a shared reference can only be copied.
unsafe impl Sync for OnComplete {}

/// `std::runtime_error`. MXNet's error is a subclass of it without members of its own, and MXNet copies the
/// error that it is given.
#[repr(C, align(8))]
struct RuntimeError([usize; 2]);

#[link(name = "stdc++")]
unsafe extern "C" {
    #[link_name = "_ZNSt13runtime_errorC1EPKc"]
    fn runtime_error_new(this: *mut RuntimeError, text: *const c_char);
    #[link_name = "_ZNSt13runtime_errorD1Ev"]
    fn runtime_error_delete(this: *mut RuntimeError);
}

/// The last error that MXNet's engine was given. The engine itself raises only the error's text.
static FAULT: Mutex<Option<Error>> = Mutex::new(None);

impl OnComplete {
    /// Ends the operation. Gives the engine the fault, if there was one.
    fn call(self, fault: Option<&Error>) {
        // SAFETY: the engine gave us these three values, and waits for exactly one call.
        let finish = |error: *const RuntimeError| unsafe { (self.callback)(self.engine, self.parameter, error) };
        let Some(fault) = fault else { return finish(std::ptr::null()) };
        *FAULT.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.clone());
        // MXNet takes lines that begin with two spaces for a stack trace, and shows them first.
        let text = fault.to_string().replace('\0', " ").replace("\n  ", "\n ");
        let text = CString::new(text).expect("zeros were taken out");
        let mut error = RuntimeError([0; 2]);
        // SAFETY: the place has the size and alignment of the class; it is destroyed after the engine has
        // copied it.
        unsafe {
            runtime_error_new(&raw mut error, text.as_ptr());
            finish(&raw const error);
            runtime_error_delete(&raw mut error);
        }
    }
}

/// The work to do with the array when it is ready.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DependentWork {
    Push,
    Pull,
    PushPull,
    /// A push-pull whose result only the array gets. Nobody asks the store for it later.
    Sum,
}

/// An operation that Python has called, and that the engine has not yet called.
struct Work {
    store: Arc<KvStore>,
    /// The number of failures that the store had reported when Python called.
    reports: u64,
    key: Key,
    what: DependentWork,
    dtype: DType,
    shape: Vec<usize>,
    start: usize,
    priority: i32,
}

impl Work {
    /// Starts the operation. The engine is notified when the last use of the array's memory has ended.
    fn start(self, done: OnComplete) {
        let len_bytes = self.shape.iter().product::<usize>() * self.dtype.size_bytes();
        let start = NonNull::new(self.start as *mut u8).unwrap_or(NonNull::<u64>::dangling().cast());
        // SAFETY: the engine keeps the array and its memory, and lets nobody else use it, until `done` is
        // called. `done` is called when the tensor over the memory is gone.
        let buffer = unsafe { Buffer::foreign(start, len_bytes, Box::new(())) };
        let tensor = Tensor::watched(self.dtype, &self.shape, buffer, Box::new(move |fault| done.call(fault.as_ref())));
        let tensor = if self.what == DependentWork::Sum { tensor.unkept() } else { tensor };
        if self.what == DependentWork::Pull {
            return pull_later(self, tensor);
        }
        let both = std::slice::from_ref(&tensor);
        let outcome = self.store.made_at(self.reports, |store| match self.what {
            DependentWork::Push => store.push(self.key, both, self.priority),
            DependentWork::PushPull | DependentWork::Sum | DependentWork::Pull => {
                store.push_pull(self.key, both, both, self.priority)
            }
        });
        conclude(outcome, tensor);
    }
}

fn conclude(outcome: Result<()>, tensor: Tensor) {
    if let Err(error) = outcome {
        tensor.write().fail(error);
    }
}

/// Pulls on a thread of ours, in the order in which arrays became ready. Pulls block, and the engine's few
/// threads must not block. No push waits for this thread, so the pushes for which it waits always come.
fn pull_later(work: Work, tensor: Tensor) {
    type Inbox = Result<Mutex<Sender<(Work, Tensor)>>, Error>;
    static PULLS: OnceLock<Inbox> = OnceLock::new();
    let pulls = PULLS.get_or_init(|| {
        let (sender, inbox) = channel::<(Work, Tensor)>();
        let pull = move || {
            for (work, tensor) in inbox {
                let outs = std::slice::from_ref(&tensor);
                let outcome = work.store.made_at(work.reports, |store| store.pull(work.key, outs, work.priority));
                conclude(outcome, tensor);
            }
        };
        let started = std::thread::Builder::new().name("ringpull-pull".to_owned()).spawn(pull);
        started.map(|_| Mutex::new(sender)).map_err(|cause| Error::io("start", "a thread that pulls", &cause))
    });
    match pulls {
        Ok(pulls) => {
            let sent = pulls.lock().unwrap_or_else(PoisonError::into_inner).send((work, tensor));
            sent.expect("the thread ends with the process");
        }
        Err(error) => conclude(Err(error.clone()), tensor),
    }
}

/// The function that the engine calls.
unsafe extern "C" fn run(_context: *mut c_void, on_complete: *mut c_void, parameter: *mut c_void) {
    // SAFETY: the engine passes its completion, alive during this call, and the parameter that was pushed
    // with the function.
    let (done, slot) = unsafe { (*on_complete.cast::<OnComplete>(), &*parameter.cast::<Mutex<Option<Work>>>()) };
    let work = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    work.expect("an operation is run once").start(done);
}

unsafe extern "C" fn delete(parameter: *mut c_void) {
    // SAFETY: the parameter is the box that was pushed; the engine deletes it once.
    drop(unsafe { Box::from_raw(parameter.cast::<Mutex<Option<Work>>>()) });
}

/// MXNet's dependency engine, by the address of `MXEnginePushAsyncND`.
#[pyclass(frozen, module = "ringpull._native")]
pub(crate) struct DependencyEngine {
    push_async: PushAsyncNd,
}

#[pymethods]
impl DependencyEngine {
    #[new]
    fn new(address: usize) -> Self {
        // SAFETY: the caller is `ringpull.mxnet`, which gives the address of that function.
        DependencyEngine { push_async: unsafe { std::mem::transmute::<usize, PushAsyncNd>(address) } }
    }

    /// The last error that the engine was given, as the exception that a store raises.
    #[staticmethod]
    fn fault(py: Python<'_>) -> Option<PyErr> {
        let fault = FAULT.lock().unwrap_or_else(PoisonError::into_inner).clone();
        fault.map(|error| raise(py, &error))
    }

    /// Makes the engine do `what` on `key` of `store`, with the array `handle`, whose elements are at
    /// `start`. `what` is "push", "pull", "pushpull" or "sum", a pushpull whose sum the store need not keep.
    /// Returns the return code of the C API, at once.
    #[allow(clippy::too_many_arguments)]
    fn submit(
        &self,
        py: Python<'_>,
        store: &Store,
        what: &str,
        key: &Bound<'_, PyAny>,
        handle: usize,
        start: usize,
        shape: Vec<usize>,
        dtype: &str,
        priority: i32,
    ) -> PyResult<i32> {
        let what = match what {
            "push" => DependentWork::Push,
            "pull" => DependentWork::Pull,
            "pushpull" => DependentWork::PushPull,
            "sum" => DependentWork::Sum,
            _ => {
                return Err(crate::errors::argument(
                    py,
                    format!("no operation {what:?}"),
                    "push, pull, pushpull or sum",
                ));
            }
        };
        let dtype: DType = dtype.parse().map_err(|error| raise(py, &error))?;
        let (store, key) = (store.open(py)?, key_of(key)?);
        let work = Work { reports: store.reports(), store, key, what, dtype, shape, start, priority };
        let parameter = Box::into_raw(Box::new(Mutex::new(Some(work)))) as usize;
        let push_async = self.push_async;
        Ok(py.detach(move || {
            let written = [handle as *mut c_void];
            // SAFETY: the handle is that of a live array; the engine takes over the parameter and calls the
            // deleter once.
            unsafe {
                push_async(
                    run,
                    parameter as *mut c_void,
                    delete,
                    &raw const CPU,
                    std::ptr::null(),
                    0,
                    written.as_ptr(),
                    1,
                    &raw const CPU_PRIORITIZED,
                    priority,
                    NAME.as_ptr(),
                    false,
                )
            }
        }))
    }
}
