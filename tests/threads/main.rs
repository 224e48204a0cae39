//! Stores and communicators over ranks that are threads of this process: their order, overlap and faults,
//! their bits, and what they send. Nothing here needs MPI.

mod coded;
mod communicator;
mod devices;
mod frozen;
mod join;
mod order;
mod ranks;
mod replicas;
mod sharded;
