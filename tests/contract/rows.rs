//! Row-sparse values.

use ringpull_base::{DType, RowSparse, Tensor};

use crate::world::{Promise, World, promises};

/// For kinds whose workers push in rounds, before an optimizer is set.
pub(crate) const SYNC: &[Promise] = promises![
    row_sparse_pushes_add_up_and_absent_rows_become_zero,
    pulled_rows_come_in_ascending_order_and_once,
    a_dense_and_a_row_sparse_push_of_one_key_follow_each_other,
    a_push_of_no_rows_is_a_push_of_zeros,
    a_key_that_is_row_sparse_takes_every_gradient,
    rows_of_any_density_are_added_in_the_order_of_the_ranks,
];

/// Returns a row-sparse value. All elements of a row are the row's factor.
pub(crate) fn sparse(shape: [usize; 2], rows: &[(i64, f64)]) -> RowSparse {
    let ids: Vec<i64> = rows.iter().map(|(id, _)| *id).collect();
    let values: Vec<f32> = rows.iter().flat_map(|(_, value)| vec![*value as f32; shape[1]]).collect();
    RowSparse::new(&shape, &ids, Tensor::from_slice(&[rows.len(), shape[1]], &values)).unwrap()
}

fn row_sparse_pushes_add_up_and_absent_rows_become_zero(world: &World) {
    world.init("rows", DType::F32, &[9, 3], 50.0);
    // Every rank pushes row 2 twice in one value and once in another, row 4 once, and row 3 + its rank.
    let own = 3 + world.rank() as i64;
    let values =
        [sparse([9, 3], &[(2, world.mine()), (own, 10.0), (2, world.mine())]), sparse([9, 3], &[(2, 1.0), (4, 100.0)])];
    world.store.push_rows("rows", &values, 0).unwrap();
    let workers = world.workers();
    let expected: Vec<f32> = (0..9)
        .flat_map(|row| {
            let own = if (3..3 + workers).contains(&row) { 10.0 } else { 0.0 };
            let shared = match row {
                2 => 2.0 * world.total() + workers as f64,
                4 => 100.0 * workers as f64,
                _ => 0.0,
            };
            [(own + shared) as f32; 3]
        })
        .collect();
    assert_eq!(world.pull::<f32>("rows", &[9, 3]), expected);
}

fn pulled_rows_come_in_ascending_order_and_once(world: &World) {
    let value: Vec<f32> = (0..20).map(|index| index as f32).collect();
    world.store.init("pulled rows", &Tensor::from_slice(&[10, 2], &value)).unwrap();
    let pulled = world.store.pull_rows("pulled rows", &[7, 0, 7, 9, 3], 0).unwrap();
    assert_eq!((pulled.shape(), pulled.row_ids()), (&[10, 2][..], &[0, 3, 7, 9][..]));
    assert_eq!(world.see::<f32>(pulled.rows()), [0.0, 1.0, 6.0, 7.0, 14.0, 15.0, 18.0, 19.0]);
    assert!(world.store.pull_rows("pulled rows", &[], 0).unwrap().row_ids().is_empty());
}

fn a_dense_and_a_row_sparse_push_of_one_key_follow_each_other(world: &World) {
    world.init("dense then rows", DType::F32, &[4, 2], 0.0);
    let dense = Tensor::full(DType::F32, &[4, 2], world.mine());
    world.store.push("dense then rows", &[dense], 0).unwrap();
    assert_eq!(world.pull::<f32>("dense then rows", &[4, 2]), [world.total() as f32; 8]);
    world.store.push_rows("dense then rows", &[sparse([4, 2], &[(3, world.mine())])], 0).unwrap();
    let total = world.total() as f32;
    assert_eq!(world.pull::<f32>("dense then rows", &[4, 2]), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, total, total]);
}

fn a_push_of_no_rows_is_a_push_of_zeros(world: &World) {
    world.init("no rows", DType::F32, &[2, 2], 8.0);
    world.store.push_rows("no rows", &[sparse([2, 2], &[])], 0).unwrap();
    assert_eq!(world.pull::<f32>("no rows", &[2, 2]), [0.0; 4]);
}

fn a_key_that_is_row_sparse_takes_every_gradient(world: &World) {
    world.store.init_row_sparse("table", &Tensor::full(DType::F32, &[40, 2], 1.0 + world.rank() as f64)).unwrap();
    assert_eq!(world.pull::<f32>("table", &[40, 2]), [1.0; 80], "rank 0's value wins");
    let own = world.rank() as i64;
    let rows = sparse([40, 2], &[(own, world.mine()), (39, world.mine())]);
    world.store.push_rows("table", &[rows], 0).unwrap();
    let pulled = world.store.pull_rows("table", &[39, 39, 38, own], 0).unwrap();
    let (mine, total) = (world.mine() as f32, world.total() as f32);
    assert_eq!(pulled.row_ids(), [own, 38, 39]);
    assert_eq!(pulled.rows().to_vec::<f32>().unwrap(), [mine, mine, 0.0, 0.0, total, total]);
    world.store.push("table", &[Tensor::full(DType::F32, &[40, 2], world.mine())], 0).unwrap();
    assert_eq!(world.pull::<f32>("table", &[40, 2]), [total; 80]);
}

/// A few rows are gathered, rows that all ranks have go to their owners, and nearly all rows are summed as a
/// dense tensor.
fn rows_of_any_density_are_added_in_the_order_of_the_ranks(world: &World) {
    const ROWS: usize = 3000;
    const WIDTH: usize = 32;
    world.init("densities", DType::F32, &[ROWS, WIDTH], 0.0);
    for (common, own) in [(0, 5), (400, 40), (1, 400), (2000, 0), (ROWS, 0)] {
        let of = |rank: usize| (0..common).chain(common + rank * own..common + (rank + 1) * own);
        let rows: Vec<(i64, f64)> =
            of(world.rank()).map(|row| (row as i64, world.mine() * (1 + row % 7) as f64)).collect();
        world.store.push_rows("densities", &[sparse([ROWS, WIDTH], &rows)], 0).unwrap();
        let mut expected = vec![0.0; ROWS * WIDTH];
        for rank in 0..world.workers() {
            for row in of(rank) {
                expected[row * WIDTH..][..WIDTH].iter_mut().for_each(|sum| *sum += ((rank + 1) * (1 + row % 7)) as f32);
            }
        }
        assert_eq!(world.pull::<f32>("densities", &[ROWS, WIDTH]), expected, "{common} rows of all, {own} of each");
    }
}
