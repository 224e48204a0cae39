//! The push of a dense gradient. It is summed over the devices of the process and over the ranks, applied,
//! and gathered into outputs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::progress::Launch;
use ringpull_base::{Error, Result, TensorMut};
use ringpull_device::{Devices, Event, Memory, Slice};

use super::slot::{DeviceSlot, Outputs, SlotMemory};
use super::{OnDevices, Step, detour, take_loaded};
use crate::compressed::Coding;
use crate::contribution::remotes;
use crate::on_devices::coded;
use crate::on_devices::routes::{self, Route};
use crate::on_devices::sum::Sum;
use crate::update::{Update, Updates};
use crate::{Contribution, SavedStates};

/// The job of one push.
pub(super) struct DevicePush {
    slot: Arc<DeviceSlot>,
    devices: Arc<Devices>,
    updates: Arc<Updates>,
    loaded: Arc<Mutex<SavedStates>>,
    route: Arc<Route>,
    update: Update,
    coding: Option<Coding>,
    values: Vec<Contribution>,
    outs: Vec<TensorMut>,
    /// The events of the values' streams at the push.
    ready: Vec<Event>,
    queued: Option<Outputs>,
    limit: Duration,
}

impl DevicePush {
    pub(super) fn new(
        store: &OnDevices,
        slot: &Arc<DeviceSlot>,
        values: Vec<Contribution>,
        outs: Vec<TensorMut>,
        (update, coding): (Update, Option<Coding>),
    ) -> Result<Self> {
        let arrays = remotes(&values, &outs).map(|remote| store.devices.array(Some(remote))?.stream().record());
        let ready = arrays.collect::<Result<Vec<_>>>()?;
        Ok(DevicePush {
            slot: Arc::clone(slot),
            devices: Arc::clone(&store.devices),
            updates: Arc::clone(&store.updates),
            loaded: Arc::clone(&store.loaded),
            route: Arc::clone(&store.route),
            update,
            coding,
            values,
            outs,
            ready,
            queued: None,
            limit: store.limit,
        })
    }

    /// Returns the values as devices can read them. Values in host memory are copied to pinned memory first.
    fn inputs(&self, outs: &[TensorMut]) -> Result<Vec<Slice>> {
        let input = |value: &Contribution| {
            if let Some(remote) = value.remote(outs) {
                return Ok(self.devices.array(Some(remote))?.slice().clone());
            }
            let bytes = value.bytes(outs);
            let staging = Slice::all(&Memory::pinned(self.devices.platform(), bytes.len())?);
            staging.host_bytes_mut()?.copy_from_slice(bytes);
            Ok(staging)
        };
        self.values.iter().map(input).collect()
    }

    /// Queues the work up to the sum of this process, which needs no other rank.
    fn sum(&self, content: &mut SlotMemory, inputs: &[Slice]) -> Result<()> {
        let (devices, slot) = (&self.devices, &self.slot);
        self.ready.iter().try_for_each(|event| devices.lane(event.device()).wait(event))?;
        if content.sum.is_empty() {
            content.sum = devices.parts(&slot.layout)?;
        }
        devices.join()?;
        devices.sum_parts(slot.entry.dtype, &slot.layout, inputs, &content.sum, &mut content.scratch)
    }

    fn apply(&self, content: &mut SlotMemory) -> Result<()> {
        match &self.update {
            Update::Overwrite => {
                std::mem::swap(&mut content.value, &mut content.sum);
                Ok(())
            }
            Update::Optimize(optimizer) => {
                let loaded = take_loaded(&self.loaded, &self.slot.entry.key, optimizer);
                self.slot.optimize(content, optimizer, loaded, &self.devices, self.limit)
            }
            Update::Call(_) | Update::Shard(_) => {
                let gradient = self.devices.fetch(&self.slot.layout, &content.sum, self.limit)?;
                detour::on_host(&self.slot, content, &self.devices, self.limit, |value| {
                    self.updates.apply(&self.update, &self.slot.entry, gradient.bytes(), value)
                })
            }
        }
    }
}

impl Step for DevicePush {
    fn is_coded(&self) -> bool {
        self.coding.is_some()
    }

    fn queue(&mut self, ranks: Option<(&mut Communicator, &Launch)>) -> Result<()> {
        let slot = Arc::clone(&self.slot);
        let inputs = self.inputs(&self.outs)?;
        let outputs = Outputs::of(&self.devices, std::mem::take(&mut self.outs), &slot.layout)?;
        // The outputs are stored first, so that `fail` has them if a call below fails.
        let outputs = self.queued.insert(outputs);
        let arrays: Vec<_> = self.values.iter().filter_map(|value| value.remote(outputs.guards())).cloned().collect();
        let mut content = slot.content();
        self.sum(&mut content, &inputs)?;
        if let Some((comm, launch)) = ranks {
            let SlotMemory { sum: parts, residual, .. } = &mut *content;
            let sum = Sum {
                devices: &self.devices,
                layout: &slot.layout,
                dtype: slot.entry.dtype,
                parts,
                stamp: launch.number,
                limit: self.limit,
                pool: &self.route.pool,
            };
            match &self.coding {
                None => routes::allreduce(comm, &self.route, &sum)?,
                Some(Coding { compression, feedback }) => {
                    let coding = coded::DeviceCoding { compression, feedback: &mut feedback.lock(), residual };
                    coded::allreduce(comm, &sum, coding)?;
                }
            }
        }
        self.apply(&mut content)?;
        self.devices.join()?;
        for remote in &arrays {
            let array = self.devices.array(Some(remote))?;
            array.stream().follow(self.devices.lane(array.device()))?;
        }
        let Some(outputs) = &self.queued else { return Ok(()) };
        outputs.gather(&self.devices, &slot.entry, &slot.layout, &content.value)?;
        drop(content);
        if inputs.iter().any(|input| input.device().is_none()) {
            // This also allows the pinned copies of values in host memory to be freed.
            self.devices.drain(self.limit)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        let outcome = match self.queued.take() {
            Some(outputs) => outputs.finish(&self.devices, self.limit),
            None => Ok(()),
        };
        // The caller may use the values from here on: later work on their streams runs after the work that
        // was queued here.
        self.values.clear();
        match &outcome {
            Ok(()) => self.slot.settle(),
            Err(fault) => self.slot.fail(fault),
        }
        outcome
    }

    fn fail(mut self, fault: &Error) {
        self.slot.fail(fault);
        // A device may still be reading the values.
        for value in self.values.drain(..) {
            if let Contribution::Held(held) = value {
                held.abandon();
            }
        }
        self.queued.take().into_iter().for_each(|outputs| outputs.fail(fault));
        self.outs.drain(..).for_each(|out| out.abandon(fault.clone()));
    }
}
