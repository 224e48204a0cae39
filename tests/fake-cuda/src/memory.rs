//! Memory of devices and pinned memory of the host.
//!
//! A device's memory is one file without a name that is mapped twice. Programs get addresses of the first
//! mapping, which nobody may touch. The fake driver works on the second. Addresses of freed memory are not
//! used again until all others have been used. All bits of fresh memory are ones, which is a NaN in every
//! float type.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::codes::{ALREADY_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY, Outcome};
use crate::order::{self, Done, WorkStamp};
use crate::settings::SETTINGS;

/// The divisor of all addresses, and the least distance between two regions.
const ALIGNMENT: u64 = 256;
/// The number of times that a device's addresses exceed its memory.
const TURNS: usize = 4;
const FRESH: u8 = 0xff;

/// The place of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryHome {
    Device(usize),
    /// Pinned memory of the host, with the device that was current at its allocation.
    Host(usize),
}

/// A region as the fake driver sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryRegion {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) home: MemoryHome,
    /// The address of the first byte for the fake driver.
    inner: usize,
}

impl MemoryRegion {
    /// Returns the double's own address for an address within the region.
    pub(crate) fn inner(&self, address: u64) -> *mut u8 {
        (self.inner + (address - self.start) as usize) as *mut u8
    }
}

struct Allocation {
    region: MemoryRegion,
    is_free: bool,
    /// True if the memory is the program's own, and was only registered.
    is_registered: bool,
    history: Vec<Done>,
}

#[derive(Default)]
struct AllocationTable {
    entries: BTreeMap<u64, Allocation>,
    devices: Vec<Mapping>,
}

/// The memory of one device.
struct Mapping {
    outer: u64,
    inner: usize,
    span: u64,
    next: u64,
    used: usize,
}

static TABLE: Mutex<AllocationTable> = Mutex::new(AllocationTable { entries: BTreeMap::new(), devices: Vec::new() });

/// The addresses that programs get, for the handler of memory faults: start and length for each device.
static OUTER: [[AtomicU64; 2]; 8] = [const { [AtomicU64::new(0), AtomicU64::new(0)] }; 8];
/// True if the host may touch them, for the same handler.
static HOST_REACHES: AtomicBool = AtomicBool::new(false);
/// Collectives with other processes that are under way on each device.
static UNDER_WAY: Mutex<[u32; 8]> = Mutex::new([0; 8]);

/// Maps the memory of devices of these sizes.
pub(crate) fn start(sizes: &[usize]) {
    let mut table = TABLE.lock();
    for (device, len) in sizes.iter().enumerate() {
        let span = len * TURNS;
        // SAFETY: new mappings at places that the kernel chooses, of a file that is as long as they are.
        let (outer, inner) = unsafe {
            let file = libc::memfd_create(c"fake-cuda".as_ptr(), libc::MFD_CLOEXEC);
            assert!(file >= 0 && libc::ftruncate(file, span as libc::off_t) == 0, "fake-cuda: no memory for a device");
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let map = |protection| libc::mmap(ptr::null_mut(), span, protection, libc::MAP_SHARED, file, 0);
            let mapped = (map(if SETTINGS.host_reaches { both } else { libc::PROT_NONE }), map(both));
            assert!(mapped.0 != libc::MAP_FAILED && mapped.1 != libc::MAP_FAILED, "fake-cuda: no addresses");
            libc::close(file);
            mapped
        };
        let (outer, span) = (outer as u64, span as u64);
        OUTER[device][0].store(outer, Ordering::Release);
        OUTER[device][1].store(span, Ordering::Release);
        table.devices.push(Mapping { outer, inner: inner as usize, span, next: 0, used: 0 });
    }
    HOST_REACHES.store(SETTINGS.host_reaches, Ordering::Release);
    catch_faults();
}

/// A collective with other processes begins on a device. Until it has ended the host may not touch the
/// device's memory, even if it otherwise may. An MPI would touch it, and the two libraries could then wait
/// for each other for ever.
pub(crate) fn begin_joined(device: usize) {
    let mut under_way = UNDER_WAY.lock();
    under_way[device] += 1;
    if under_way[device] == 1 {
        protect(device, libc::PROT_NONE);
    }
}

/// It has ended.
pub(crate) fn end_joined(device: usize) {
    let mut under_way = UNDER_WAY.lock();
    under_way[device] -= 1;
    if under_way[device] == 0 {
        protect(device, libc::PROT_READ | libc::PROT_WRITE);
    }
}

fn protect(device: usize, protection: i32) {
    if SETTINGS.host_reaches {
        let [start, len] = OUTER[device].each_ref().map(|bound| bound.load(Ordering::Acquire));
        // SAFETY: the mapping is ours, and the double does not work on it.
        let code = unsafe { libc::mprotect(start as *mut libc::c_void, len as usize, protection) };
        assert_eq!(code, 0, "fake-cuda: mprotect");
    }
}

/// The handler of faults of memory access before ours.
static BEFORE: AtomicU64 = AtomicU64::new(0);

fn catch_faults() {
    // SAFETY: the handler calls nothing but what a handler may; the old action is kept for ever.
    unsafe {
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before);
        BEFORE.store(Box::into_raw(Box::new(before)) as u64, Ordering::Release);
    }
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `info`; only functions that a handler may call are called.
    unsafe {
        let address = (*info).si_addr() as u64;
        for (device, bounds) in OUTER.iter().enumerate() {
            let [start, len] = bounds.each_ref().map(|bound| bound.load(Ordering::Acquire));
            if address.wrapping_sub(start) < len {
                let mut text = *b"fake-cuda: the host touched memory of GPU 0 at 0x0000000000000000 ";
                let digits = text.iter().position(|byte| *byte == b'x').unwrap_or(0) + 1;
                let gpu = b"fake-cuda: the host touched memory of GPU ".len();
                text[gpu] = b'0' + device as u8;
                for (place, digit) in text[digits..digits + 16].iter_mut().enumerate() {
                    *digit = b"0123456789abcdef"[(address >> (60 - 4 * place) & 15) as usize];
                }
                let why: &[u8] = if HOST_REACHES.load(Ordering::Acquire) {
                    b"while NCCL sums with other processes\n"
                } else {
                    b"without a copy\n"
                };
                libc::write(2, text.as_ptr().cast(), text.len());
                libc::write(2, why.as_ptr().cast(), why.len());
                libc::abort();
            }
        }
        let before = BEFORE.load(Ordering::Acquire) as *const libc::sigaction;
        let handler = (*before).sa_sigaction;
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        } else {
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(handler);
            handler(signal, info, context);
        }
    }
}

/// Memory of a device.
pub(crate) fn allocate(device: usize, len: usize) -> Outcome<u64> {
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    let capacity = SETTINGS.devices[SETTINGS.visible[device]];
    let table = &mut *TABLE.lock();
    let Mapping { outer, inner, span, next, used } = table.devices[device];
    if used + len > capacity {
        return Err(OUT_OF_MEMORY);
    }
    let need = (len as u64 + 1).next_multiple_of(ALIGNMENT) + ALIGNMENT;
    let (mut offset, mut is_second_turn) = (next, false);
    let start = loop {
        if offset + need > span {
            if std::mem::replace(&mut is_second_turn, true) {
                return Err(OUT_OF_MEMORY);
            }
            offset = 0;
        }
        let wanted = outer + offset..outer + offset + need;
        let in_the_way = table.entries.range(..wanted.end).next_back().map(|(_, entry)| entry);
        match in_the_way.filter(|entry| !entry.is_free && entry.region.end + ALIGNMENT > wanted.start) {
            Some(entry) => offset = (entry.region.end + ALIGNMENT - outer).next_multiple_of(ALIGNMENT),
            None if first_live_in(&table.entries, &wanted).is_none() => break wanted.start,
            None => {
                let end = first_live_in(&table.entries, &wanted).unwrap_or(wanted.end);
                offset = (end + ALIGNMENT - outer).next_multiple_of(ALIGNMENT);
            }
        }
    };
    let old: Vec<u64> = table.entries.range(start..start + need).map(|(start, _)| *start).collect();
    old.iter().for_each(|start| drop(table.entries.remove(start)));
    let region = MemoryRegion {
        start,
        end: start + len as u64,
        home: MemoryHome::Device(device),
        inner: inner + (start - outer) as usize,
    };
    // SAFETY: the memory is the device's, and nobody has it.
    unsafe { ptr::write_bytes(region.inner(start), FRESH, len) };
    table.entries.insert(start, Allocation { region, is_free: false, is_registered: false, history: Vec::new() });
    let mapping = &mut table.devices[device];
    mapping.used += len;
    mapping.next = start - outer + need;
    Ok(start)
}

fn first_live_in(entries: &BTreeMap<u64, Allocation>, wanted: &Range<u64>) -> Option<u64> {
    entries.range(wanted.clone()).find(|(_, entry)| !entry.is_free).map(|(_, entry)| entry.region.end)
}

/// Frees memory of a device.
pub(crate) fn free(address: u64) -> Result<(), String> {
    let table = &mut *TABLE.lock();
    let entry = table.entries.get_mut(&address).filter(|entry| matches!(entry.region.home, MemoryHome::Device(_)));
    let Some(entry) = entry.filter(|entry| !entry.is_free) else {
        return Err(describe(&table.entries, address, 1).err().unwrap_or_else(|| "the middle of a region".to_owned()));
    };
    (entry.is_free, entry.history) = (true, Vec::new());
    let MemoryRegion { start, end, home, .. } = entry.region;
    let (from, len) = (entry.region.inner(start), (end - start) as usize);
    // Whole pages are given back to the system.
    let skip = (from as usize).next_multiple_of(4096) - from as usize;
    if len > skip + 4096 {
        let pages = (len - skip) & !4095;
        // SAFETY: these pages are within the region, which nobody has any more.
        unsafe { libc::madvise(from.wrapping_add(skip).cast(), pages, libc::MADV_REMOVE) };
    }
    if let MemoryHome::Device(device) = home {
        table.devices[device].used -= len;
    }
    Ok(())
}

/// Pinned memory of the host, page-aligned.
pub(crate) fn pin(device: usize, len: usize) -> Outcome<u64> {
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a new mapping at a place that the kernel chooses.
    let start = unsafe {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let start = libc::mmap(ptr::null_mut(), len, both, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        ptr::write_bytes(start.cast::<u8>(), FRESH, len);
        start as u64
    };
    let region = MemoryRegion { start, end: start + len as u64, home: MemoryHome::Host(device), inner: start as usize };
    TABLE
        .lock()
        .entries
        .insert(start, Allocation { region, is_free: false, is_registered: false, history: Vec::new() });
    Ok(start)
}

/// Pins the program's own memory in place. Its pages must not be pinned already.
pub(crate) fn register(device: usize, start: u64, len: usize) -> Outcome<()> {
    if len == 0 || start == 0 {
        return Err(INVALID_VALUE);
    }
    let mut table = TABLE.lock();
    let pages = start & !4095..(start + len as u64).next_multiple_of(4096);
    let before = table.entries.range(..pages.end).next_back();
    if before.is_some_and(|(_, entry)| !entry.is_free && entry.region.end > pages.start) {
        return Err(ALREADY_REGISTERED);
    }
    let region = MemoryRegion { start, end: start + len as u64, home: MemoryHome::Host(device), inner: start as usize };
    table.entries.insert(start, Allocation { region, is_free: false, is_registered: true, history: Vec::new() });
    Ok(())
}

/// Gives registered memory back to the program.
pub(crate) fn unregister(address: u64) -> Result<(), String> {
    let mut table = TABLE.lock();
    if !table.entries.get(&address).is_some_and(|entry| entry.is_registered) {
        return Err(format!("{address:#x}, at which nothing was registered"));
    }
    table.entries.remove(&address);
    Ok(())
}

/// Frees pinned memory. Touching it is a fault of the kernel from then on.
pub(crate) fn unpin(address: u64) -> Result<(), String> {
    let mut table = TABLE.lock();
    let is_pinned =
        |entry: &Allocation| !entry.is_free && !entry.is_registered && matches!(entry.region.home, MemoryHome::Host(_));
    if !table.entries.get(&address).is_some_and(is_pinned) {
        let other = if table.entries.get(&address).is_some_and(|entry| entry.is_registered) {
            "memory that was only registered"
        } else {
            "memory of a device"
        };
        return Err(describe(&table.entries, address, 1).err().unwrap_or_else(|| other.to_owned()));
    }
    let region = table.entries.remove(&address).map(|entry| entry.region);
    if let Some(region) = region {
        // SAFETY: the mapping was made by `pin`, and is unmapped once.
        unsafe { libc::munmap(region.inner(address).cast(), (region.end - region.start) as usize) };
    }
    Ok(())
}

/// Returns the region of these bytes, or a text with the fault.
pub(crate) fn find(address: u64, len: usize) -> Result<MemoryRegion, String> {
    describe(&TABLE.lock().entries, address, len)
}

fn describe(entries: &BTreeMap<u64, Allocation>, address: u64, len: usize) -> Result<MemoryRegion, String> {
    let end = address + len as u64;
    let Some((_, Allocation { region, is_free, .. })) = entries.range(..=address).next_back() else {
        return Err(format!("{len} bytes at {address:#x}, which is no memory of a device"));
    };
    let size = region.end - region.start;
    let whose = match region.home {
        MemoryHome::Device(device) => format!("{size} bytes of GPU {device}"),
        MemoryHome::Host(_) => format!("{size} pinned bytes"),
    };
    if address >= region.end + ALIGNMENT {
        Err(format!("{len} bytes at {address:#x}, which is no memory of a device"))
    } else if *is_free {
        Err(format!("{len} bytes at byte {} of {whose} that were given back", address - region.start))
    } else if end > region.end {
        Err(format!("{len} bytes at byte {} of {whose}: {} too many", address - region.start, end - region.end))
    } else {
        Ok(*region)
    }
}

/// Records the accesses of `stamp`'s work to `bytes` of the region from `start` on. Returns a text if another
/// access is not ordered with it.
pub(crate) fn note(start: u64, stamp: &WorkStamp, bytes: &[Range<u64>], writes: bool) -> Option<String> {
    if bytes.is_empty() {
        return None;
    }
    let mut table = TABLE.lock();
    order::add(&mut table.entries.get_mut(&start)?.history, stamp, bytes, writes)
}

/// Returns the free bytes and all bytes of a device.
pub(crate) fn room(device: usize) -> (usize, usize) {
    let capacity = SETTINGS.devices[SETTINGS.visible[device]];
    (capacity - TABLE.lock().devices[device].used, capacity)
}

/// Describes the memory that was not freed.
pub(crate) fn left() -> Vec<String> {
    let table = TABLE.lock();
    let live = table.entries.values().filter(|entry| !entry.is_free);
    live.map(|entry| format!("{} bytes of {:?}", entry.region.end - entry.region.start, entry.region.home)).collect()
}
