//! Stochastic gradient descent, with momentum and Nesterov's form, and MXNet's `test` rule.
//!
//! With `g = clip(rescale * gradient) + decay * w`:
//!
//! - plain: `w -= rate * g`;
//! - momentum: `m = momentum * m - rate * g`, then `w += m`;
//! - Nesterov: the same `m`, then `w += momentum * m - rate * g`.

use super::element::{Real, Stored, elements, elements_mut};

/// The hyper-parameters of one step, in the type that it is computed in.
#[derive(Clone, Copy)]
pub(super) struct Sgd<R> {
    pub(super) rate: R,
    pub(super) decay: R,
    pub(super) rescale: R,
    pub(super) clip: R,
    pub(super) momentum: R,
}

impl<R: Real> Sgd<R> {
    #[inline]
    fn scaled(&self, weight: R, gradient: R) -> R {
        self.rate * ((gradient * self.rescale).clipped(self.clip) + self.decay * weight)
    }

    pub(super) fn plain<W: Stored<Real = R>, G: Stored<Real = R>>(&self, weight: &mut [u8], gradient: &[u8]) {
        for (w, g) in elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient)) {
            let weight = W::load(*w);
            *w = W::store(weight - self.scaled(weight, G::load(*g)));
        }
    }

    pub(super) fn momentum<W: Stored<Real = R>, G: Stored<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        velocity: &mut [u8],
    ) {
        let weights = elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient));
        for ((w, g), m) in weights.zip(elements_mut::<R>(velocity)) {
            let weight = W::load(*w);
            let moved = self.momentum * R::load(*m) - self.scaled(weight, G::load(*g));
            *m = R::store(moved);
            *w = W::store(weight + moved);
        }
    }

    pub(super) fn nesterov<W: Stored<Real = R>, G: Stored<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        velocity: &mut [u8],
    ) {
        let weights = elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient));
        for ((w, g), m) in weights.zip(elements_mut::<R>(velocity)) {
            let weight = W::load(*w);
            let scaled = self.scaled(weight, G::load(*g));
            let moved = self.momentum * R::load(*m) - scaled;
            *m = R::store(moved);
            *w = W::store(weight + (self.momentum * moved - scaled));
        }
    }

    /// `w += rescale * gradient`, and the slot becomes a copy of `w`.
    pub(super) fn test<W: Stored<Real = R>, G: Stored<Real = R>>(
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
