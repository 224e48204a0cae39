//! Adam in MXNet's form: weight decay is part of the gradient, and the bias correction is part of the
//! learning rate.
//!
//! With `g = clip(rescale * gradient + decay * w)` and
//! `rate = learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)` at the key's update number `t`, counted from 1:
//! `mean = beta1 * mean + (1 - beta1) * g`, `variance` likewise of `g * g`, and
//! `w -= rate * mean / (sqrt(variance) + epsilon)`. (Kingma and Ba, "Adam", section 2, the reordered form.)

use super::element::{Real, StoredFloat, elements, elements_mut};

/// The hyper-parameters of one step, in the type that it is computed in.
#[derive(Clone, Copy)]
pub(super) struct Adam<R> {
    pub(super) rate: R,
    pub(super) decay: R,
    pub(super) rescale: R,
    pub(super) clip: R,
    pub(super) beta1: R,
    pub(super) beta2: R,
    pub(super) epsilon: R,
}

/// Returns `learning_rate` with the bias correction of update number `updates`.
pub(super) fn corrected_rate(learning_rate: f64, beta1: f64, beta2: f64, updates: u64) -> f64 {
    learning_rate * (1.0 - power(beta2, updates)).sqrt() / (1.0 - power(beta1, updates))
}

/// Returns `base^exponent`, computed by squaring, because the platform's `pow` may differ in its last bit
/// between machines.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

impl<R: Real> Adam<R> {
    pub(super) fn step<W: StoredFloat<Real = R>, G: StoredFloat<Real = R>>(
        &self,
        weight: &mut [u8],
        gradient: &[u8],
        mean: &mut [u8],
        variance: &mut [u8],
    ) {
        let weights = elements_mut::<W>(weight).iter_mut().zip(elements::<G>(gradient));
        let moments = elements_mut::<R>(mean).iter_mut().zip(elements_mut::<R>(variance));
        for ((w, g), (m, v)) in weights.zip(moments) {
            let weight = W::load(*w);
            let gradient = (G::load(*g) * self.rescale + self.decay * weight).clipped(self.clip);
            let mean = self.beta1 * R::load(*m) + (R::ONE - self.beta1) * gradient;
            let variance = self.beta2 * R::load(*v) + (R::ONE - self.beta2) * gradient * gradient;
            *m = R::store(mean);
            *v = R::store(variance);
            *w = W::store(weight - self.rate * mean / (variance.sqrt() + self.epsilon));
        }
    }
}
