//! The memory of an operation under way.
//!
//! An operation owns its memory from its beginning to its end, so nobody else can touch it meanwhile. After
//! an error the transport may use the memory for ever. So the memory is then leaked, by [`Memory::give_up`]
//! and nowhere else.

use std::sync::Arc;

use ringpull_base::{Buffer, Error, TensorMut, TensorRef};

/// Memory that an operation takes, and gives back when it is done.
#[derive(Default)]
pub enum Memory {
    /// No memory.
    #[default]
    Nothing,
    /// A buffer.
    Own(Buffer),
    /// A tensor, locked for writing.
    Written(TensorMut),
    /// A tensor, locked for reading. An operation only sends it.
    Read(TensorRef),
    /// A buffer that other owners read too. An operation only sends it.
    Shared(Arc<Buffer>),
    /// The input and the output of an operation that has both.
    Pair(Box<(Memory, Memory)>),
}

impl Memory {
    /// The bytes; empty for a pair.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Memory::Nothing | Memory::Pair(_) => &[],
            Memory::Own(buffer) => buffer.bytes(),
            Memory::Written(tensor) => tensor.bytes(),
            Memory::Read(tensor) => tensor.bytes(),
            Memory::Shared(buffer) => buffer.bytes(),
        }
    }

    /// The bytes, for writing.
    ///
    /// # Panics
    /// If others may read the memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(buffer) => buffer.bytes_mut(),
            Memory::Written(tensor) => tensor.bytes_mut(),
            Memory::Nothing | Memory::Pair(_) => &mut [],
            Memory::Read(_) | Memory::Shared(_) => unreachable!("memory that others read is only sent"),
        }
    }

    /// Returns true if nobody else reads the memory, so that it may be written.
    pub fn is_exclusive(&self) -> bool {
        !matches!(self, Memory::Read(_) | Memory::Shared(_))
    }

    /// The address of the bytes, for writing if the memory [is exclusive](Self::is_exclusive).
    pub fn start(&mut self) -> *mut u8 {
        if self.is_exclusive() { self.bytes_mut().as_mut_ptr() } else { self.bytes().as_ptr().cast_mut() }
    }

    /// The bytes of the input and of the output.
    ///
    /// # Panics
    /// If the memory is no pair.
    pub fn pair_mut(&mut self) -> (&[u8], &mut [u8]) {
        let Memory::Pair(pair) = self else { unreachable!("an operation with two buffers has a pair") };
        (pair.0.bytes(), pair.1.bytes_mut())
    }

    /// The buffer that was given.
    ///
    /// # Panics
    /// If it was something else.
    pub fn into_buffer(self) -> Buffer {
        let Memory::Own(buffer) = self else { unreachable!("an operation gives back what it took") };
        buffer
    }

    /// The tensor that was given, locked for writing.
    ///
    /// # Panics
    /// If it was something else.
    pub fn into_tensor(self) -> TensorMut {
        let Memory::Written(tensor) = self else { unreachable!("an operation gives back what it took") };
        tensor
    }

    /// The output of a pair; otherwise the memory itself.
    pub fn output(&self) -> &Memory {
        if let Memory::Pair(pair) = self { &pair.1 } else { self }
    }

    /// Returns the output of a pair, and drops the input; otherwise returns the memory itself.
    #[must_use]
    pub fn into_output(self) -> Memory {
        if let Memory::Pair(pair) = self { pair.1 } else { self }
    }

    /// Leaks the bytes, as the transport may still use them. Readers of a tensor get `fault`.
    pub fn give_up(self, fault: &Error) {
        match self {
            memory @ (Memory::Nothing | Memory::Own(_) | Memory::Shared(_)) => std::mem::forget(memory),
            Memory::Written(tensor) => tensor.abandon(fault.clone()),
            Memory::Read(tensor) => tensor.abandon(),
            Memory::Pair(pair) => {
                pair.0.give_up(fault);
                pair.1.give_up(fault);
            }
        }
    }
}
