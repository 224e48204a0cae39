//! Measures an allreduce of plain buffers, without the store: our plans and the MPI library's own.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::harness::record::Record;

/// Sums buffers of `sizes` bytes over all ranks by `algorithm`, verifies every result, and gives rank 0 one record a size.
pub fn run(sizes: &[usize], algorithm: &str, dtype: DType, iters: usize, warmup: usize) -> Result<Option<Vec<Record>>> {
    Err(Error::KindUnavailable {
        kind: format!("allreduce by {algorithm}"),
        reason: format!(
            "this build has no communicator for {} sizes of {dtype}, {warmup} + {iters} iterations",
            sizes.len()
        ),
        remedy: "use a build with the mpi feature, under mpirun".to_owned(),
    })
}
