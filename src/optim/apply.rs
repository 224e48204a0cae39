//! One update of a weight.

use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::optim::{Optimizer, Rule, State};
use crate::with_element;

impl Optimizer {
    /// Applies `gradient` to `weight`.
    pub fn apply(&self, state: &mut State, dtype: DType, weight: &mut [u8], gradient: &[u8]) -> Result<()> {
        state.updates += 1;
        let factor = match self.rule {
            Rule::Test => self.rescale_grad,
            _ => -self.learning_rate * self.rescale_grad,
        };
        with_element!(dtype, T => {
            let (weight, gradient) = (bytemuck::cast_slice_mut::<u8, T>(weight), bytemuck::cast_slice::<u8, T>(gradient));
            for (to, from) in weight.iter_mut().zip(gradient) {
                *to = T::from_f64(Element::to_f64(*to) + factor * Element::to_f64(*from));
            }
        });
        Ok(())
    }

    /// Applies `rows` to the rows `ids` of `weight`.
    pub fn apply_rows(
        &self,
        state: &mut State,
        dtype: DType,
        weight: &mut [u8],
        row_bytes: usize,
        ids: &[i64],
        rows: &[u8],
    ) -> Result<()> {
        for (id, row) in ids.iter().zip(rows.chunks_exact(row_bytes)) {
            let start = *id as usize * row_bytes;
            self.apply(state, dtype, &mut weight[start..start + row_bytes], row)?;
        }
        Ok(())
    }
}
