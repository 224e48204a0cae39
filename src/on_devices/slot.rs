//! One key on the devices of this process: the parts of its value, of a sum under way, and of the optimizer's
//! state.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use ringpull_base::{Buffer, Error, Result, TensorMut, waits};
use ringpull_device::{Devices, Layout, Memory, Operation, Slice, SumScratch, Work};
use ringpull_kernels::optim::{Optimizer, State};

use crate::Entry;

/// A key and its memory on the devices.
pub(super) struct DeviceSlot {
    pub(super) entry: Entry,
    pub(super) layout: Layout,
    content: Mutex<SlotMemory>,
    progress: Mutex<SlotProgress>,
    changed: Condvar,
}

/// The memory of a key, in the order of the lanes.
pub(super) struct SlotMemory {
    /// The value, with a part on each device.
    pub(super) value: Vec<Slice>,
    /// The sum of the last push, or a value that it replaced.
    pub(super) sum: Vec<Slice>,
    pub(super) scratch: SumScratch,
    /// The residuals of gradients encoded on the devices.
    pub(super) residual: Option<Vec<Slice>>,
    kept: Option<DeviceState>,
}

/// An optimizer's state for the key, and the optimizer that last wrote it.
struct DeviceState {
    optimizer: Arc<Optimizer>,
    updates: u64,
    slots: Vec<Vec<Slice>>,
}

#[derive(Default)]
struct SlotProgress {
    /// The number of operations called, and of those that are done.
    called: u64,
    done: u64,
    fault: Option<Error>,
}

impl DeviceSlot {
    pub(super) fn new(entry: &Entry, devices: &Devices) -> Result<Self> {
        let layout = Layout::new(entry.len(), entry.dtype.size_bytes(), devices.count());
        let (value, scratch) = (devices.parts(&layout)?, SumScratch::default());
        let content = SlotMemory { value, sum: Vec::new(), scratch, residual: None, kept: None };
        Ok(DeviceSlot {
            entry: entry.clone(),
            layout,
            content: Mutex::new(content),
            progress: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub(super) fn content(&self) -> MutexGuard<'_, SlotMemory> {
        self.content.lock()
    }

    pub(super) fn call(&self) {
        self.progress.lock().called += 1;
    }

    /// Undoes the last `call`, because its operation cannot be done.
    pub(super) fn cancel(&self) {
        self.progress.lock().called -= 1;
    }

    /// Waits until everything called so far has been queued on the devices.
    pub(super) fn settled(&self) -> Result<()> {
        let mut progress = self.progress.lock();
        let called = progress.called;
        loop {
            match &progress.fault {
                Some(fault) => return Err(fault.clone()),
                None if progress.done >= called => return Ok(()),
                None => {
                    let _wait = waits::wait();
                    self.changed.wait(&mut progress);
                }
            }
        }
    }

    pub(super) fn settle(&self) {
        self.progress.lock().done += 1;
        self.changed.notify_all();
    }

    pub(super) fn fail(&self, fault: &Error) {
        self.progress.lock().fault.get_or_insert_with(|| fault.clone());
        self.changed.notify_all();
    }

    /// Returns the whole value in host memory. Blocks.
    pub(super) fn fetch(&self, devices: &Devices, limit: Duration) -> Result<Buffer> {
        devices.fetch(&self.layout, &self.content().value, limit)
    }

    /// Replaces the value by `bytes`. Blocks.
    pub(super) fn put(&self, devices: &Devices, bytes: &[u8], limit: Duration) -> Result<()> {
        let content = self.content();
        devices.join()?;
        devices.scatter(&self.layout, bytes, &content.value, limit)
    }

    /// Writes the value into `outs`. Waits only for outputs in host memory.
    pub(super) fn give(&self, devices: &Devices, outs: Vec<TensorMut>, limit: Duration) -> Result<()> {
        let outputs = Outputs::of(devices, outs, &self.layout)?;
        let content = self.content();
        devices.join()?;
        outputs.gather(devices, &self.entry, &self.layout, &content.value)?;
        drop(content);
        outputs.finish(devices, limit)
    }

    /// Returns the optimizer's state in host memory, if `optimizer` could continue with it. Blocks.
    pub(super) fn state(&self, optimizer: &Optimizer, devices: &Devices, limit: Duration) -> Result<Option<State>> {
        self.state_of(&self.content(), optimizer, devices, limit)
    }

    /// Returns the state as [`state`](Self::state) does, for a caller that has locked the content.
    pub(super) fn state_of(
        &self,
        content: &SlotMemory,
        optimizer: &Optimizer,
        devices: &Devices,
        limit: Duration,
    ) -> Result<Option<State>> {
        match &content.kept {
            Some(kept) if optimizer.keeps_states_of(&kept.optimizer) => {
                let layout = self.layout.sized(self.real_bytes());
                let fetched = kept.slots.iter().map(|parts| devices.fetch(&layout, parts, limit));
                let slots = fetched.map(|slot| slot.map(|slot| slot.bytes().to_vec())).collect::<Result<Vec<_>>>()?;
                Ok(Some(State { updates: kept.updates, slots }))
            }
            _ => Ok(None),
        }
    }

    /// Starts the optimizer's state from zero, or from loaded states, and drops the residuals. To be called
    /// when the devices are idle.
    pub(super) fn forget_state(&self) {
        self.forget_residual();
        self.content().kept = None;
    }

    /// Drops the residuals of compressed gradients. To be called when the devices are idle.
    pub(super) fn forget_residual(&self) {
        self.content().residual = None;
    }

    /// Copies a state from host memory to the devices. Blocks.
    pub(super) fn set_state(
        &self,
        content: &mut SlotMemory,
        optimizer: &Arc<Optimizer>,
        state: &State,
        devices: &Devices,
        limit: Duration,
    ) -> Result<()> {
        let layout = self.layout.sized(self.real_bytes());
        let count = optimizer.slots(self.entry.dtype);
        if state.slots.len() != count || state.slots.iter().any(|slot| slot.len() != layout.len_bytes()) {
            let lengths: Vec<usize> = state.slots.iter().map(Vec::len).collect();
            let what = format!(
                "an optimizer state of key {} with slots of {lengths:?} bytes; expected {count} of {} bytes",
                self.entry.key,
                layout.len_bytes()
            );
            return Err(Error::argument(what, "load states that were saved for these keys with this optimizer"));
        }
        let slots = state.slots.iter().map(|bytes| {
            let parts = devices.parts(&layout)?;
            devices.scatter(&layout, bytes, &parts, limit).map(|()| parts)
        });
        let slots = slots.collect::<Result<Vec<_>>>()?;
        content.kept = Some(DeviceState { optimizer: Arc::clone(optimizer), updates: state.updates, slots });
        Ok(())
    }

    /// Queues one step of `optimizer` with the sum on every device.
    pub(super) fn optimize(
        &self,
        content: &mut SlotMemory,
        optimizer: &Arc<Optimizer>,
        loaded: Option<State>,
        devices: &Devices,
        limit: Duration,
    ) -> Result<()> {
        if let Some(state) = loaded.filter(|state| state.updates > 0) {
            self.set_state(content, optimizer, &state, devices, limit)?;
        }
        if !content.kept.as_ref().is_some_and(|kept| optimizer.keeps_states_of(&kept.optimizer)) {
            content.kept = Some(self.fresh(optimizer, devices)?);
        }
        let SlotMemory { value, sum, kept: Some(kept), .. } = content else { return Ok(()) };
        kept.optimizer = Arc::clone(optimizer);
        let dtype = self.entry.dtype;
        for device in 0..devices.count() {
            let written: Vec<Slice> =
                std::iter::once(&value[device]).chain(kept.slots.iter().map(|slot| &slot[device])).cloned().collect();
            let reads = std::iter::once(sum[device].clone()).chain(written.iter().cloned()).collect();
            let operation = Operation::Update { optimizer: Arc::clone(optimizer), dtype, updates: kept.updates };
            devices.platform().enqueue(devices.lane(device), &Work { operation, reads, writes: written })?;
        }
        kept.updates = kept.updates.saturating_add(1);
        Ok(())
    }

    fn fresh(&self, optimizer: &Arc<Optimizer>, devices: &Devices) -> Result<DeviceState> {
        let layout = self.layout.sized(self.real_bytes());
        let slot = |_| {
            let parts = devices.parts(&layout)?;
            for (device, part) in parts.iter().enumerate() {
                devices.platform().enqueue(devices.lane(device), &Work::zero(part.clone()))?;
            }
            Ok(parts)
        };
        let slots = (0..optimizer.slots(self.entry.dtype)).map(slot).collect::<Result<Vec<_>>>()?;
        Ok(DeviceState { optimizer: Arc::clone(optimizer), updates: 0, slots })
    }

    fn real_bytes(&self) -> usize {
        if self.entry.dtype == ringpull_base::DType::F64 { 8 } else { 4 }
    }
}

/// Outputs with the memory into which devices write them. It is the output's own memory, or pinned memory
/// from which the host copies.
pub(super) struct Outputs {
    guards: Vec<TensorMut>,
    targets: Vec<Slice>,
}

impl Outputs {
    /// Takes `outs`. The lanes wait for the streams of the outputs on devices.
    pub(super) fn of(devices: &Devices, outs: Vec<TensorMut>, layout: &Layout) -> Result<Self> {
        let target = |out: &TensorMut| match out.remote() {
            None => {
                Ok(Slice::all(&Memory::pinned(devices.platform(), layout.len_bytes())?).part(0..layout.len_bytes()))
            }
            remote => {
                let array = devices.array(remote)?;
                devices.lane(array.device()).follow(array.stream())?;
                Ok(array.slice().clone())
            }
        };
        let targets = outs.iter().map(target).collect::<Result<Vec<_>>>()?;
        Ok(Outputs { guards: outs, targets })
    }

    /// The outputs themselves.
    pub(super) fn guards(&self) -> &[TensorMut] {
        &self.guards
    }

    /// Queues the gathering of `parts` into the outputs. The outputs' streams wait for it. The lanes have
    /// joined.
    pub(super) fn gather(&self, devices: &Devices, entry: &Entry, layout: &Layout, parts: &[Slice]) -> Result<()> {
        devices.gather_parts(entry.dtype, layout, parts, &self.targets)?;
        self.guards.iter().filter(|out| out.remote().is_some()).try_for_each(|out| {
            let array = devices.array(out.remote())?;
            array.stream().follow(devices.lane(array.device()))
        })
    }

    /// Copies the outputs in host memory, and releases all outputs.
    pub(super) fn finish(self, devices: &Devices, limit: Duration) -> Result<()> {
        let copied = if self.guards.iter().all(|out| out.remote().is_some()) { Ok(()) } else { devices.drain(limit) };
        let outcome = copied.and_then(|()| {
            let bytes = self.targets.iter().map(|target| match target.device() {
                None => target.host_bytes().map(|bytes| Some(Buffer::copy_of(&bytes))),
                Some(_) => Ok(None),
            });
            bytes.collect::<Result<Vec<_>>>()
        });
        match outcome {
            Ok(copies) => {
                for (mut out, bytes) in self.guards.into_iter().zip(copies) {
                    bytes.into_iter().for_each(|bytes| out.copy_from(bytes.bytes()));
                }
                Ok(())
            }
            Err(fault) => {
                self.fail(&fault);
                Err(fault)
            }
        }
    }

    /// Fails the outputs: readers get `fault`.
    pub(super) fn fail(self, fault: &Error) {
        self.guards.into_iter().for_each(|out| out.abandon(fault.clone()));
    }
}
