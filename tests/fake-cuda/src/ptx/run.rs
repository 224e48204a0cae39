//! A kernel's grid, run thread by thread.
//!
//! The threads of a grid run one after the other, each to its end: our kernels have no barriers, and a GPU
//! does not define the order of threads either.
#![allow(unsafe_code)]
// Addresses are checked to be multiples of what is accessed.
#![allow(clippy::cast_ptr_alignment)]

use super::{Instruction, LOCAL, Operation, PtxKernel, Register, Space};

/// The reason that a kernel was ended. A GPU would report an illegal or a misaligned address.
pub(crate) enum Fault {
    Illegal(String),
    Misaligned(String),
}

/// The memory that a kernel reaches.
pub(crate) trait KernelMemory {
    /// Returns the place of `len` bytes at `address` in this process. `site` is the instruction, a hint for
    /// caches.
    fn reach(&mut self, site: usize, address: u64, len: usize, writes: bool) -> Result<*mut u8, Fault>;
}

/// Runs `kernel` with the memory of its parameters.
pub(crate) fn run(
    kernel: &PtxKernel,
    grid: [u32; 3],
    block: [u32; 3],
    parameters: &[u8],
    memory: &mut impl KernelMemory,
) -> Result<(), Fault> {
    let mut registers = kernel.registers.clone();
    let mut local = vec![0u64; kernel.local_len.div_ceil(8)];
    let count = |of: [u32; 3]| of.iter().map(|axis| u64::from(*axis)).product::<u64>();
    for cta in 0..count(grid) {
        for thread in 0..count(block) {
            let indices = [place(thread, block), place(cta, grid), block, grid];
            for ((which, axis), register) in &kernel.special {
                registers[usize::from(*register)] = indices[*which][*axis].into();
            }
            run_thread(kernel, &mut registers, parameters, &mut local, memory)?;
        }
    }
    Ok(())
}

fn place(index: u64, of: [u32; 3]) -> [u32; 3] {
    let [x, y] = [u64::from(of[0]), u64::from(of[1])];
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}

fn run_thread(
    kernel: &PtxKernel,
    registers: &mut [u64],
    parameters: &[u8],
    local: &mut [u64],
    memory: &mut impl KernelMemory,
) -> Result<(), Fault> {
    let mut at = 0;
    loop {
        let Instruction { guard, operation } = &kernel.code[at];
        at += 1;
        if let Some((predicate, is_negated)) = guard
            && (registers[usize::from(*predicate)] != 0) == *is_negated
        {
            continue;
        }
        let get = |registers: &[u64], register: &Register| registers[usize::from(*register)];
        match operation {
            Operation::One { apply, to, from } => registers[usize::from(*to)] = apply(get(registers, from)),
            Operation::Two { apply, to, from: [a, b] } => {
                registers[usize::from(*to)] = apply(get(registers, a), get(registers, b));
            }
            Operation::Three { apply, to, from: [a, b, c] } => {
                registers[usize::from(*to)] = apply(get(registers, a), get(registers, b), get(registers, c));
            }
            Operation::Load { space: Space::Parameter, len, is_signed, count, to, base, offset } => {
                let start = get(registers, base).wrapping_add_signed(*offset) as usize;
                for (index, to) in to[..usize::from(*count)].iter().enumerate() {
                    let from = start + index * usize::from(*len);
                    let bytes = parameters.get(from..from + usize::from(*len));
                    let bytes = bytes
                        .ok_or_else(|| Fault::Illegal(format!("a parameter at byte {from} in {}", kernel.name)))?;
                    registers[usize::from(*to)] = value(bytes, *is_signed);
                }
            }
            Operation::Load { space: Space::Generic, len, is_signed, count, to, base, offset } => {
                let bytes = usize::from(*len) * usize::from(*count);
                let address = get(registers, base).wrapping_add_signed(*offset);
                let from = reach(kernel, at - 1, address, bytes, false, local, memory)?;
                for (index, to) in to[..usize::from(*count)].iter().enumerate() {
                    // SAFETY: `reach` gives memory of this many bytes that is read by nobody who could see it
                    // torn: streams that are not ordered against this one are a finding.
                    registers[usize::from(*to)] =
                        unsafe { load(from.add(index * usize::from(*len)), *len, *is_signed) };
                }
            }
            Operation::Store { len, count, from, base, offset } => {
                let bytes = usize::from(*len) * usize::from(*count);
                let address = get(registers, base).wrapping_add_signed(*offset);
                let to = reach(kernel, at - 1, address, bytes, true, local, memory)?;
                for (index, from) in from[..usize::from(*count)].iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { store(to.add(index * usize::from(*len)), *len, get(registers, from)) };
                }
            }
            Operation::Unpack { bits, to, from } => {
                let whole = get(registers, from);
                for (index, to) in to.iter().enumerate() {
                    registers[usize::from(*to)] = whole >> (index * usize::from(*bits)) & (u64::MAX >> (64 - bits));
                }
            }
            Operation::Pack { bits, to, from } => {
                let parts = from.iter().enumerate();
                registers[usize::from(*to)] = parts.fold(0, |whole, (index, part)| {
                    whole | (get(registers, part) & (u64::MAX >> (64 - bits))) << (index * usize::from(*bits))
                });
            }
            Operation::Branch(to) => at = *to,
            Operation::Return => return Ok(()),
        }
    }
}

fn reach(
    kernel: &PtxKernel,
    site: usize,
    address: u64,
    len: usize,
    writes: bool,
    local: &mut [u64],
    memory: &mut impl KernelMemory,
) -> Result<*mut u8, Fault> {
    if !address.is_multiple_of(len as u64) {
        return Err(Fault::Misaligned(format!("{} accesses {len} bytes at {address:#x}", kernel.name)));
    }
    if address < LOCAL {
        return memory.reach(site, address, len, writes);
    }
    let start = (address - LOCAL) as usize;
    if start + len > kernel.local_len {
        return Err(Fault::Illegal(format!("{} leaves the memory of a thread", kernel.name)));
    }
    // The memory is whole words, so this lies within.
    Ok(local.as_mut_ptr().cast::<u8>().wrapping_add(start))
}

fn value(bytes: &[u8], is_signed: bool) -> u64 {
    let mut whole = [if is_signed && bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 }; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(whole)
}

/// # Safety
/// There are `len` bytes at `from`, aligned to that.
unsafe fn load(from: *const u8, len: u8, is_signed: bool) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        match (len, is_signed) {
            (1, false) => from.read().into(),
            (1, true) => from.cast::<i8>().read() as u64,
            (2, false) => from.cast::<u16>().read().into(),
            (2, true) => from.cast::<i16>().read() as u64,
            (4, false) => from.cast::<u32>().read().into(),
            (4, true) => from.cast::<i32>().read() as u64,
            _ => from.cast::<u64>().read(),
        }
    }
}

/// # Safety
/// As for `load`.
unsafe fn store(to: *mut u8, len: u8, value: u64) {
    // SAFETY: the caller's.
    unsafe {
        match len {
            1 => to.write(value as u8),
            2 => to.cast::<u16>().write(value as u16),
            4 => to.cast::<u32>().write(value as u32),
            _ => to.cast::<u64>().write(value),
        }
    }
}
