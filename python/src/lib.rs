//! The native part of the Python package `ringpull`: stores, tensors over memory of other libraries, errors.
//!
//! The functions that users call are in `ringpull/*.py`. Most calls of this crate have one key. A call that
//! may wait first releases the interpreter, so that an updater, or another thread, can run Python meanwhile.

mod array;
mod bench;
mod communicator;
mod dependency;
mod dlpack;
mod errors;
mod exchange;
mod foreign;
mod handle;
mod interpreter;
mod last_words;
mod numbers;
mod place;
mod store;

use pyo3::prelude::*;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use ringpull_base::{config, timeline};

/// The command `ringpull`, for the program of a wheel that loads this library (`python/command`).
#[cfg(feature = "command")]
#[allow(unsafe_code)]
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
extern "C" fn ringpull_main() -> std::ffi::c_int {
    ringpull_cli::commands::run().into()
}

/// The numbers of elements of the keys of a model that `ringpull bench` knows, multiplied by `scale`.
#[pyfunction]
fn model_lens(py: Python<'_>, name: &str, scale: f64) -> PyResult<Vec<usize>> {
    let keys = ringpull_workload::models::load(name, scale).map_err(|error| errors::raise(py, &error))?;
    Ok(keys.iter().map(ringpull_workload::models::ModelKey::len).collect())
}

/// Returns the variable by which a launcher shows that the job has several workers, and their number, if this
/// process is the one that prints for all of them.
#[pyfunction]
fn first_of_several(py: Python<'_>) -> PyResult<Option<(&'static str, usize)>> {
    let job = ringpull_base::config::Dmlc::from_env().map_err(|error| errors::raise(py, &error))?;
    Ok(ringpull_base::config::first_of_several(job.as_ref()))
}

/// The present time in the timeline, in nanoseconds. None while no timeline is recorded.
#[pyfunction]
fn timeline_ns() -> Option<u64> {
    timeline::is_on().then(timeline::now_ns)
}

/// Starts to record the timeline of this rank for `file`. Returns False if the process has another file.
#[pyfunction]
fn start_timeline(file: &str, rank: usize, size: usize) -> bool {
    let is_this = timeline::resume(file);
    timeline::introduce(ringpull_base::config::Role::Worker, rank, size);
    is_this
}

/// Writes the timeline, and records no more.
#[pyfunction]
fn stop_timeline(py: Python<'_>) {
    py.detach(timeline::stop);
}

/// Records that the program has been blocked in its framework since `since_ns`, a time of `timeline_ns`.
#[pyfunction]
fn record_wait(since_ns: u64) {
    timeline::record(timeline::Phase::Wait, || timeline::RESULTS, since_ns, 0);
}

/// The rows of each worker, as pairs of a start and an end.
#[pyfunction]
fn split(
    py: Python<'_>,
    #[pyo3(from_py_with = numbers::number)] len: usize,
    work_load_list: Vec<f64>,
) -> PyResult<Vec<(usize, usize)>> {
    let parts = ringpull::split(len, &work_load_list).map_err(|error| errors::raise(py, &error))?;
    Ok(parts.into_iter().map(|part| (part.start, part.end)).collect())
}

/// Returns true if this process has made a store.
#[pyfunction]
fn has_stores() -> bool {
    ringpull::internal::has_stores()
}

/// The least number of ranks with which a job goes on after a loss.
#[pyfunction]
fn min_workers(py: Python<'_>) -> PyResult<usize> {
    config::min_workers().map_err(|error| errors::raise(py, &error))
}

/// The folder of an elastic job's snapshots and the number of its generation; None in another job.
#[pyfunction]
fn elastic(py: Python<'_>) -> PyResult<Option<(std::path::PathBuf, u32)>> {
    config::elastic().map_err(|error| errors::raise(py, &error))
}

/// The 128-bit hash XXH3 of an array's bytes.
#[pyfunction]
fn hash_of(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<u128> {
    let tensor = foreign::Foreign::of(array, foreign::Access::Read, None)?.into_tensor(py)?;
    let read = tensor.read().map_err(|error| errors::raise(py, &error))?;
    Ok(py.detach(|| xxhash_rust::xxh3::xxh3_128(read.bytes())))
}

/// The shares of a batch with which all ranks would compute for the same time. Collective. Blocks.
#[pyfunction]
fn suggest_shares(py: Python<'_>) -> PyResult<Vec<f64>> {
    store::interruptible(py, ringpull::suggest_shares)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    if let Ok(filter) = config::log_filter().parse::<Targets>() {
        // If the process has a subscriber already, it stays.
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(config::log_is_colored());
        drop(tracing_subscriber::registry().with(lines).with(filter).try_init());
    }
    ringpull_base::notice::to_stderr();
    place::install();
    ringpull_mpi::run_in(module.py().import("sys")?.getattr("prefix")?.extract()?);
    // `mpi4py` may be imported after MPI was initialised, and then call MPI from other threads.
    let found = module.py().import("importlib.util")?.call_method1("find_spec", ("mpi4py",));
    if found.map_or(true, |found| !found.is_none()) {
        ringpull::internal::share_mpi();
        // `mpi4py` uses the MPI that is loaded, so the MPI of the mpirun that started this process is loaded
        // first. create() reports an error.
        if ringpull_mpi::is_rank() {
            drop(ringpull_mpi::load());
        }
    }
    interpreter::close_at_exit(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("KINDS", ringpull_base::Kind::ALL.map(ringpull_base::Kind::name).to_vec())?;
    last_words::add_to(module)?;
    module.add_function(wrap_pyfunction!(model_lens, module)?)?;
    module.add_function(wrap_pyfunction!(first_of_several, module)?)?;
    module.add_function(wrap_pyfunction!(timeline_ns, module)?)?;
    module.add_function(wrap_pyfunction!(record_wait, module)?)?;
    module.add_function(wrap_pyfunction!(start_timeline, module)?)?;
    module.add_function(wrap_pyfunction!(stop_timeline, module)?)?;
    module.add_function(wrap_pyfunction!(split, module)?)?;
    module.add_function(wrap_pyfunction!(elastic, module)?)?;
    module.add_function(wrap_pyfunction!(has_stores, module)?)?;
    module.add_function(wrap_pyfunction!(min_workers, module)?)?;
    module.add_function(wrap_pyfunction!(hash_of, module)?)?;
    module.add_function(wrap_pyfunction!(suggest_shares, module)?)?;
    module.add_class::<store::Store>()?;
    module.add_class::<bench::RustIterations>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<array::Array>()?;
    module.add_class::<foreign::Named>()?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<communicator::Called>()?;
    module.add_class::<dependency::DependencyEngine>()
}
