//! The devices that a store works on, their streams, and tensors in their memory.
//!
//! A store's own work runs on one stream of each device, the lane. Copies to and from the host that overlap
//! with it have separate streams. A tensor has a stream too, on which its content is ready. A store makes its
//! lane wait for this stream before it uses the tensor, and makes the stream wait for the lane afterwards. So
//! code that holds a tensor's guard may queue work on the tensor's stream without other synchronisation, and
//! never waits for the device.

use std::sync::Arc;
use std::time::Duration;

use ringpull_base::{Buffer, DType, Error, Remote, Result, Tensor};

use super::handle::{Event, JoinedDevices, Memory, Slice, Stream};
use super::layout::Layout;
use super::work::{Collective, Work};
use super::{GoOn, Platform, Simulated};

/// The default time limit of work on a device.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The elements of a tensor on a device, and the stream on which they are ready.
pub struct Array {
    slice: Slice,
    stream: Arc<Stream>,
}

impl Array {
    /// The device.
    pub fn device(&self) -> usize {
        self.stream.device()
    }

    /// The bytes of all elements, in C order.
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// The stream on which the elements are ready.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn shared_stream(&self) -> &Arc<Stream> {
        &self.stream
    }
}

/// Returns the array of a tensor, if it is on a device.
pub fn array_of(remote: Option<&Remote>) -> Option<&Array> {
    remote?.owner()
}

/// All devices of one platform, as a store uses them.
pub struct Devices {
    platform: Arc<dyn Platform>,
    pub(super) lanes: Vec<Arc<Stream>>,
    users: Vec<Arc<Stream>>,
    down: Vec<Arc<Stream>>,
    up: Vec<Arc<Stream>>,
    limit: Duration,
}

impl Devices {
    /// Returns the devices of `platform`. Copies by [`upload`](Self::upload) and similar functions are waited
    /// for at most `limit`.
    pub fn over(platform: Arc<dyn Platform>, limit: Duration) -> Result<Arc<Self>> {
        let streams = || (0..platform.count()).map(|device| Stream::on(&platform, device)).collect::<Result<Vec<_>>>();
        let (lanes, users, down, up) = (streams()?, streams()?, streams()?, streams()?);
        Ok(Arc::new(Devices { platform, lanes, users, down, up, limit }))
    }

    /// Returns `count` simulated devices.
    pub fn simulated(count: usize) -> Result<Arc<Self>> {
        Self::over(Simulated::new(count), LIMIT)
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// The number of devices.
    pub fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the platform of the devices.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// Returns the stream of a store's work on `device`.
    pub fn lane(&self, device: usize) -> &Arc<Stream> {
        &self.lanes[device]
    }

    /// The stream for copies from `device` to the host beside the lane.
    pub fn down(&self, device: usize) -> &Arc<Stream> {
        &self.down[device]
    }

    /// The stream for copies from the host to `device` beside the lane.
    pub fn up(&self, device: usize) -> &Arc<Stream> {
        &self.up[device]
    }

    /// A device's name, for messages.
    pub fn place(&self, device: usize) -> String {
        format!("{}:{device}", self.platform.name())
    }

    /// Returns a tensor over `slice`, ready on `stream`.
    pub fn tensor(&self, dtype: DType, shape: &[usize], slice: Slice, stream: Arc<Stream>) -> Tensor {
        let place = self.place(stream.device());
        Tensor::from_remote(dtype, shape, Remote::new(Arc::new(Array { slice, stream }), &place))
    }

    /// Returns a tensor of zeros on `device`. Does not wait for the device.
    pub fn zeros(&self, device: usize, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let len_bytes = dtype.len_bytes(shape)?;
        let stream = Arc::clone(self.user(device)?);
        let slice = Slice::all(&Memory::on(&self.platform, device, len_bytes)?);
        self.platform.enqueue(&stream, &Work::zero(slice.clone()))?;
        Ok(self.tensor(dtype, shape, slice, stream))
    }

    /// Copies a tensor from host memory to `device`. Blocks until the copy is done.
    pub fn upload(&self, device: usize, tensor: &Tensor) -> Result<Tensor> {
        let copy = self.zeros(device, tensor.dtype(), tensor.shape())?;
        self.overwrite(&copy, tensor)?;
        Ok(copy)
    }

    /// Copies `from`, in host memory, to `to`, on a device. Blocks until the copy is done. Returns an error
    /// if a store holds `to` for too long.
    pub fn overwrite(&self, to: &Tensor, from: &Tensor) -> Result<()> {
        let guard = to.write_anywhere_within(self.limit)?;
        let (array, from) = (self.array(guard.remote())?, from.read()?);
        if array.slice.len_bytes() != from.bytes().len() {
            return Err(Error::argument(
                format!("cannot copy {} bytes into a tensor of {} bytes", from.bytes().len(), array.slice.len_bytes()),
                "give tensors of one shape and dtype",
            ));
        }
        self.fill(array, from.bytes(), self.limit)
    }

    /// Copies `bytes`, which have the array's length, to `array`. Blocks until the copy is done.
    pub fn fill(&self, array: &Array, bytes: &[u8], limit: Duration) -> Result<()> {
        let staging = Slice::all(&Memory::pinned(&self.platform, bytes.len())?).part(0..bytes.len());
        staging.host_bytes_mut()?.copy_from_slice(bytes);
        self.platform.enqueue(&array.stream, &Work::copy(staging.clone(), array.slice.clone()))?;
        kept_until(staging, array.stream.record().and_then(|event| event.synchronize(limit)))
    }

    /// Copies a tensor from a device to host memory. Blocks until the copy is done.
    pub fn download(&self, tensor: &Tensor) -> Result<Tensor> {
        let guard = tensor.read_anywhere()?;
        let array = self.array(guard.remote())?;
        let staging = Slice::all(&Memory::pinned(&self.platform, array.slice.len_bytes())?);
        self.platform.enqueue(&array.stream, &Work::copy(array.slice.clone(), staging.clone()))?;
        kept_until(staging.clone(), array.stream.record().and_then(|event| event.synchronize(self.limit)))?;
        let buffer = Buffer::copy_of(&staging.host_bytes()?);
        Ok(Tensor::from_buffer(tensor.dtype(), tensor.shape(), buffer))
    }

    /// Returns the array of a tensor. Returns an error if it is on no device, or on another one than these.
    pub fn array<'a>(&self, remote: Option<&'a Remote>) -> Result<&'a Array> {
        let place = remote.map_or("host memory", Remote::place);
        array_of(remote).filter(|array| self.owns(array)).ok_or_else(|| {
            let known: Vec<String> = (0..self.count()).map(|device| self.place(device)).collect();
            Error::argument(
                format!("a tensor in {place}; expected one on {}", known.join(", ")),
                "make it with the `Devices` that the store was created on",
            )
        })
    }

    fn owns(&self, array: &Array) -> bool {
        let own: *const dyn Platform = &raw const *self.platform;
        std::ptr::addr_eq(own, array.slice.memory().platform_address())
    }

    pub(super) fn user(&self, device: usize) -> Result<&Arc<Stream>> {
        self.users.get(device).ok_or_else(|| {
            Error::argument(
                format!("there is no device {}", self.place(device)),
                format!("the devices are numbered from 0 to {}", self.count().saturating_sub(1)),
            )
        })
    }

    /// Puts collectives on the lanes, when it is this store's turn.
    pub fn collective(&self, calls: &[Collective]) -> Result<()> {
        let _turn = self.platform.turn();
        self.platform.collective(&self.lanes, calls)
    }

    /// Runs `work`, which may pass these devices' memory to collectives with other processes. It begins when
    /// the lanes are idle, and no other collective begins on these devices until it has ended.
    pub fn without_collectives<T>(&self, limit: Duration, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _turn = self.platform.turn();
        self.drain(limit)?;
        work()
    }

    /// Replaces `parts` by the sums over the ranks of `joined`, with the same bits on each. There is one part
    /// on each device, written on its lane. Nothing else that waits for a peer may run on these devices
    /// meanwhile, so the sum begins when the lanes are idle, within `limit`. It waits for the ranks while
    /// `go_on` allows it, for `patience` at most. Collective.
    pub fn sum_over_ranks(
        &self,
        joined: &JoinedDevices,
        (dtype, parts): (DType, &[Slice]),
        limit: Duration,
        (patience, go_on): (Duration, GoOn<'_>),
    ) -> Result<()> {
        self.without_collectives(limit, || {
            let queued = self.platform.sum_joined(joined.id(), &self.lanes, dtype, parts, go_on);
            queued.inspect_err(|_| self.platform.abort())?;
            let events = self.lanes.iter().map(|lane| lane.record()).collect::<Result<Vec<Event>>>();
            let events = events.inspect_err(|_| self.platform.abort())?;
            events.iter().try_for_each(|event| event.synchronize_while(patience, go_on))
        })
    }

    /// Waits until everything on the lanes is done. Returns the first error, if there was one.
    pub fn drain(&self, limit: Duration) -> Result<()> {
        let events = self.lanes.iter().map(|lane| lane.record()).collect::<Result<Vec<Event>>>()?;
        events.iter().try_for_each(|event| event.synchronize(limit))
    }

    /// Returns the bytes of `parts`, one on each device, in order. Blocks until the lanes have done the
    /// copies.
    pub fn fetch(&self, layout: &Layout, parts: &[Slice], limit: Duration) -> Result<Buffer> {
        let staging = Slice::all(&Memory::pinned(&self.platform, layout.len_bytes())?);
        let queue = |(device, part): (usize, &Slice)| {
            self.platform.enqueue(&self.lanes[device], &Work::copy(part.clone(), staging.part(layout.bytes(device))))
        };
        let copied = parts.iter().enumerate().try_for_each(queue).and_then(|()| self.drain(limit));
        kept_until(staging.clone(), copied)?;
        let buffer = Buffer::copy_of(&staging.host_bytes()?);
        Ok(buffer)
    }

    /// Copies `bytes` to `parts`, one on each device. Blocks until the copies are done.
    pub fn scatter(&self, layout: &Layout, bytes: &[u8], parts: &[Slice], limit: Duration) -> Result<()> {
        let staging = Slice::all(&Memory::pinned(&self.platform, layout.len_bytes())?);
        staging.host_bytes_mut()?.copy_from_slice(bytes);
        let queue = |(device, part): (usize, &Slice)| {
            self.platform.enqueue(&self.lanes[device], &Work::copy(staging.part(layout.bytes(device)), part.clone()))
        };
        let copied = parts.iter().enumerate().try_for_each(queue).and_then(|()| self.drain(limit));
        kept_until(staging, copied)
    }
}

/// Frees `staging` if the copies that use it are `done`. Otherwise a device may still use it, and it is kept
/// until the process ends.
fn kept_until(staging: Slice, done: Result<()>) -> Result<()> {
    if done.is_err() {
        std::mem::forget(staging);
    }
    done
}
