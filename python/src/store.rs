//! A store, for `ringpull/kvstore.py`. Each call except `push_pull` has one key.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyMapping, PyString};

use ringpull::internal::serve;
use ringpull::{KvStore, Updater};
use ringpull_base::forked::Process;
use ringpull_base::{Error, Key, Result, RowSparse, Tensor, waits};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::array::Array;
use crate::errors::{argument, raise};
use crate::exchange::{BorrowedMemory, Exchange, Pairs};
use crate::foreign::{Access, Foreign};
use crate::handle::Handle;
use crate::interpreter;
use crate::numbers::{any_text, number, numbers, text};

/// A key-value store. Users see it as `ringpull.KVStore`.
#[pyclass(frozen, module = "ringpull._native")]
pub(crate) struct Store {
    kind: &'static str,
    rank: usize,
    num_workers: usize,
    /// The process that made the store. In a forked child the lock below may be held by a thread that does
    /// not exist there.
    process: Process,
    inner: RwLock<Option<Arc<KvStore>>>,
}

impl Drop for Store {
    /// Ends a store that nobody has closed. The end waits for the store's threads. These may need the
    /// interpreter, for example to give back the memory of a tensor, and the thread that drops the object
    /// holds it.
    fn drop(&mut self) {
        let store = self.inner.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        // If the interpreter has ended, it need not be released.
        let _: Option<()> = Python::try_attach(|py| py.detach(move || drop(store)));
    }
}

impl Store {
    /// The store. Raises if it was closed, or if this is a forked child and the store is the parent's.
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<Arc<KvStore>> {
        self.process.check("this store").map_err(|error| raise(py, &error))?;
        let inner = self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.clone().ok_or_else(|| argument(py, "the store has been closed", "create another one"))
    }

    /// Returns the `present` value of an open store. In a forked child returns `first`, the value at the
    /// start of the parent's store.
    fn known<T>(&self, py: Python<'_>, present: impl Fn(&KvStore) -> T, first: T) -> PyResult<T> {
        if self.process.is_here() { self.open(py).map(|store| present(&store)) } else { Ok(first) }
    }

    /// Runs `work` on the store without holding the interpreter.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&KvStore) -> Result<T> + Send) -> PyResult<T> {
        self.reporting(py, |store| detached(py, store, work))
    }

    /// Runs `work` on the store. If `work` raises, reports the error to the other workers. The store itself
    /// would not report most errors in Python's arguments, because they are found before the store is called.
    fn reporting<T>(&self, py: Python<'_>, work: impl FnOnce(&KvStore) -> PyResult<T>) -> PyResult<T> {
        let store = self.open(py)?;
        work(&store).inspect_err(|raised| {
            let text = raised.value(py).to_string();
            let why = if text.is_empty() { raised.get_type(py).to_string() } else { text };
            py.detach(|| store.report_failure(&why));
        })
    }
}

/// Runs `work` without holding the interpreter. If a signal's handler raises, this ends the waits in `work`.
fn detached<T: Send>(py: Python<'_>, store: &KvStore, work: impl FnOnce(&KvStore) -> Result<T> + Send) -> PyResult<T> {
    interruptible(py, || work(store))
}

/// Runs `work`, which needs no store, without holding the interpreter. If a signal's handler raises, this
/// ends the waits in `work`.
pub(crate) fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    // A panic would become a `PanicException`, which is no `Exception`: programs do not expect it, and cannot
    // explain it.
    let guarded = || {
        let found = catch_unwind(AssertUnwindSafe(|| waits::interruptible(is_interrupted, work)));
        found.unwrap_or_else(|panic| Err(Error::bug(format!("a call has failed: {}", words_of(&*panic)))))
    };
    let outcome = py.detach(guarded);
    outcome.map_err(|error| RAISED.take().unwrap_or_else(|| raise(py, &error)))
}

/// The message of a panic.
fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

thread_local! {
    /// The exception that a handler of signals raised on this thread while it waited.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

fn is_interrupted() -> bool {
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let is_raised = raised.is_some();
    RAISED.set(raised);
    is_raised
}

/// A key from Python: an integer or a string.
pub(crate) fn key_of(object: &Bound<'_, PyAny>) -> PyResult<Key> {
    let py = object.py();
    if let Ok(name) = object.cast::<PyString>() {
        let name = text(name)?;
        return Ok(Key::from(name.as_str()));
    }
    if object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>() {
        return Ok(Key::from(number::<i64>(object)?));
    }
    let what = format!("unexpected type for keys: {}", object.get_type().name()?);
    Err(argument(py, what, "keys are integers or strings"))
}

/// Gradient compression as Python gives it.
#[derive(FromPyObject)]
enum CompressionParams {
    /// One word, such as `2bit:0.5`.
    Word(String),
    /// MXNet's parameters as pairs of words.
    Pairs(Vec<(String, String)>),
}

impl CompressionParams {
    fn read(&self) -> Result<Option<Compression>> {
        match self {
            Self::Word(word) => Compression::choice(word),
            Self::Pairs(pairs) => {
                Compression::choice_of_params(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
            }
        }
    }
}

/// The factors of an optimizer's keys.
fn factors(given: Option<&Bound<'_, PyMapping>>) -> PyResult<BTreeMap<Key, f64>> {
    let Some(given) = given else { return Ok(BTreeMap::new()) };
    let of = |item: Bound<'_, PyAny>| {
        let (key, factor) = item.extract::<(Bound<'_, PyAny>, f64)>()?;
        Ok((key_of(&key)?, factor))
    };
    given.items()?.iter().map(of).collect()
}

fn pull_rows(store: &KvStore, key: &Key, ids: &[i64], out: &Tensor, priority: i32) -> Result<()> {
    let found = store.pull_rows(key.clone(), ids, priority)?;
    let mut shape = found.shape().to_vec();
    shape[0] = ids.len();
    if out.shape() != shape || out.dtype() != found.rows().dtype() {
        return Err(Error::argument(
            format!("row_sparse_pull of key {key} into {out:?}"),
            format!("give an output of {} {shape:?}: one row for each row id", found.rows().dtype()),
        ));
    }
    let row_bytes = out.len_bytes().checked_div(ids.len()).unwrap_or(0);
    let rows = found.rows().read()?;
    let mut guard = out.write();
    for (id, row) in ids.iter().zip(guard.bytes_mut().chunks_exact_mut(row_bytes.max(1))) {
        let at = found.row_ids().binary_search(id).expect("every id that was asked for has its row");
        row.copy_from_slice(&rows.bytes()[at * row_bytes..][..row_bytes]);
    }
    Ok(())
}

/// Serves a store of `kind` if this process is a server, a scheduler or a helper, and then exits, as the
/// import of MXNet does in such a process. Before it exits, it runs the program's `atexit` functions and
/// writes the program's output.
pub(crate) fn serve_if_it_is_one(py: Python<'_>, kind: &str) -> PyResult<()> {
    let Some(status) = py.detach(|| serve(kind)).map_err(|error| raise(py, &error))? else { return Ok(()) };
    // `SystemExit` would not do: a program may catch it, and in a thread it ends only that thread.
    py.import("atexit")?.call_method0("_run_exitfuncs")?;
    let system = py.import("sys")?;
    for stream in ["stdout", "stderr"] {
        system.getattr(stream)?.call_method0("flush")?;
    }
    std::process::exit(status)
}

#[pymethods]
impl Store {
    #[new]
    fn new(py: Python<'_>, #[pyo3(from_py_with = text)] kind: String) -> PyResult<Self> {
        serve_if_it_is_one(py, &kind)?;
        let created = interruptible(py, || ringpull::create(&kind))?;
        let (kind, rank, num_workers) = (created.kind().name(), created.rank(), created.num_workers());
        Ok(Store { kind, rank, num_workers, process: Process::this(), inner: RwLock::new(Some(Arc::new(created))) })
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    /// This worker's rank. A forked child knows it too, such as a child that loads this rank's part of the
    /// data.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        self.known(py, KvStore::rank, self.rank)
    }

    #[getter]
    fn num_workers(&self, py: Python<'_>) -> PyResult<usize> {
        self.known(py, KvStore::num_workers, self.num_workers)
    }

    /// Returns the number of losses of workers after which the job has gone on.
    #[getter]
    fn generation(&self, py: Python<'_>) -> PyResult<u64> {
        self.known(py, KvStore::generation, 0)
    }

    /// Makes the next call after a loss call `callback(generation, rank, num_workers, lost)` on its thread.
    /// If the callback raises, that call raises the same error.
    fn on_change(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        if !callback.bind(py).is_callable() {
            return Err(PyTypeError::new_err(
                "the callback is called as callback(generation, rank, num_workers, lost)",
            ));
        }
        let store = self.open(py)?;
        store.on_change(Box::new(move |change| {
            let (generation, rank, num_workers) = (change.generation, change.rank, change.num_workers);
            let words = (generation, rank, num_workers, change.lost.clone());
            let raised = Python::try_attach(|py| callback.call1(py, words).err()).flatten();
            match raised {
                None => Ok(()),
                Some(raised) => {
                    RAISED.set(Some(raised));
                    Err(Error::Interrupted {})
                }
            }
        }));
        Ok(())
    }

    /// This process's number among those of its host, from the launcher. 0 if no launcher gives it.
    #[getter]
    #[allow(clippy::unused_self)]
    fn local_rank(&self) -> usize {
        ringpull_base::config::launcher_local_rank().unwrap_or(0)
    }

    #[pyo3(signature = (key, value, row_sparse=false))]
    fn init(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, row_sparse: bool) -> PyResult<()> {
        self.reporting(py, |store| {
            let key = key_of(key)?;
            let value = Foreign::of_value(&key, value, Access::Read, store.devices())?.into_tensor(py)?;
            detached(
                py,
                store,
                |store| {
                    if row_sparse { store.init_row_sparse(key, &value) } else { store.init(key, &value) }
                },
            )
        })
    }

    /// Pushes copies of the values, so these may be changed as soon as the call returns.
    fn push(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        values: Vec<Bound<'_, PyAny>>,
        #[pyo3(from_py_with = number)] priority: i32,
    ) -> PyResult<()> {
        self.reporting(py, |store| {
            let (key, devices) = (key_of(key)?, store.devices());
            let tensors = values.iter().map(|value| {
                let foreign = Foreign::of_value(&key, value, Access::Read, devices)?;
                // In host memory several values are summed before the call returns, so only a single value
                // has to be copied.
                if values.len() == 1 || devices.is_some() { foreign.copied(py) } else { foreign.into_tensor(py) }
            });
            let tensors = tensors.collect::<PyResult<Vec<_>>>()?;
            detached(py, store, |store| store.push(key, &tensors, priority))
        })
    }

    /// Does push and pull. `values` and `outs` have the same keys in the same order. Without outputs the
    /// values are the outputs. A key without values is left out. Every tensor is checked before the first key
    /// is pushed.
    fn push_pull(
        &self,
        py: Python<'_>,
        values: Pairs<'_>,
        outs: Option<Pairs<'_>>,
        #[pyo3(from_py_with = number)] priority: i32,
        keep: bool,
    ) -> PyResult<Handle> {
        self.reporting(py, |store| {
            let devices = store.devices();
            let outs_of = |index: usize| outs.as_ref().map(|outs| &outs[index].1[..]);
            let borrowed = values
                .iter()
                .enumerate()
                .filter(|(_, (_, values))| !values.is_empty())
                .map(|(index, (key, values))| BorrowedMemory::of(key_of(key)?, values, outs_of(index), devices))
                .collect::<PyResult<Vec<_>>>()?;
            let exchanges = Exchange::all(py, "pushpull", borrowed, keep, store.rank())?;
            detached(py, store, |store| exchanges.iter().try_for_each(|each| each.make(store, priority)))?;
            let (outs, values): (Vec<_>, Vec<_>) = exchanges.into_iter().map(|each| (each.outs, each.values)).unzip();
            Ok(Handle::new(outs.into_iter().flatten().collect(), values.into_iter().flatten(), devices.cloned()))
        })
    }

    /// Pulls several keys into their outputs, one after the other.
    fn pull(&self, py: Python<'_>, outs: Pairs<'_>, #[pyo3(from_py_with = number)] priority: i32) -> PyResult<()> {
        self.reporting(py, |store| {
            let devices = store.devices();
            let borrowed = outs.iter().map(|(key, outs)| BorrowedMemory::of(key_of(key)?, &[], Some(outs), devices));
            let exchanges = Exchange::all(py, "pull", borrowed.collect::<PyResult<_>>()?, true, store.rank())?;
            detached(py, store, |store| {
                for Exchange { key, outs, .. } in &exchanges {
                    store.pull(key.clone(), outs, priority)?;
                    devices.map_or(Ok(()), |devices| outs.iter().try_for_each(|out| devices.settle(out)))?;
                }
                Ok(())
            })
        })
    }

    /// Pushes row-sparse gradients of a tensor of `shape`. Each gradient is a pair of row ids and rows.
    fn push_rows(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        values: Vec<(Vec<i64>, Bound<'_, PyAny>)>,
        #[pyo3(from_py_with = numbers)] shape: Vec<usize>,
        #[pyo3(from_py_with = number)] priority: i32,
    ) -> PyResult<()> {
        self.reporting(py, |store| {
            let key = key_of(key)?;
            let rows = values.into_iter().map(|(ids, rows)| {
                let rows = Foreign::of_value(&key, &rows, Access::Read, None)?.into_tensor(py)?;
                RowSparse::new(&shape, &ids, rows).map_err(|error| raise(py, &error))
            });
            let rows = rows.collect::<PyResult<Vec<_>>>()?;
            detached(py, store, |store| store.push_rows(key, &rows, priority))
        })
    }

    /// Sets row i of `out` to row `ids[i]` of the key's value, for each i.
    fn pull_rows(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers)] ids: Vec<i64>,
        out: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = number)] priority: i32,
    ) -> PyResult<()> {
        self.reporting(py, |store| {
            let key = key_of(key)?;
            let out = Foreign::of_value(&key, out, Access::Write, None)?.into_tensor(py)?;
            detached(py, store, |store| pull_rows(store, &key, &ids, &out, priority))
        })
    }

    /// Reports the reason to other workers: if this worker ends now, those that wait for it raise an error
    /// with it. Does nothing if the store was closed.
    fn report_failure(&self, py: Python<'_>, #[pyo3(from_py_with = any_text)] why: String) {
        if let Ok(store) = self.open(py) {
            py.detach(|| store.report_failure(&why));
        }
    }

    /// Sets an optimizer, which is text such as `sgd,lr=0.1,momentum=0.9`, with factors of keys.
    #[pyo3(signature = (optimizer, sharded=false, lr_mult=None, wd_mult=None))]
    fn set_optimizer(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text)] optimizer: String,
        sharded: bool,
        lr_mult: Option<&Bound<'_, PyMapping>>,
        wd_mult: Option<&Bound<'_, PyMapping>>,
    ) -> PyResult<()> {
        let (lr_mult, wd_mult) = (factors(lr_mult)?, factors(wd_mult)?);
        self.with(py, |store| {
            let optimizer = Optimizer { lr_mult, wd_mult, ..optimizer.parse::<Optimizer>()? };
            if sharded { store.set_sharded_optimizer(&optimizer) } else { store.set_optimizer(&optimizer) }
        })
    }

    /// Makes a thread of the store call `updater(key, received, stored)` for each push. `received` and
    /// `stored` are `Array`s, and the updater changes `stored`.
    fn set_updater(&self, py: Python<'_>, updater: Py<PyAny>) -> PyResult<()> {
        if !updater.bind(py).is_callable() {
            return Err(PyTypeError::new_err("an updater is called as updater(key, received, stored)"));
        }
        let updater = calling(updater, self.rank);
        self.with(py, move |store| store.set_updater(updater))
    }

    fn set_shares(&self, py: Python<'_>, work_load_list: Vec<f64>) -> PyResult<()> {
        self.with(py, |store| store.set_shares(&work_load_list))
    }

    fn set_gradient_compression(&self, py: Python<'_>, params: CompressionParams) -> PyResult<()> {
        self.with(py, |store| match params.read()? {
            Some(compression) => store.set_gradient_compression(&compression),
            None => store.unset_gradient_compression(),
        })
    }

    fn save_optimizer_states(&self, py: Python<'_>, path: PathBuf, dump_optimizer: bool) -> PyResult<()> {
        self.with(py, |store| store.save_optimizer_states(&path, dump_optimizer))
    }

    fn load_optimizer_states(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |store| store.load_optimizer_states(&path))
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, KvStore::barrier)
    }

    fn join(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, KvStore::join)
    }

    fn wait_all(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, KvStore::wait_all)
    }

    /// Raises the error that `operation` on `key` would raise for a value of this shape and dtype. Does
    /// nothing else.
    fn check(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        operation: &str,
        #[pyo3(from_py_with = numbers)] shape: Vec<usize>,
        dtype: &str,
    ) -> PyResult<()> {
        let key = key_of(key)?;
        self.with(py, |store| store.check(key, operation, &shape, dtype.parse()?))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.open(py)?.stats();
        let dict = PyDict::new(py);
        dict.set_item("pushes", stats.pushes)?;
        dict.set_item("pulls", stats.pulls)?;
        dict.set_item("sent_bytes", stats.sent_bytes)?;
        dict.set_item("received_bytes", stats.received_bytes)?;
        dict.set_item("control_messages", stats.control_messages)?;
        dict.set_item("state_bytes", stats.state_bytes)?;
        Ok(dict)
    }

    /// Leaves the job. Later calls raise. Does nothing in a forked child, whose parent stays in the job.
    fn close(&self, py: Python<'_>) {
        if !self.process.is_here() {
            return;
        }
        let store = self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        // A thread that is in a call of the store keeps the store alive.
        py.detach(move || {
            if let Some(store) = store {
                store.leave();
            }
        });
    }
}

/// Prints the exception of an updater. `PyErr::print` would end the process if the exception is `SystemExit`.
fn show(py: Python<'_>, cause: &PyErr) {
    // The exception has its traceback only after `into_value`.
    let raised = cause.clone_ref(py).into_value(py);
    let shown = py.import("ringpull.uncaught").and_then(|uncaught| uncaught.call_method1("show", (raised,)));
    if shown.is_err() {
        cause.display(py);
    }
}

/// A message on one line, without our hint.
fn first_words(text: &str) -> String {
    let cause = text.split_once("\n  hint: ").map_or(text, |(cause, _)| cause);
    cause.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The updater that calls `function` on `rank`. If `function` raises, every rank gets an error.
fn calling(function: Py<PyAny>, rank: usize) -> Updater {
    Box::new(move |key, received, stored| {
        let changed = interpreter::attached(|py| -> Result<Py<Array>> {
            let raised = |cause: PyErr| {
                show(py, &cause);
                Error::UpdaterFailed { key: key.clone(), rank, cause: first_words(&cause.to_string()) }
            };
            let stored = Py::new(py, Array::writing(stored)?).map_err(raised)?;
            let received = Array::reading(received)?;
            let name = match key {
                Key::Int(number) => {
                    number.into_pyobject(py).map(|key| key.into_any().unbind()).map_err(|e| raised(e.into()))?
                }
                Key::Str(name) => {
                    name.as_ref().into_pyobject(py).map(|key| key.into_any().unbind()).map_err(|e| raised(e.into()))?
                }
            };
            function.call1(py, (name, received, stored.clone_ref(py))).map_err(raised)?;
            Ok(stored)
        });
        let changed = changed.unwrap_or_else(|| {
            Err(Error::argument(
                "a push still needed the updater when Python ended",
                "wait for pushes before the program ends",
            ))
        })?;
        stored.write().copy_from(changed.get().bytes());
        // The reference to the array is given back while the interpreter is held, or not at all.
        let _: Option<()> = interpreter::attached(|py| changed.drop_ref(py));
        Ok(())
    })
}
