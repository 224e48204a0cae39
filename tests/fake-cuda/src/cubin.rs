//! Cubins, a GPU's own code in ELF. This checks if the device would take one, and finds its kernels. They
//! cannot run here.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::slice;
use std::sync::Arc;

use crate::codes::{NO_BINARY_FOR_GPU, Outcome};
use crate::driver::CAPABILITY;
use crate::findings::report;
use crate::ptx::{Kernels, PtxKernel};

/// The length of ELF's header, in 64 bits.
const HEADER: usize = 64;

/// # Safety
/// There is a byte at `image` that is no part of ELF's magic number, or a whole header.
pub(crate) unsafe fn is_cubin(image: *const c_char) -> bool {
    // SAFETY: the next byte is read if those before are the magic number's.
    b"\x7fELF".iter().enumerate().all(|(index, byte)| unsafe { image.add(index).read() } as u8 == *byte)
}

/// # Safety
/// A whole cubin is at `image`.
pub(crate) unsafe fn kernels(image: *const c_char) -> Outcome<Kernels> {
    // SAFETY: as the caller promises.
    let header = unsafe { slice::from_raw_parts(image.cast::<u8>(), HEADER) };
    let number = |at: usize, len: usize| (0..len).rev().fold(0, |sum, byte| sum << 8 | usize::from(header[at + byte]));
    // The tables of segments and of sections: where each begins, how long its entries are, how many it has.
    let ends = [(32, 54, 56), (40, 58, 60)].map(|(at, each, count)| number(at, 8) + number(each, 2) * number(count, 2));
    let len = ends.into_iter().max().unwrap_or(HEADER);
    // Version 8 of the ABI moved the architecture within the flags.
    let architecture = c_int::from(header[if header[8] < 8 { 48 } else { 49 }]);
    let [major, minor] = CAPABILITY;
    if architecture / 10 != major || architecture % 10 > minor {
        report("wrong cubin", &format!("for sm_{architecture} on a device of {CAPABILITY:?}"));
        return Err(NO_BINARY_FOR_GPU);
    }
    // SAFETY: as long as its header says.
    let whole = unsafe { slice::from_raw_parts(image.cast::<u8>(), len) };
    let names = whole.split(|byte| *byte == 0).filter_map(|text| text.strip_prefix(b".text."));
    let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
    Ok(names.map(|name| (name.clone(), Arc::new(PtxKernel::named(name)))).collect())
}
