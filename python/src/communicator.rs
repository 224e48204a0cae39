//! Communicators, for `ringpull/collectives.py`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use ringpull::{CallOptions, Handle};
use ringpull_base::config::Config;
use ringpull_base::{DType, Reduction, Result, Tensor};

use crate::array::Array;
use crate::errors::{argument, raise};
use crate::foreign::{Access, Foreign};
use crate::numbers::{any_text, factor, number, numbers, optional_number, optional_numbers, seconds, text};
use crate::store::{interruptible, key_of, serve_if_it_is_one};

/// Ranks of a job. Users see it as `ringpull.Communicator`.
#[pyclass(frozen, module = "ringpull._native")]
pub(crate) struct Communicator(Arc<ringpull::Communicator>);

/// The handle that belongs to a call.
enum Under {
    Tensor(Handle<Tensor>),
    Blocks(Handle<(Tensor, Vec<usize>)>),
    Sent(Handle<()>),
    Received(Handle<(Tensor, usize)>),
}

/// A collective under way.
#[pyclass(frozen, module = "ringpull._native")]
pub(crate) struct Called {
    under: Mutex<Option<Under>>,
    /// The tensors over other libraries' memory. They are kept so that this memory is given back on the
    /// caller's thread.
    tensors: Mutex<Vec<Tensor>>,
    has_output: bool,
}

/// A result: a new array if there was no output, and a list. The list has the numbers of rows that came from
/// each rank in an alltoall, or the rank that sent a message.
type ResultParts = (Option<Array>, Option<Vec<usize>>);

/// A result before it is converted for Python.
type Found = (Option<Tensor>, Option<Vec<usize>>);

/// The time for which a caller waits for a result.
#[derive(Clone, Copy)]
enum ResultWait {
    Endless,
    Within(Duration),
    None,
}

impl ResultWait {
    fn ask<T>(self, handle: &Handle<T>) -> Result<Option<T>> {
        match self {
            ResultWait::Endless => handle.wait_here().map(Some),
            ResultWait::Within(limit) => handle.wait_within(limit),
            ResultWait::None => handle.take(),
        }
    }
}

impl Under {
    fn outcome(&self, patience: ResultWait) -> Result<Option<Found>> {
        Ok(match self {
            Under::Tensor(handle) => patience.ask(handle)?.map(|tensor| (Some(tensor), None)),
            Under::Blocks(handle) => patience.ask(handle)?.map(|(tensor, taken)| (Some(tensor), Some(taken))),
            Under::Sent(handle) => patience.ask(handle)?.map(|()| (None, None)),
            Under::Received(handle) => patience.ask(handle)?.map(|(tensor, from)| (Some(tensor), Some(vec![from]))),
        })
    }
}

impl Called {
    fn new(under: Under, tensors: Vec<Tensor>, has_output: bool) -> Self {
        Called { under: Mutex::new(Some(under)), tensors: Mutex::new(tensors), has_output }
    }

    /// The result. Returns it only once.
    fn outcome(&self, patience: ResultWait) -> Result<Option<ResultParts>> {
        // Another thread may wait for the same result.
        let mut place = self.under.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(under) = place.as_ref() else { return Ok(None) };
        let Some((tensor, taken)) = under.outcome(patience)? else { return Ok(None) };
        place.take();
        let array = tensor.filter(|_| !self.has_output).map(Array::given).transpose()?;
        Ok(Some((array, taken)))
    }

    /// Gives the tensors' memory back if there is a result.
    fn settled(&self, found: Option<ResultParts>) -> Option<ResultParts> {
        if found.is_some() {
            self.tensors.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        found
    }
}

#[pymethods]
impl Called {
    /// Waits for the result. Returns it only once, and None after `timeout` seconds. Raises the error of a
    /// collective that failed.
    #[pyo3(signature = (timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = seconds)] timeout: Option<Duration>,
    ) -> PyResult<Option<ResultParts>> {
        let patience = timeout.map_or(ResultWait::Endless, ResultWait::Within);
        interruptible(py, || self.outcome(patience)).map(|found| self.settled(found))
    }

    /// The result if it is there, else None. Does not count as a wait, so it does not end a sequence of calls
    /// that runs without messages.
    fn take(&self, py: Python<'_>) -> PyResult<Option<ResultParts>> {
        let found = py.detach(|| self.outcome(ResultWait::None));
        found.map(|found| self.settled(found)).map_err(|error| raise(py, &error))
    }

    /// Returns true if `wait` would return or raise at once.
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| match self.under.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(Under::Tensor(handle)) => handle.is_done(),
            Some(Under::Blocks(handle)) => handle.is_done(),
            Some(Under::Sent(handle)) => handle.is_done(),
            Some(Under::Received(handle)) => handle.is_done(),
            None => true,
        })
    }
}

/// A reduction to be checked: the call in words, its reduction, and true if it has factors.
type ReductionCheck = (String, Reduction, bool);

/// The tensors of a call: the input, and the output if there is one. The output may be the input.
fn tensors(
    py: Python<'_>,
    array: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    reduced: Option<ReductionCheck>,
) -> PyResult<(Tensor, Option<Tensor>)> {
    let input = Foreign::of(array, Access::Read, None)?;
    if let Some((what, reduction, is_scaled)) = reduced {
        input.element().check(&what, reduction, is_scaled).map_err(|error| raise(py, &error))?;
    }
    let Some(out) = out else { return Ok((input.into_tensor(py)?, None)) };
    let out = Foreign::of(out, Access::Write, None)?;
    if out.element() != input.element() {
        let what = format!("an output of {} for an input of {}", out.element().name, input.element().name);
        return Err(argument(py, what, "give an output of the input's dtype"));
    }
    if out.is_same(&input) {
        let out = out.into_tensor(py)?;
        return Ok((out.clone(), Some(out)));
    }
    Ok((input.into_tensor(py)?, Some(out.into_tensor(py)?)))
}

struct CallKeywords<'py> {
    name: Option<Bound<'py, PyAny>>,
    priority: i32,
    prescale: f64,
    postscale: f64,
}

/// Written by hand, because the errors of a derived conversion would not show which number is wrong.
fn options<'py>(object: &Bound<'py, PyAny>) -> PyResult<CallKeywords<'py>> {
    let name = object.get_item("name")?;
    Ok(CallKeywords {
        name: (!name.is_none()).then_some(name),
        priority: number(&object.get_item("priority")?)?,
        prescale: factor(&object.get_item("prescale")?)?,
        postscale: factor(&object.get_item("postscale")?)?,
    })
}

fn all_options<'py>(object: &Bound<'py, PyAny>) -> PyResult<Vec<CallKeywords<'py>>> {
    object.try_iter()?.map(|one| options(&one?)).collect()
}

impl CallKeywords<'_> {
    /// The call in words, with the name that the program gave. Front ends put the operation's name before it,
    /// which this takes away.
    fn in_words(&self, operation: &str) -> String {
        let name = self.name.as_ref().map(ToString::to_string);
        let name = name.map(|name| name.strip_prefix(&format!("{operation}.")).unwrap_or(&name).to_owned());
        name.map_or_else(|| operation.to_owned(), |name| format!("{operation} of {name}"))
    }

    /// Returns the checked form of a reduction.
    #[allow(clippy::float_cmp)] // A factor of exactly 1 counts as no factor.
    fn reduced(&self, operation: &str, reduction: Reduction) -> ReductionCheck {
        (self.in_words(operation), reduction, self.prescale != 1.0 || self.postscale != 1.0)
    }

    fn with(&self, out: Option<&Tensor>) -> PyResult<CallOptions> {
        let name = self.name.as_ref().map(key_of).transpose()?;
        Ok(CallOptions {
            name,
            priority: self.priority,
            out: out.cloned(),
            prescale: self.prescale,
            postscale: self.postscale,
        })
    }
}

impl Communicator {
    /// Calls a collective of one input, and keeps its tensors.
    fn call(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        options: &CallKeywords<'_>,
        reduced: Option<ReductionCheck>,
        work: impl FnOnce(&ringpull::Communicator, &Tensor, &CallOptions) -> Result<Under> + Send,
    ) -> PyResult<Called> {
        let (input, output) = tensors(py, array, out, reduced)?;
        let options = options.with(output.as_ref())?;
        let under = interruptible(py, || work(&self.0, &input, &options))?;
        let has_output = output.is_some();
        Ok(Called::new(under, std::iter::once(input).chain(output).collect(), has_output))
    }
}

#[pymethods]
impl Communicator {
    /// `timeout`, in seconds, replaces `RINGPULL_TIMEOUT` if this call initialises MPI.
    #[new]
    #[pyo3(signature = (timeout=None))]
    fn new(py: Python<'_>, #[pyo3(from_py_with = seconds)] timeout: Option<Duration>) -> PyResult<Self> {
        serve_if_it_is_one(py, "dist_sync_mpi")?;
        let made = interruptible(py, || {
            let mut config = Config::from_env()?;
            if let Some(timeout) = timeout {
                config.timeout = timeout.max(Duration::from_millis(100));
            }
            ringpull::communicator_with(&config)
        })?;
        Ok(Communicator(Arc::new(made)))
    }

    /// Returns true if the communicator's job goes on without lost ranks.
    #[getter]
    fn is_elastic(&self) -> bool {
        self.0.is_elastic()
    }

    /// Returns the number of losses after which the job had gone on when the communicator was made.
    #[getter]
    fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// The losses since the communicator was made. Each has its number, this rank's new number, the new
    /// number of ranks, and the former numbers of the lost ranks. Waits while a loss is being handled.
    fn changes(&self, py: Python<'_>) -> Vec<(u64, usize, usize, Vec<usize>)> {
        let changes = py.detach(|| self.0.changes()).into_iter();
        changes.map(|change| (change.generation, change.rank, change.num_workers, change.lost)).collect()
    }

    #[getter]
    fn rank(&self) -> usize {
        self.0.rank()
    }

    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }

    #[getter]
    fn ranks(&self) -> Vec<usize> {
        self.0.ranks().to_vec()
    }

    /// The local rank, and the number of ranks on this host.
    #[getter]
    fn local(&self) -> (usize, usize) {
        self.0.local()
    }

    /// This host's number among the hosts that have a rank with this local rank, and the number of these
    /// hosts.
    #[getter]
    fn cross(&self) -> (usize, usize) {
        self.0.cross()
    }

    fn split(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers)] ranks: Vec<usize>,
    ) -> PyResult<Option<Communicator>> {
        let split = interruptible(py, || self.0.split(&ranks))?;
        Ok(split.map(|split| Communicator(Arc::new(split))))
    }

    fn subset(&self, py: Python<'_>, #[pyo3(from_py_with = numbers)] ranks: Vec<usize>) -> PyResult<Communicator> {
        Ok(Communicator(Arc::new(interruptible(py, || self.0.subset(&ranks))?)))
    }

    fn allreduce(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = text)] reduction: String,
        out: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = options)] options: CallKeywords<'_>,
    ) -> PyResult<Called> {
        let reduction: Reduction = reduction.parse().map_err(|error| raise(py, &error))?;
        let reduced = options.reduced("allreduce", reduction);
        self.call(py, array, out, &options, Some(reduced), |comm, input, options| {
            comm.allreduce(input, reduction, options).map(Under::Tensor)
        })
    }

    /// Allreduces several arrays as one operation. `outs` and `options` have one item for each array.
    fn grouped_allreduce(
        &self,
        py: Python<'_>,
        arrays: Vec<Bound<'_, PyAny>>,
        #[pyo3(from_py_with = text)] reduction: String,
        outs: Vec<Option<Bound<'_, PyAny>>>,
        #[pyo3(from_py_with = all_options)] options: Vec<CallKeywords<'_>>,
    ) -> PyResult<Vec<Called>> {
        let reduction: Reduction = reduction.parse().map_err(|error| raise(py, &error))?;
        let given = arrays.iter().zip(&outs).zip(&options).map(|((array, out), options)| {
            tensors(py, array, out.as_ref(), Some(options.reduced("grouped_allreduce", reduction)))
        });
        let given = given.collect::<PyResult<Vec<_>>>()?;
        let calls = given.iter().zip(&options).map(|((_, out), options)| options.with(out.as_ref()));
        let calls = calls.collect::<PyResult<Vec<_>>>()?;
        let inputs: Vec<Tensor> = given.iter().map(|(input, _)| input.clone()).collect();
        let handles = interruptible(py, || self.0.grouped_allreduce(&inputs, reduction, &calls))?;
        let called = handles.into_iter().zip(given).map(|(handle, (input, out))| {
            let has_output = out.is_some();
            Called::new(Under::Tensor(handle), std::iter::once(input).chain(out).collect(), has_output)
        });
        Ok(called.collect())
    }

    fn reduce_scatter(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = text)] reduction: String,
        #[pyo3(from_py_with = optional_numbers)] lens: Option<Vec<usize>>,
        out: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = options)] options: CallKeywords<'_>,
    ) -> PyResult<Called> {
        let reduction: Reduction = reduction.parse().map_err(|error| raise(py, &error))?;
        let reduced = options.reduced("reduce_scatter", reduction);
        self.call(py, array, out, &options, Some(reduced), |comm, input, options| {
            comm.reduce_scatter(input, reduction, lens.as_deref(), options).map(Under::Tensor)
        })
    }

    fn allgather(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = optional_numbers)] lens: Option<Vec<usize>>,
        out: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = options)] options: CallKeywords<'_>,
    ) -> PyResult<Called> {
        self.call(py, array, out, &options, None, |comm, input, options| {
            comm.allgather(input, lens.as_deref(), options).map(Under::Tensor)
        })
    }

    fn alltoall(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = optional_numbers)] splits: Option<Vec<usize>>,
        #[pyo3(from_py_with = optional_numbers)] taken: Option<Vec<usize>>,
        out: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = options)] options: CallKeywords<'_>,
    ) -> PyResult<Called> {
        self.call(py, array, out, &options, None, |comm, input, options| {
            comm.alltoall(input, splits.as_deref(), taken.as_deref(), options).map(Under::Blocks)
        })
    }

    fn broadcast(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = number)] root: usize,
        out: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = options)] options: CallKeywords<'_>,
    ) -> PyResult<Called> {
        self.call(py, array, out, &options, None, |comm, input, options| {
            comm.broadcast(input, root, options).map(Under::Tensor)
        })
    }

    fn send(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = number)] to: usize,
        #[pyo3(from_py_with = number)] tag: u32,
    ) -> PyResult<Called> {
        let input = Foreign::of(array, Access::Read, None)?.into_tensor(py)?;
        let under = interruptible(py, || self.0.send(&input, to, tag).map(Under::Sent))?;
        Ok(Called::new(under, vec![input], true))
    }

    fn recv(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = optional_number)] from: Option<usize>,
        #[pyo3(from_py_with = number)] tag: u32,
    ) -> PyResult<Called> {
        let out = Foreign::of(out, Access::Write, None)?.into_tensor(py)?;
        let under = interruptible(py, || self.0.recv(&out, from, tag).map(Under::Received))?;
        Ok(Called::new(under, vec![out], true))
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        interruptible(py, || self.0.barrier())
    }

    fn begin_barrier(&self, py: Python<'_>) -> PyResult<Called> {
        let under = interruptible(py, || self.0.begin_barrier().map(Under::Sent))?;
        Ok(Called::new(under, Vec::new(), true))
    }

    fn join(&self, py: Python<'_>) -> PyResult<usize> {
        interruptible(py, || self.0.join())
    }

    fn should_stop(&self, py: Python<'_>, wants: bool) -> PyResult<bool> {
        interruptible(py, || self.0.should_stop(wants))
    }

    fn report_failure(&self, py: Python<'_>, #[pyo3(from_py_with = any_text)] why: String) {
        py.detach(|| self.0.report_failure(&why));
    }
}

impl Array {
    /// The elements of a tensor of ours that nobody else uses, for Python to keep. If the buffer protocol has
    /// no name for the element type, the elements are bytes, with one more dimension.
    fn given(tensor: Tensor) -> Result<Self> {
        let (dtype, mut shape) = (tensor.dtype(), tensor.shape().to_vec());
        let data = tensor.read()?.snapshot();
        data.keep_for_children();
        let dtype = if dtype == DType::BF16 {
            shape.push(dtype.size_bytes());
            DType::U8
        } else {
            dtype
        };
        Ok(Array::over(dtype, shape, data))
    }
}
