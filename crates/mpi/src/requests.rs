//! Requests that are under way, in the library's format, one after another in memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use crate::table::{Api, End};

/// Requests of one library.
#[derive(Debug)]
pub struct Requests {
    api: &'static Api,
    slots: Slots,
    indices: Vec<c_int>,
    statuses: Vec<u64>,
    ends: Vec<End>,
}

impl Requests {
    /// Returns an empty list, for calls of this library.
    pub fn of(api: &'static Api) -> Self {
        let slots = Slots { memory: Vec::new(), len: 0, bytes: api.request_bytes as usize };
        Requests { api, slots, indices: Vec::new(), statuses: Vec::new(), ends: Vec::new() }
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.slots.len
    }

    /// Returns true if there are no requests.
    pub fn is_empty(&self) -> bool {
        self.slots.len == 0
    }

    /// Adds the request that `call` writes to the given address. Returns the code of `call`. If it is not 0,
    /// nothing is added.
    pub fn post(&mut self, call: impl FnOnce(*mut c_void) -> c_int) -> c_int {
        let code = call(self.slots.next());
        self.slots.len += usize::from(code == 0);
        code
    }

    /// Removes a request, and puts the last one in its place.
    pub fn swap_remove(&mut self, at: usize) {
        self.slots.swap_remove(at);
    }

    /// Removes a request, and keeps the order of the others.
    pub fn remove(&mut self, at: usize) {
        self.slots.remove(at);
    }

    /// Calls `MPI_Testsome`. Returns its code and the number of requests that are done. Their
    /// [`end`](Requests::end)s can be read until the next call, and they stay in the list until they are
    /// removed.
    ///
    /// # Safety
    /// All are active requests of this library, and this thread may call it.
    pub unsafe fn test_some(&mut self) -> (c_int, usize) {
        let count = self.slots.len;
        self.indices.resize(count, 0);
        self.ends.resize(count, End::default());
        self.make_room(count);
        let mut finished: c_int = 0;
        let requests = self.slots.memory.as_mut_ptr().cast();
        let (indices, statuses) = (self.indices.as_mut_ptr(), self.statuses.as_mut_ptr().cast());
        let ends = self.ends.as_mut_ptr();
        // SAFETY: all lists have room for `count` elements; the caller vouches for the requests.
        let code = unsafe { (self.api.testsome)(count as c_int, requests, indices, statuses, &raw mut finished, ends) };
        (code, usize::try_from(finished).unwrap_or(0).min(count))
    }

    /// Returns the end of the request that was reported as done at this index.
    pub fn end(&self, at: usize) -> End {
        self.ends[at]
    }

    /// Calls `MPI_Request_get_status` without the status. Returns its code, and true if the request is done.
    ///
    /// # Safety
    /// As of [`Requests::test_some`].
    pub unsafe fn is_done(&mut self, at: usize) -> (c_int, bool) {
        let mut flag: c_int = 0;
        // SAFETY: the slot holds a request; the caller vouches for it.
        let code = unsafe { (self.api.is_done)(self.slots.slot(at).cast(), &raw mut flag) };
        (code, flag != 0)
    }

    /// `MPI_Wait`: its code. The request stays until it is removed; its status is the first.
    ///
    /// # Safety
    /// As of [`Requests::test_some`].
    pub unsafe fn wait(&mut self, at: usize) -> c_int {
        self.make_room(1);
        // SAFETY: the slot holds a request, and there is room for its status; the caller vouches for it.
        unsafe { (self.api.wait)(self.slots.slot(at).cast(), self.statuses.as_mut_ptr().cast()) }
    }

    /// `MPI_Get_count`: the bytes of a message that was received, by the status at this place of the last
    /// call of [`Requests::test_some`] or [`Requests::wait`].
    ///
    /// # Safety
    /// That call has reported a receive there.
    pub unsafe fn received(&self, at: usize) -> (c_int, c_int) {
        let mut bytes: c_int = -1;
        // SAFETY: the caller vouches for the status.
        let code = unsafe { (self.api.get_count)(self.statuses.as_ptr().cast(), at as c_int, &raw mut bytes) };
        (code, bytes)
    }

    fn make_room(&mut self, statuses: usize) {
        self.statuses.resize((statuses * self.api.status_bytes as usize).div_ceil(size_of::<u64>()), 0);
    }
}

/// Memory for values of one size, which only the library knows. Aligned for every library.
#[derive(Debug)]
struct Slots {
    memory: Vec<u64>,
    len: usize,
    /// The size of a value.
    bytes: usize,
}

impl Slots {
    /// The place behind the last value, where another may be written.
    fn next(&mut self) -> *mut c_void {
        self.memory.resize(((self.len + 1) * self.bytes).div_ceil(size_of::<u64>()), 0);
        let from = self.len * self.bytes;
        self.values()[from..].as_mut_ptr().cast()
    }

    /// The memory as bytes.
    fn values(&mut self) -> &mut [u8] {
        // SAFETY: every byte of the numbers is one, and they are borrowed as long.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), self.memory.len() * size_of::<u64>()) }
    }

    /// The place of a value that is there.
    fn slot(&mut self, at: usize) -> *mut u8 {
        assert!(at < self.len, "request {at} of {}", self.len);
        let (from, bytes) = (at * self.bytes, self.bytes);
        self.values()[from..from + bytes].as_mut_ptr()
    }

    fn swap_remove(&mut self, at: usize) {
        assert!(at < self.len, "request {at} of {}", self.len);
        let (last, bytes) = ((self.len - 1) * self.bytes, self.bytes);
        self.values().copy_within(last..last + bytes, at * bytes);
        self.len -= 1;
    }

    fn remove(&mut self, at: usize) {
        assert!(at < self.len, "request {at} of {}", self.len);
        let (end, bytes) = (self.len * self.bytes, self.bytes);
        self.values().copy_within((at + 1) * bytes..end, at * bytes);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handles as numbers (MPICH) and as pointers (Open MPI).
    const SIZES: [usize; 2] = [4, 8];

    fn with(values: &[u8], bytes: usize) -> Slots {
        let mut slots = Slots { memory: Vec::new(), len: 0, bytes };
        for value in values {
            let place = slots.next().cast::<u8>();
            // SAFETY: the place has room for a value of this size.
            unsafe { place.write_bytes(*value, bytes) };
            slots.len += 1;
        }
        slots
    }

    fn values(slots: &mut Slots) -> Vec<u8> {
        let (len, bytes) = (slots.len, slots.bytes);
        slots.values()[..len * bytes]
            .chunks(bytes)
            .map(|value| {
                assert!(value.iter().all(|byte| *byte == value[0]), "{value:?} is no whole value");
                value[0]
            })
            .collect()
    }

    #[test]
    fn a_value_that_is_removed_leaves_the_others_whole() {
        for bytes in SIZES {
            for at in 0..5 {
                let (mut slots, mut expected) = (with(&[1, 2, 3, 4, 5], bytes), vec![1, 2, 3, 4, 5]);
                slots.remove(at);
                expected.remove(at);
                assert_eq!(values(&mut slots), expected, "{bytes} bytes, {at}");
                let (mut slots, mut expected) = (with(&[1, 2, 3, 4, 5], bytes), vec![1, 2, 3, 4, 5]);
                slots.swap_remove(at);
                expected.swap_remove(at);
                assert_eq!(values(&mut slots), expected, "{bytes} bytes, {at}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "request 2 of 2")]
    fn a_value_that_is_not_there_is_no_place_of_memory() {
        with(&[1, 2], 4).slot(2);
    }
}
