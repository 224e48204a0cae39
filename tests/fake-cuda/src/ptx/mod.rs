//! Kernels as NVRTC compiles them: PTX is read once into a compact form (`parse`, with the instructions in
//! `arithmetic`) and then run thread by thread (`run`).
//!
//! Only the instructions of our kernels are implemented. An unknown instruction is an error when the module
//! is loaded, like invalid PTX for the driver.

mod arithmetic;
mod parse;
mod run;

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) use parse::module;
pub(crate) use run::{Fault, KernelMemory, run};

/// The kernels of a module by their names.
pub(crate) type Kernels = HashMap<String, Arc<PtxKernel>>;

/// A register, by its place in the file of a thread.
type Register = u16;

/// A function of one to three registers. The bits of a register beyond the width of the type are not read.
type One = fn(u64) -> u64;
type Two = fn(u64, u64) -> u64;
type Three = fn(u64, u64, u64) -> u64;

/// One parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PtxParameter {
    /// Its position in the memory of all parameters.
    pub(crate) offset: usize,
    /// Its size.
    pub(crate) len: usize,
}

/// A kernel, ready to run.
pub(crate) struct PtxKernel {
    pub(crate) name: String,
    pub(crate) parameters: Vec<PtxParameter>,
    /// The registers of a thread at its start: zero, but for constants.
    registers: Vec<u64>,
    /// The registers of `%tid`, `%ctaid`, `%ntid` and `%nctaid`, if they are read.
    special: Vec<(Special, Register)>,
    /// Bytes of memory that each thread has for itself.
    local_len: usize,
    code: Vec<Instruction>,
}

impl PtxKernel {
    /// Returns a kernel of which only the name is known.
    pub(crate) fn named(name: String) -> Self {
        PtxKernel {
            name,
            parameters: Vec::new(),
            registers: Vec::new(),
            special: Vec::new(),
            local_len: 0,
            code: Vec::new(),
        }
    }

    pub(crate) fn can_run(&self) -> bool {
        !self.code.is_empty()
    }
}

/// A special register: which of the four, and x, y or z.
type Special = (usize, usize);

struct Instruction {
    /// The predicate that has to be true, or false with `negated`.
    guard: Option<(Register, bool)>,
    operation: Operation,
}

/// The memory that an address leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// The memory of the parameters; the address is an offset.
    Parameter,
    /// Memory of devices and hosts, or the thread's own.
    Generic,
}

enum Operation {
    One {
        apply: One,
        to: Register,
        from: Register,
    },
    Two {
        apply: Two,
        to: Register,
        from: [Register; 2],
    },
    Three {
        apply: Three,
        to: Register,
        from: [Register; 3],
    },
    /// `count` values of `len` bytes from an address to registers.
    Load {
        space: Space,
        len: u8,
        is_signed: bool,
        count: u8,
        to: [Register; 4],
        base: Register,
        offset: i64,
    },
    Store {
        len: u8,
        count: u8,
        from: [Register; 4],
        base: Register,
        offset: i64,
    },
    /// The parts of a register, low bits first, each of `bits` bits.
    Unpack {
        bits: u8,
        to: Vec<Register>,
        from: Register,
    },
    Pack {
        bits: u8,
        to: Register,
        from: Vec<Register>,
    },
    Branch(usize),
    Return,
}

/// The beginning of a thread's own memory in its address space, beyond every address of a process.
const LOCAL: u64 = 1 << 62;
