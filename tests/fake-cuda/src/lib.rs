//! The CUDA driver and NCCL for tests: one library that stands for `libcuda.so.1` and for `libnccl.so.2`.
//!
//! It computes without a GPU and is stricter than one. Kernels run from the PTX that the real NVRTC made of
//! our sources, instruction by instruction. A mistake that a driver would let pass is a finding, in words,
//! and an error of the call or of the device: an access beyond an allocation or to one that was given back,
//! two accesses that no event orders, a handle or a stream of another context, ranks whose collectives
//! differ. The host ends with a message if it touches memory of a device. Faults come where the environment
//! says.
//!
//! - `settings`: what the environment says; `calls`: entry points are counted, and fail if they are to
//! - `driver`: the driver's entry points; `machine`: devices and contexts; `codes`: its errors
//! - `memory`: allocations; `streams`: streams and events; `work`: what runs on them; `order`: who may
//! - `ptx`: kernels, `cubin`: those that cannot run here; `nccl`: NCCL; `findings`: what is reported
//!
//! `folder` in `ringpull-processes` makes the folder that a process finds both libraries in.

mod calls;
pub mod codes;
mod cubin;
pub mod driver;
mod findings;
mod machine;
mod memory;
pub mod nccl;
mod order;
mod ptx;
mod settings;
mod streams;
mod work;
