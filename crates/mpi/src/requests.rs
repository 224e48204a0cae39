//! Requests that are under way, as the library has them: one after another in memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use crate::table::{Api, End};

/// Requests of one library.
#[derive(Debug)]
pub struct Requests {
    api: &'static Api,
    /// Their memory, aligned for every library.
    memory: Vec<u64>,
    len: usize,
    indices: Vec<c_int>,
    statuses: Vec<u64>,
    ends: Vec<End>,
}

impl Requests {
    /// None, for calls of this library.
    pub fn of(api: &'static Api) -> Self {
        Requests { api, memory: Vec::new(), len: 0, indices: Vec::new(), statuses: Vec::new(), ends: Vec::new() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn bytes(&self) -> usize {
        self.api.request_bytes as usize
    }

    /// The place of the request with this index, or of the one that comes after the last.
    fn place(&mut self, at: usize) -> *mut c_void {
        debug_assert!(at <= self.len, "request {at} of {}", self.len);
        // SAFETY: `post` has made room for as many requests and one more.
        unsafe { self.memory.as_mut_ptr().cast::<u8>().add(at * self.bytes()).cast() }
    }

    /// Adds the request that `call` writes to the place it is given. Returns its code; nothing is added unless that is 0.
    pub fn post(&mut self, call: impl FnOnce(*mut c_void) -> c_int) -> c_int {
        self.memory.resize(((self.len + 1) * self.bytes()).div_ceil(size_of::<u64>()), 0);
        let code = call(self.place(self.len));
        self.len += usize::from(code == 0);
        code
    }

    /// Removes one, and puts the last in its place.
    pub fn swap_remove(&mut self, at: usize) {
        assert!(at < self.len, "request {at} of {}", self.len);
        self.len -= 1;
        let (to, from, bytes) = (self.place(at), self.place(self.len), self.bytes());
        // SAFETY: both are requests of this memory, whole ones, and may be the same.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
    }

    /// Removes one, and keeps the order of the others.
    pub fn remove(&mut self, at: usize) {
        assert!(at < self.len, "request {at} of {}", self.len);
        self.len -= 1;
        let (to, from, bytes) = (self.place(at), self.place(at + 1), (self.len - at) * self.bytes());
        // SAFETY: both are within this memory, and so are the requests behind them.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
    }

    /// `MPI_Testsome`: its code, and how many are done, whose [`end`](Requests::end)s are known until the next call. They
    /// stay until they are removed.
    ///
    /// # Safety
    /// All are active requests of this library, on a thread that may call it.
    pub unsafe fn test_some(&mut self) -> (c_int, usize) {
        let count = self.len;
        self.indices.resize(count, 0);
        self.ends.resize(count, End::default());
        self.statuses.resize((count * self.api.status_bytes as usize).div_ceil(size_of::<u64>()), 0);
        let mut finished: c_int = 0;
        let requests = self.place(0);
        let (indices, statuses) = (self.indices.as_mut_ptr(), self.statuses.as_mut_ptr().cast());
        let ends = self.ends.as_mut_ptr();
        // SAFETY: all lists have room for `count` elements; the caller vouches for the requests.
        let code = unsafe { (self.api.testsome)(count as c_int, requests, indices, statuses, &raw mut finished, ends) };
        (code, usize::try_from(finished).unwrap_or(0).min(count))
    }

    /// The end of the request that was reported as done at this place.
    pub fn end(&self, at: usize) -> End {
        self.ends[at]
    }

    /// `MPI_Request_get_status` without the status: its code, and whether the request is done.
    ///
    /// # Safety
    /// As of [`Requests::test_some`].
    pub unsafe fn is_done(&mut self, at: usize) -> (c_int, bool) {
        assert!(at < self.len, "request {at} of {}", self.len);
        let mut flag: c_int = 0;
        // SAFETY: the place holds a request; the caller vouches for it.
        let code = unsafe { (self.api.is_done)(self.place(at), &raw mut flag) };
        (code, flag != 0)
    }

    /// `MPI_Wait`. The request stays until it is removed.
    ///
    /// # Safety
    /// As of [`Requests::test_some`].
    pub unsafe fn wait(&mut self, at: usize) -> (c_int, End) {
        assert!(at < self.len, "request {at} of {}", self.len);
        let mut end = End::default();
        // SAFETY: the place holds a request; the caller vouches for it.
        let code = unsafe { (self.api.wait)(self.place(at), &raw mut end) };
        (code, end)
    }
}
