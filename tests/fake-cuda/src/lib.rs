//! The CUDA driver and NCCL for tests: one library in place of `libcuda.so.1` and of `libnccl.so.2`.
//!
//! It computes without a GPU and is stricter than one. Kernels run from the PTX that the real NVRTC made of
//! our sources, instruction by instruction. A mistake that a driver would not notice is a finding with a
//! text, and an error of the call or of the device. Such mistakes are an access outside an allocation or
//! after it was freed, two accesses that no event orders, a handle or a stream of another context, and ranks
//! with different collectives. The process ends with a message if the host touches memory of a device. The
//! environment can set faults.
//!
//! - `settings`: the settings of the environment; `calls`: counts calls, and makes them fail
//! - `driver`: the driver's entry points; `machine`: devices and contexts; `codes`: its errors
//! - `memory`: allocations; `streams`: streams and events; `work`: their work; `order`: the order of accesses
//! - `ptx`: kernels; `cubin`: kernels that cannot run here; `nccl`: NCCL; `findings`: the reports
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
