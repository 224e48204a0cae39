//! Stochastic gradient descent, with momentum and Nesterov's form, and MXNet's `test` rule.
//!
//! With `g = clip(rescale * gradient)`, in the order of MXNet's operations:
//!
//! - momentum: `m = momentum * m - (rate * decay) * w - rate * g`, then `w += m`; if there is no limit the
//!   last
//!   product is `(rate * rescale) * gradient`;
//! - plain: the same with `m = 0` before each step;
//! - Nesterov: `m = momentum * m`, then `w = (w - m) + (momentum + 1) * (m - rate * (g + decay * w))`, then
//!   `m -= rate * (g + decay * w)` with the new `w`, as MXNet has it.

use super::element::{Real, StoredFloat, elements, elements_mut};

/// The hyper-parameters of one step, in the type that it is computed in.
#[derive(Clone, Copy)]
pub(super) struct Sgd<R> {
    pub(super) rate: R,
    pub(super) decay: R,
    pub(super) rescale: R,
    pub(super) clip: R,
    pub(super) is_clipped: bool,
    pub(super) momentum: R,
}

impl<R: Real> Sgd<R> {
    #[inline]
    fn clipped(&self, gradient: R) -> R {
        (gradient * self.rescale).clipped(self.clip)
    }

    #[inline]
    fn velocity(&self, weight: R, gradient: R, velocity: R) -> R {
        let clipped = || self.rate * self.clipped(gradient);
        let step = if self.is_clipped { clipped() } else { self.rate * self.rescale * gradient };
        self.momentum * velocity - self.rate * self.decay * weight - step
    }

    pub(super) fn plain<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(&self, weight: &mut [u8], gradient: &[u8]) {
        for (w, g) in elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient)) {
            let weight = W::load(*w);
            *w = W::store(weight + self.velocity(weight, G::load(*g), R::ZERO));
        }
    }

    pub(super) fn momentum<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        velocity: &mut [u8],
    ) {
        let weights = elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient));
        for ((w, g), m) in weights.zip(elements_mut::<R>(velocity)) {
            let weight = W::load(*w);
            let moved = self.velocity(weight, G::load(*g), R::load(*m));
            *m = R::store(moved);
            *w = W::store(weight + moved);
        }
    }

    pub(super) fn nesterov<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        velocity: &mut [u8],
    ) {
        let weights = elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient));
        for ((w, g), m) in weights.zip(elements_mut::<R>(velocity)) {
            let weight = W::load(*w);
            let gradient = self.clipped(G::load(*g));
            let step = |weight| self.rate * (gradient + self.decay * weight);
            let kept = self.momentum * R::load(*m);
            let moved = weight - kept + (self.momentum + R::ONE) * (kept - step(weight));
            *m = R::store(kept - step(moved));
            *w = W::store(moved);
        }
    }

    /// Computes `w += rescale * gradient`, and copies `w` to the slot.
    pub(super) fn test<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        copy: &mut [u8],
    ) {
        let weights = elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient));
        for ((w, g), c) in weights.zip(elements_mut::<R>(copy)) {
            *w = W::store(W::load(*w) + G::load(*g) * self.rescale);
            *c = R::store(W::load(*w));
        }
    }
}
