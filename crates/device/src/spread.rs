//! Tensors that are spread over the devices of a process: summing several tensors into one part on each
//! device, and gathering the parts into whole tensors.
//!
//! Device `d` owns part `d`. With four devices and tensors a, b, c, d, one on each:
//!
//! | | device 0 | device 1 | device 2 | device 3 |
//! | --- | --- | --- | --- | --- |
//! | before | a0 a1 a2 a3 | b0 b1 b2 b3 | c0 c1 c2 c3 | d0 d1 d2 d3 |
//! | `sum_parts` | sum 0 | sum 1 | sum 2 | sum 3 |
//! | `gather_parts` | sum 0 1 2 3 | sum 0 1 2 3 | sum 0 1 2 3 | sum 0 1 2 3 |
//!
//! One tensor on each device is what the collectives of the platform do. Any other number is summed by copies
//! and kernels: each device fetches its part of every tensor and adds them in the order of the list.
//! Collectives take equal parts. The last device's part also has the remainder, which is sent separately.

use std::sync::Arc;

use ringpull_base::{DType, Result};

use super::devices::Devices;
use super::handle::{Memory, Slice};
use super::layout::Layout;
use super::work::{Collective, CollectiveKind, Work};

/// The memory for data that other devices send to the device that adds it up. It is kept between sums.
#[derive(Default)]
pub struct SumScratch {
    arrived: Vec<Vec<Arc<Memory>>>,
}

impl Devices {
    /// Allocates memory for one part on each device.
    pub fn parts(&self, layout: &Layout) -> Result<Vec<Slice>> {
        let part =
            |device| Memory::on(self.platform(), device, layout.bytes(device).len()).map(|memory| Slice::all(&memory));
        (0..self.count()).map(part).collect()
    }

    /// Synchronises the lanes: each goes on when all have come to this point.
    pub fn join(&self) -> Result<()> {
        let [first, others @ ..] = &self.lanes[..] else { return Ok(()) };
        others.iter().try_for_each(|lane| first.follow(lane))?;
        if others.is_empty() {
            return Ok(());
        }
        let all = first.record()?;
        others.iter().try_for_each(|lane| lane.wait(&all))
    }

    /// Writes part `d` of the sum of `inputs` to `into[d]`. Inputs are whole tensors on devices or in pinned
    /// memory. The lanes must have joined.
    pub fn sum_parts(
        &self,
        dtype: DType,
        layout: &Layout,
        inputs: &[Slice],
        into: &[Slice],
        scratch: &mut SumScratch,
    ) -> Result<()> {
        if self.one_on_each(layout, inputs) {
            return self.reduce_scatter(dtype, layout, inputs, into);
        }
        scratch.arrived.resize_with(self.count(), Vec::new);
        for (device, to) in into.iter().enumerate() {
            let lane = self.lane(device);
            let mut addends = Vec::with_capacity(inputs.len());
            for input in inputs {
                let piece = input.part(layout.bytes(device));
                if inputs.len() == 1 {
                    self.platform().enqueue(lane, &Work::copy(piece, to.clone()))?;
                } else if piece.device() == Some(device) {
                    addends.push(piece);
                } else {
                    let place = addends.len();
                    let arrived = scratch.slice(self, device, place, piece.len_bytes())?;
                    self.platform().enqueue(lane, &Work::copy(piece, arrived.clone()))?;
                    addends.push(arrived);
                }
            }
            if !addends.is_empty() {
                self.platform().enqueue(lane, &Work::sum(dtype, addends, to.clone()))?;
            }
        }
        Ok(())
    }

    /// Gathers `parts` into whole tensors in `outs`, on devices or in pinned memory. The lanes must have
    /// joined.
    pub fn gather_parts(&self, dtype: DType, layout: &Layout, parts: &[Slice], outs: &[Slice]) -> Result<()> {
        if self.one_on_each(layout, outs) {
            return self.all_gather(dtype, layout, parts, outs);
        }
        for out in outs {
            for (device, part) in parts.iter().enumerate() {
                let lane = self.lane(out.device().unwrap_or(device));
                self.platform().enqueue(lane, &Work::copy(part.clone(), out.part(layout.bytes(device))))?;
            }
        }
        Ok(())
    }

    /// Returns true if collectives can be used: there is one tensor on each device, in order, and every part
    /// has elements.
    fn one_on_each(&self, layout: &Layout, tensors: &[Slice]) -> bool {
        self.count() > 1
            && self.platform().has_collectives()
            && layout.equal_bytes() > 0
            && tensors.len() == self.count()
            && tensors.iter().enumerate().all(|(device, tensor)| tensor.device() == Some(device))
    }

    fn reduce_scatter(&self, dtype: DType, layout: &Layout, inputs: &[Slice], into: &[Slice]) -> Result<()> {
        let (equal, count) = (layout.equal_bytes(), self.count());
        let mut calls = vec![Collective {
            kind: CollectiveKind::ReduceScatter,
            dtype,
            send: inputs.iter().map(|input| input.part(0..equal * count)).collect(),
            receive: into.iter().map(|part| part.part(0..equal)).collect(),
        }];
        if layout.len_bytes() > equal * count {
            let rest = |slice: &Slice, from| slice.part(from..slice.len_bytes());
            let send: Vec<Slice> = inputs.iter().map(|input| rest(input, equal * count)).collect();
            // Only the root's memory is written.
            let receive = vec![rest(&into[count - 1], equal); count];
            calls.push(Collective { kind: CollectiveKind::Reduce(count - 1), dtype, send, receive });
        }
        self.collective(&calls)
    }

    fn all_gather(&self, dtype: DType, layout: &Layout, parts: &[Slice], outs: &[Slice]) -> Result<()> {
        let (equal, count) = (layout.equal_bytes(), self.count());
        let mut calls = vec![Collective {
            kind: CollectiveKind::AllGather,
            dtype,
            send: parts.iter().map(|part| part.part(0..equal)).collect(),
            receive: outs.iter().map(|out| out.part(0..equal * count)).collect(),
        }];
        if layout.len_bytes() > equal * count {
            let receive: Vec<Slice> = outs.iter().map(|out| out.part(equal * count..out.len_bytes())).collect();
            let last = &parts[count - 1];
            // Only the root's memory is read.
            let send = vec![last.part(equal..last.len_bytes()); count];
            calls.push(Collective { kind: CollectiveKind::Broadcast(count - 1), dtype, send, receive });
        }
        self.collective(&calls)
    }
}

impl SumScratch {
    /// Returns memory number `place` on `device`, of at least `len_bytes`.
    fn slice(&mut self, devices: &Devices, device: usize, place: usize, len_bytes: usize) -> Result<Slice> {
        let kept = &mut self.arrived[device];
        while kept.len() <= place {
            kept.push(Memory::on(devices.platform(), device, len_bytes)?);
        }
        if kept[place].len_bytes() < len_bytes {
            kept[place] = Memory::on(devices.platform(), device, len_bytes)?;
        }
        Ok(Slice::of(&kept[place], 0..len_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringpull_base::Tensor;

    fn sums(count: usize, lens: &[usize], places: &[usize]) {
        let devices = Devices::simulated(count).unwrap();
        for len in lens {
            let layout = Layout::new(*len, 4, count);
            let values: Vec<Tensor> = places
                .iter()
                .enumerate()
                .map(|(index, device)| {
                    let host = Tensor::full(DType::F32, &[*len], (index + 1) as f64);
                    devices.upload(*device, &host).unwrap()
                })
                .collect();
            let inputs: Vec<Slice> =
                values.iter().map(|value| devices.array(value.remote()).unwrap().slice().clone()).collect();
            let parts = devices.parts(&layout).unwrap();
            devices.join().unwrap();
            devices.sum_parts(DType::F32, &layout, &inputs, &parts, &mut SumScratch::default()).unwrap();
            devices.join().unwrap();
            devices.gather_parts(DType::F32, &layout, &parts, &inputs).unwrap();
            devices.drain(std::time::Duration::from_secs(10)).unwrap();
            let sum = (places.len() * (places.len() + 1) / 2) as f32;
            for value in &values {
                assert_eq!(devices.download(value).unwrap().to_vec::<f32>().unwrap(), vec![sum; *len]);
            }
        }
    }

    #[test]
    fn one_tensor_on_each_device_is_summed_by_collectives() {
        for count in [1, 2, 4] {
            sums(count, &[0, 1, 3, 4, 8, 11], &(0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn any_number_of_tensors_anywhere_is_summed_by_copies() {
        sums(2, &[1, 9], &[1, 0]);
        sums(2, &[5], &[1, 1, 0]);
        sums(4, &[2, 10], &[2]);
    }
}
