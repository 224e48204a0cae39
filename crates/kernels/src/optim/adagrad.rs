//! `AdaGrad` in MXNet's form: weight decay is beside the gradient and not in the sum of squares.
//!
//! With `g = clip(rescale * gradient)`: `squares += g * g`, then
//! `w -= rate * (g / sqrt(squares + eps) + w * decay)`. (Duchi, Hazan and Singer, "Adaptive Subgradient
//! Methods", section 1.1, the diagonal form.)

use super::element::{Real, StoredFloat, elements, elements_mut};

/// The hyper-parameters of one step, in the type that it is computed in.
#[derive(Clone, Copy)]
pub(super) struct AdaGrad<R> {
    pub(super) rate: R,
    pub(super) decay: R,
    pub(super) rescale: R,
    pub(super) clip: R,
    pub(super) eps: R,
}

impl<R: Real> AdaGrad<R> {
    pub(super) fn step<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        squares: &mut [u8],
    ) {
        let weights = elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient));
        for ((w, g), s) in weights.zip(elements_mut::<R>(squares)) {
            let weight = W::load(*w);
            let gradient = (G::load(*g) * self.rescale).clipped(self.clip);
            let squares = R::load(*s) + gradient * gradient;
            *s = R::store(squares);
            *w = W::store(weight - self.rate * (gradient / (squares + self.eps).sqrt() + weight * self.decay));
        }
    }
}
