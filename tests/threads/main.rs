//! Tests of stores and communicators whose ranks are threads of this process: of their order, overlap,
//! faults, results and traffic. No test here needs MPI.

mod coded;
mod communicator;
mod devices;
mod frozen;
mod join;
mod order;
mod ranks;
mod replicas;
mod sharded;
