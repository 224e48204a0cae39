//! The work of streams: copies, zeros and kernels, with the memory of each checked when it runs.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ops::Range;
use std::ptr;

use crate::codes::{ILLEGAL_ADDRESS, LAUNCH_FAILED, MISALIGNED_ADDRESS};
use crate::findings::report;
use crate::machine;
use crate::memory::{self, MemoryHome, MemoryRegion};
use crate::order::WorkStamp;
use crate::ptx::{self, Fault, KernelMemory, PtxKernel};

/// One end of a copy.
pub(crate) enum Place {
    /// Memory that the driver knows.
    Known(u64),
    /// The content of pageable memory when the copy was queued.
    Content(Vec<u8>),
    /// Pageable memory. The caller waits for the copy.
    Pageable(usize),
}

/// Copies `len` bytes. A mistake fails the device.
pub(crate) fn copy(stamp: &WorkStamp, from: &Place, to: &Place, len: usize) -> Result<(), c_int> {
    let source = match from {
        Place::Known(address) => region(stamp, *address, len, false)?.inner(*address).cast_const(),
        Place::Content(bytes) => bytes.as_ptr(),
        Place::Pageable(address) => *address as *const u8,
    };
    let target = match to {
        Place::Known(address) => region(stamp, *address, len, true)?.inner(*address),
        Place::Pageable(address) => *address as *mut u8,
        Place::Content(_) => return Err(LAUNCH_FAILED),
    };
    // SAFETY: both have this many bytes: regions that are not given back while work uses them, or memory of a
    // caller who waits. They may be the same.
    unsafe { ptr::copy(source, target, len) };
    Ok(())
}

/// Fills `len` bytes.
pub(crate) fn fill(stamp: &WorkStamp, address: u64, value: u8, len: usize) -> Result<(), c_int> {
    let to = region(stamp, address, len, true)?.inner(address);
    // SAFETY: as for a copy.
    unsafe { ptr::write_bytes(to, value, len) };
    Ok(())
}

/// Returns the region of these bytes, which `stamp`'s work is about to use.
pub(crate) fn region(stamp: &WorkStamp, address: u64, len: usize, writes: bool) -> Result<MemoryRegion, c_int> {
    let found = memory::find(address, len).map_err(|text| {
        report("illegal address", &format!("{}: {text}", stamp.what));
        ILLEGAL_ADDRESS
    })?;
    let bytes = address..address + len as u64;
    ordered(memory::note(found.start, stamp, std::slice::from_ref(&bytes), writes)).map(|()| found)
}

fn ordered(found: Option<String>) -> Result<(), c_int> {
    found.map_or(Ok(()), |text| {
        report("no order", &text);
        Err(LAUNCH_FAILED)
    })
}

/// Runs a kernel on a device.
pub(crate) fn launch(
    stamp: &WorkStamp,
    device: usize,
    kernel: &PtxKernel,
    [grid, block]: [[u32; 3]; 2],
    parameters: &[u8],
) -> Result<(), c_int> {
    let mut reach = ReachedMemory { device, touched: Vec::new(), last: Vec::new() };
    let outcome = ptx::run(kernel, grid, block, parameters, &mut reach);
    if let Err(fault) = outcome {
        let (kind, text, code) = match fault {
            Fault::Illegal(text) => ("illegal address", text, ILLEGAL_ADDRESS),
            Fault::Misaligned(text) => ("misaligned address", text, MISALIGNED_ADDRESS),
        };
        report(kind, &format!("kernel {}: {text}", kernel.name));
        return Err(code);
    }
    for touched in reach.touched {
        for (bits, writes) in [(&touched.read, false), (&touched.written, true)] {
            ordered(memory::note(touched.region.start, stamp, &ranges(bits, touched.region.start), writes))?;
        }
    }
    Ok(())
}

/// The bytes of a region that a kernel has touched, a bit for each byte.
struct Touched {
    region: MemoryRegion,
    read: Vec<u64>,
    written: Vec<u64>,
}

/// The memory that a device reaches.
struct ReachedMemory {
    device: usize,
    touched: Vec<Touched>,
    /// The region that each instruction used last.
    last: Vec<usize>,
}

impl ReachedMemory {
    fn index_of(&mut self, address: u64, len: usize) -> Result<usize, Fault> {
        let end = address + len as u64;
        let holds = |touched: &Touched| touched.region.start <= address && end <= touched.region.end;
        if let Some(index) = self.touched.iter().position(holds) {
            return Ok(index);
        }
        let region = memory::find(address, len).map_err(Fault::Illegal)?;
        if let MemoryHome::Device(other) = region.home
            && other != self.device
        {
            let peers = machine::known(self.device).peers.lock();
            if !peers.contains(&other) {
                let text = format!("memory of GPU {other}, which GPU {} was not given access to", self.device);
                return Err(Fault::Illegal(text));
            }
        }
        self.touched.push(Touched { region, read: Vec::new(), written: Vec::new() });
        Ok(self.touched.len() - 1)
    }
}

impl KernelMemory for ReachedMemory {
    fn reach(&mut self, site: usize, address: u64, len: usize, writes: bool) -> Result<*mut u8, Fault> {
        if self.last.len() <= site {
            self.last.resize(site + 1, 0);
        }
        let holds = |touched: &Touched| touched.region.start <= address && address + len as u64 <= touched.region.end;
        let index = self.last[site];
        let index = if self.touched.get(index).is_some_and(holds) { index } else { self.index_of(address, len)? };
        self.last[site] = index;
        let touched = &mut self.touched[index];
        let (start, end) = (touched.region.start, touched.region.end);
        let bits = if writes { &mut touched.written } else { &mut touched.read };
        if bits.is_empty() {
            *bits = vec![0; ((end - start) as usize).div_ceil(64)];
        }
        // Accesses are aligned, as regions are, so that one is within a word.
        let byte = address - start;
        bits[(byte / 64) as usize] |= ((1u64 << len) - 1) << (byte % 64);
        Ok(touched.region.inner(address))
    }
}

/// The runs of ones, from `start` on.
fn ranges(bits: &[u64], start: u64) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for (index, word) in bits.iter().enumerate() {
        let (mut word, mut base) = (*word, start + index as u64 * 64);
        while word != 0 {
            let skip = word.trailing_zeros();
            let run = (word >> skip).trailing_ones();
            let from = base + u64::from(skip);
            let range = from..from + u64::from(run);
            match found.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => found.push(range),
            }
            let used = skip + run;
            base += u64::from(used);
            word = if used == 64 { 0 } else { word >> used };
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_ones_are_ranges_across_words() {
        assert_eq!(ranges(&[0, 0], 100), []);
        assert_eq!(ranges(&[u64::MAX, 1, 0b1101 << 60], 0), [0..65, 188..189, 190..192]);
    }
}
