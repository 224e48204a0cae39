//! `RMSProp` in MXNet's two forms. In both weight decay is part of the gradient.
//!
//! With `g = clip(rescale * gradient + decay * w)`:
//!
//! - plain (Tieleman and Hinton, lecture 6 of "Neural Networks for Machine Learning"):
//!   `square = (1 - gamma1) * g * g + gamma1 * square`, then `w -= rate * g / sqrt(square + epsilon)`;
//! - centered (Graves, "Generating Sequences With Recurrent Neural Networks", equations 38 to 45): the same
//!   `square`, `mean` likewise of `g`, and
//!   `delta = gamma2 * delta - rate * g / sqrt(square - mean * mean + epsilon)`, then `w += delta`.
//!
//! The new weight is clipped.

use super::element::{Real, StoredFloat, elements, elements_mut};

/// The hyper-parameters of one step, in the type that it is computed in.
#[derive(Clone, Copy)]
pub(super) struct RmsProp<R> {
    pub(super) rate: R,
    pub(super) decay: R,
    pub(super) rescale: R,
    pub(super) clip: R,
    pub(super) gamma1: R,
    pub(super) gamma2: R,
    pub(super) epsilon: R,
    pub(super) bound: R,
}

impl<R: Real> RmsProp<R> {
    #[inline]
    fn gradient(&self, weight: R, gradient: R) -> R {
        (gradient * self.rescale + self.decay * weight).clipped(self.clip)
    }

    pub(super) fn plain<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        square: &mut [u8],
    ) {
        let weights = elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient));
        for ((w, g), s) in weights.zip(elements_mut::<R>(square)) {
            let weight = W::load(*w);
            let gradient = self.gradient(weight, G::load(*g));
            let square = (R::ONE - self.gamma1) * (gradient * gradient) + self.gamma1 * R::load(*s);
            *s = R::store(square);
            *w = W::store((weight - self.rate * (gradient / (square + self.epsilon).sqrt())).clipped(self.bound));
        }
    }

    /// The order of the two products differs from that of the plain form, as in MXNet.
    pub(super) fn centered<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        [square, mean, delta]: [&mut [u8]; 3],
    ) {
        let weights = elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient));
        let moments = elements_mut::<R>(square).iter_mut().zip(elements_mut::<R>(mean));
        for (((w, g), (s, m)), d) in weights.zip(moments).zip(elements_mut::<R>(delta)) {
            let weight = W::load(*w);
            let gradient = self.gradient(weight, G::load(*g));
            let square = (R::ONE - self.gamma1) * gradient * gradient + self.gamma1 * R::load(*s);
            let mean = (R::ONE - self.gamma1) * gradient + self.gamma1 * R::load(*m);
            let root = (square - mean * mean + self.epsilon).sqrt();
            let delta = self.gamma2 * R::load(*d) - self.rate * gradient / root;
            *s = R::store(square);
            *m = R::store(mean);
            *d = R::store(delta);
            *w = W::store((weight + delta).clipped(self.bound));
        }
    }
}
