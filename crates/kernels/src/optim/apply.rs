//! One update of one key: checks, the state's slots, and the division of the elements over threads.

use ringpull_base::half::{bf16, f16};
use ringpull_base::{DType, Error, Result, check_row_ids, config};

use super::adagrad::AdaGrad;
use super::adam::Adam;
use super::element::{Real, StoredFloat, elements, elements_mut};
use super::rmsprop::RmsProp;
use super::sgd::Sgd;
use super::{Optimizer, Rule, State, slot_element_bytes};

/// Updates of more elements than this are divided over threads. Elements are computed one by one, so bits do
/// not depend on the division.
const PARALLEL_LEN: usize = 1 << 20;

impl Optimizer {
    /// Does one step: changes `weight`, which has elements of `dtype`, by `gradient`, which has its length.
    /// On an error nothing has changed.
    pub fn apply(&self, state: &mut State, dtype: DType, weight: &mut [u8], gradient: &[u8]) -> Result<()> {
        if weight.len() != gradient.len() {
            return Err(Error::argument(
                format!("a gradient of {} bytes for a weight of {} bytes", gradient.len(), weight.len()),
                "give a gradient as long as its weight",
            ));
        }
        self.prepare(state, dtype, weight)?;
        self.dispatch(state, dtype, weight, &[(0, gradient)]);
        Ok(())
    }

    /// Begins a step that [`apply_at`](Self::apply_at) does in pieces, and counts it. On an error nothing has
    /// changed.
    pub fn begin_step(&self, state: &mut State, dtype: DType, weight: &[u8]) -> Result<()> {
        self.prepare(state, dtype, weight)
    }

    /// Updates the part of `weight` that begins at byte `at` and is as long as `gradient`. The step must have
    /// been begun with this state and a weight of this length.
    pub fn apply_at(&self, state: &mut State, dtype: DType, weight: &mut [u8], at: usize, gradient: &[u8]) {
        self.dispatch(state, dtype, weight, &[(at, gradient)]);
    }

    /// Does a step as [`apply`](Self::apply) does, for a row-sparse gradient, like MXNet's lazy update: only
    /// the rows that `ids` names change, in weight and in state. `rows` holds one row of `row_bytes` for each
    /// id.
    pub fn apply_rows(
        &self,
        state: &mut State,
        dtype: DType,
        weight: &mut [u8],
        row_bytes: usize,
        ids: &[i64],
        rows: &[u8],
    ) -> Result<()> {
        if rows.len() != ids.len() * row_bytes {
            return Err(Error::argument(
                format!("{} row ids with {} bytes of rows of {row_bytes} bytes", ids.len(), rows.len()),
                "give one row for each row id",
            ));
        }
        check_row_ids(ids, weight.len().checked_div(row_bytes).unwrap_or(usize::MAX))?;
        self.prepare(state, dtype, weight)?;
        if row_bytes > 0 {
            let placed: Vec<(usize, &[u8])> =
                ids.iter().zip(rows.chunks_exact(row_bytes)).map(|(id, row)| (*id as usize * row_bytes, row)).collect();
            self.dispatch(state, dtype, weight, &placed);
        }
        Ok(())
    }

    /// Returns an error if the optimizer cannot update weights of `dtype`.
    pub fn check_dtype(&self, dtype: DType) -> Result<()> {
        if dtype.is_float() {
            return Ok(());
        }
        Err(Error::argument(
            format!("an optimizer cannot update {dtype} weights"),
            "optimizers need f32, f64, f16 or bf16; keep integer keys in a store without an optimizer",
        ))
    }

    /// Checks that the state fits, gives it its slots before its first update, and counts the update.
    fn prepare(&self, state: &mut State, dtype: DType, weight: &[u8]) -> Result<()> {
        self.check_dtype(dtype)?;
        let slot_bytes = weight.len() / dtype.size_bytes() * slot_element_bytes(dtype);
        let mastered = self.has_master(dtype);
        let count = self.slots(dtype);
        if state.updates == 0 && state.slots.is_empty() {
            state.slots = vec![vec![0; slot_bytes]; count];
            if let (true, Some(master)) = (mastered, state.slots.last_mut()) {
                match dtype {
                    DType::BF16 => convert::<bf16, f32>(weight, master),
                    _ => convert::<f16, f32>(weight, master),
                }
            }
        }
        if state.slots.len() != count || state.slots.iter().any(|slot| slot.len() != slot_bytes) {
            let lengths: Vec<usize> = state.slots.iter().map(Vec::len).collect();
            return Err(Error::argument(
                format!("an optimizer state with slots of {lengths:?} bytes; expected {count} of {slot_bytes} bytes"),
                "load states that were saved for these keys with this optimizer",
            ));
        }
        // A state from a file may have any count.
        state.updates = state.updates.saturating_add(1);
        Ok(())
    }

    /// Returns the number of slots in the state of a key of `dtype`.
    pub fn slots(&self, dtype: DType) -> usize {
        self.rule.slots() + usize::from(self.has_master(dtype))
    }

    fn has_master(&self, dtype: DType) -> bool {
        self.multi_precision && dtype.is_half()
    }

    /// Updates the weight at each `(byte offset, gradient)`.
    fn dispatch(&self, state: &mut State, dtype: DType, weight: &mut [u8], parts: &[(usize, &[u8])]) {
        match (dtype, self.has_master(dtype)) {
            (DType::F64, _) => self.run::<f64, f64>(state, weight, parts),
            (DType::F16, false) => self.run::<f16, f16>(state, weight, parts),
            (DType::BF16, false) => self.run::<bf16, bf16>(state, weight, parts),
            (DType::F16, true) => self.run_on_master::<f16>(state, weight, parts),
            (DType::BF16, true) => self.run_on_master::<bf16>(state, weight, parts),
            _ => self.run::<f32, f32>(state, weight, parts),
        }
    }

    /// Updates the f32 copy, and rounds it into the weight.
    fn run_on_master<T: StoredFloat<Real = f32>>(
        &self,
        state: &mut State,
        weight: &mut [u8],
        parts: &[(usize, &[u8])],
    ) {
        let Some(mut master) = state.slots.pop() else { return };
        let widened: Vec<(usize, &[u8])> = parts.iter().map(|(at, gradient)| (at * 2, *gradient)).collect();
        self.run::<f32, T>(state, &mut master, &widened);
        for (at, gradient) in parts {
            let end = at + gradient.len();
            convert::<f32, T>(&master[at * 2..end * 2], &mut weight[*at..end]);
        }
        state.slots.push(master);
    }

    /// Runs one step. `W` is the stored type of the weight, and `G` is that of the gradient.
    fn run<W: StoredFloat, G: StoredFloat<Real = W::Real>>(
        &self,
        state: &mut State,
        weight: &mut [u8],
        parts: &[(usize, &[u8])],
    ) {
        let step = Step::<W::Real>::new(self, state.updates);
        let (weight_size, real_size) = (size_of::<W::Bytes>(), size_of::<<W::Real as StoredFloat>::Bytes>());
        for (at, gradient) in parts {
            let (first, len) = (at / weight_size, gradient.len() / size_of::<G::Bytes>());
            let mut slots = state.slots.iter_mut().map(|slot| &mut slot[first * real_size..(first + len) * real_size]);
            let slots = std::array::from_fn(|_| slots.next().unwrap_or_default());
            step.share::<W, G>(&mut weight[*at..*at + len * weight_size], gradient, slots, config::threads());
        }
    }
}

/// One step with its hyper-parameters in the type that it is computed in.
enum Step<R> {
    Plain(Sgd<R>),
    Momentum(Sgd<R>),
    Nesterov(Sgd<R>),
    Test(Sgd<R>),
    Adam(Adam<R>),
    AdaGrad(AdaGrad<R>),
    RmsProp(RmsProp<R>),
    Centered(RmsProp<R>),
}

/// The most slots that a rule has, not counting the master copy.
const SLOTS: usize = 3;

impl<R: Real> Step<R> {
    fn new(optimizer: &Optimizer, updates: u64) -> Self {
        let decay = R::from_f64(optimizer.weight_decay);
        let rescale = R::from_f64(optimizer.rescale_grad);
        // Without a limit the limit is infinite, and clipping changes nothing.
        let clip = R::from_f64(optimizer.clip_gradient.unwrap_or(f64::INFINITY));
        let rate = R::from_f64(optimizer.rate_at(updates));
        let is_clipped = optimizer.clip_gradient.is_some_and(f64::is_finite);
        let sgd = |momentum| Sgd { rate, decay, rescale, clip, is_clipped, momentum: R::from_f64(momentum) };
        match optimizer.rule {
            Rule::Sgd { momentum: 0.0, .. } => Step::Plain(sgd(0.0)),
            Rule::Sgd { momentum, nesterov: false } => Step::Momentum(sgd(momentum)),
            Rule::Sgd { momentum, nesterov: true } => Step::Nesterov(sgd(momentum)),
            Rule::Test => Step::Test(sgd(0.0)),
            Rule::Adam { beta1, beta2, epsilon } => Step::Adam(Adam {
                rate,
                decay,
                rescale,
                clip,
                beta1: R::from_f64(beta1),
                beta2: R::from_f64(beta2),
                epsilon: R::from_f64(epsilon),
            }),
            Rule::AdaGrad { eps } => Step::AdaGrad(AdaGrad { rate, decay, rescale, clip, eps: R::from_f64(eps) }),
            Rule::RmsProp { gamma1, gamma2, epsilon, centered, clip_weights } => {
                let form = if centered { Step::Centered } else { Step::RmsProp };
                form(RmsProp {
                    rate,
                    decay,
                    rescale,
                    clip,
                    gamma1: R::from_f64(gamma1),
                    gamma2: R::from_f64(gamma2),
                    epsilon: R::from_f64(epsilon),
                    bound: R::from_f64(clip_weights.unwrap_or(f64::INFINITY)),
                })
            }
        }
    }

    /// Divides the work between up to `threads` threads, by halving it while there is enough.
    fn share<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        slots: [&mut [u8]; SLOTS],
        threads: usize,
    ) {
        let len = gradient.len() / size_of::<G::Bytes>();
        if len <= PARALLEL_LEN || threads == 1 {
            return self.run::<W, G>(weight, gradient, slots);
        }
        let half = len / 2;
        let (weight_low, weight_high) = weight.split_at_mut(half * size_of::<W::Bytes>());
        let (gradient_low, gradient_high) = gradient.split_at(half * size_of::<G::Bytes>());
        let (mut slots_low, mut slots_high): ([&mut [u8]; SLOTS], [&mut [u8]; SLOTS]) = Default::default();
        for (index, slot) in slots.into_iter().enumerate() {
            let middle = slot.len().min(half * size_of::<R::Bytes>());
            (slots_low[index], slots_high[index]) = slot.split_at_mut(middle);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| self.share::<W, G>(weight_low, gradient_low, slots_low, threads / 2));
            self.share::<W, G>(weight_high, gradient_high, slots_high, threads - threads / 2);
        });
    }

    fn run<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        [slot0, slot1, slot2]: [&mut [u8]; SLOTS],
    ) {
        match self {
            Step::Plain(sgd) => sgd.plain::<W, G>(weight, gradient),
            Step::Momentum(sgd) => sgd.momentum::<W, G>(weight, gradient, slot0),
            Step::Nesterov(sgd) => sgd.nesterov::<W, G>(weight, gradient, slot0),
            Step::Test(sgd) => sgd.test::<W, G>(weight, gradient, slot0),
            Step::Adam(adam) => adam.step::<W, G>(weight, gradient, slot0, slot1),
            Step::AdaGrad(adagrad) => adagrad.step::<W, G>(weight, gradient, slot0),
            Step::RmsProp(rmsprop) => rmsprop.plain::<W, G>(weight, gradient, slot0),
            Step::Centered(rmsprop) => rmsprop.centered::<W, G>(weight, gradient, [slot0, slot1, slot2]),
        }
    }
}

/// `to[i] = from[i]`, in another type.
fn convert<F: StoredFloat, T: StoredFloat<Real = F::Real>>(from: &[u8], to: &mut [u8]) {
    for (to, from) in elements_mut::<T>(to).iter_mut().zip(elements::<F>(from)) {
        *to = T::store(F::load(*from));
    }
}

#[cfg(test)]
mod tests;
