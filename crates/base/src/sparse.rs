//! Row-sparse values: some rows of a tensor, with their ids. The other rows are zero.

use crate::{Error, Result, Tensor};

/// Rows of a tensor of shape `shape`. `rows` has shape `[row_ids.len(), shape[1..]]`.
///
/// ```
/// # use ringpull_base as ringpull;
/// use ringpull::{RowSparse, Tensor};
///
/// // Rows 0 and 3 of a matrix of 4 by 2.
/// let rows = Tensor::from_slice(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]);
/// let sparse = RowSparse::new(&[4, 2], &[0, 3], rows)?;
/// assert_eq!(sparse.row_ids(), [0, 3]);
/// # Ok::<(), ringpull::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RowSparse {
    shape: Vec<usize>,
    row_ids: Vec<i64>,
    rows: Tensor,
}

impl RowSparse {
    /// Returns rows `row_ids` of a tensor of `shape`. The ids need not be sorted or unique. Rows with equal
    /// ids are added up when they are pushed.
    ///
    /// Errors if an id is outside `0..shape[0]` or if `rows` does not hold one row for each id.
    pub fn new(shape: &[usize], row_ids: &[i64], rows: Tensor) -> Result<Self> {
        let Some((&count, row_shape)) = shape.split_first() else {
            return Err(Error::argument("a scalar has no rows", "give row-sparse values at least one dimension"));
        };
        check_row_ids(row_ids, count)?;
        if rows.shape().first() != Some(&row_ids.len()) || &rows.shape()[1..] != row_shape {
            return Err(Error::argument(
                format!(
                    "{} row ids and rows of shape {:?} do not fit a tensor of shape {shape:?}",
                    row_ids.len(),
                    rows.shape()
                ),
                "give one row for each row id, each of the tensor's shape without its first dimension",
            ));
        }
        Ok(RowSparse { shape: shape.to_vec(), row_ids: row_ids.to_vec(), rows })
    }

    /// The shape of the whole tensor.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The ids of the rows that are present.
    pub fn row_ids(&self) -> &[i64] {
        &self.row_ids
    }

    /// The rows, one for each id in the order of the ids.
    pub fn rows(&self) -> &Tensor {
        &self.rows
    }
}

/// Errors unless every id names one of `count` rows.
pub fn check_row_ids(row_ids: &[i64], count: usize) -> Result<()> {
    match row_ids.iter().find(|id| usize::try_from(**id).map_or(true, |id| id >= count)) {
        Some(id) => Err(Error::argument(
            format!("row id {id} is not in a tensor of {count} rows"),
            format!("row ids lie between 0 and {}", count.saturating_sub(1)),
        )),
        None => Ok(()),
    }
}
