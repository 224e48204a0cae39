//! The ids of a row-sparse gradient in few bytes, as they are sent.
//!
//! Ids ascend, each once, in a tensor of `rows` rows. There are two forms, and the shorter one is used. The
//! first byte is the form:
//!
//! - *gaps*: the number of rows between an id and the previous one, with seven bits per byte, low bits first,
//!   and the eighth bit set if more bytes follow. If one row in a hundred is present, each takes about one
//!   byte.
//! - *bits*: a bit for each row, low bits first.

const GAPS: u8 = 0;
const BITS: u8 = 1;

/// Returns the code of `ids`, which ascend, each once, and are below `rows`.
pub fn encode(ids: &[i64], rows: usize) -> Vec<u8> {
    let bits = 1 + rows.div_ceil(8);
    let mut code = vec![GAPS];
    let mut next = 0;
    for id in ids {
        let mut gap = (id - next) as u64;
        next = id + 1;
        while gap >= 0x80 {
            code.push(gap as u8 | 0x80);
            gap >>= 7;
        }
        code.push(gap as u8);
        if code.len() > bits {
            code = vec![0; bits];
            code[0] = BITS;
            ids.iter().for_each(|id| code[1 + *id as usize / 8] |= 1 << (id % 8));
            return code;
        }
    }
    code
}

/// Returns the ids of a code, or `None` if it is invalid, or names a row that a tensor of `rows` rows lacks.
pub fn decode(code: &[u8], rows: usize) -> Option<Vec<i64>> {
    let (form, code) = code.split_first()?;
    let ids: Vec<i64> = match *form {
        BITS if code.len() == rows.div_ceil(8) => {
            let set = |(at, byte): (usize, &u8)| {
                let byte = *byte;
                (0..8).filter(move |bit| (byte >> bit) & 1 == 1).map(move |bit| (8 * at + bit) as i64)
            };
            code.iter().enumerate().flat_map(set).collect()
        }
        GAPS => {
            let (mut ids, mut next, mut gap, mut shift) = (Vec::new(), 0i64, 0u64, 0);
            for byte in code {
                gap |= u64::from(byte & 0x7f).checked_shl(shift).filter(|_| shift < 63)?;
                shift += 7;
                if byte & 0x80 == 0 {
                    let id = next.checked_add(i64::try_from(gap).ok()?)?;
                    ids.push(id);
                    (next, gap, shift) = (id.checked_add(1)?, 0, 0);
                }
            }
            if shift > 0 {
                return None;
            }
            ids
        }
        _ => return None,
    };
    ids.last().is_none_or(|last| (*last as usize) < rows).then_some(ids)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_set_of_rows_comes_back_and_is_no_longer_than_its_bits(
            ids in prop::collection::btree_set(0i64..3000, 0..400), beyond in 0usize..200, thin in any::<bool>(),
        ) {
            let ids: Vec<i64> = ids.into_iter().map(|id| if thin { id * 1_000_003 } else { id }).collect();
            let rows = ids.last().map_or(0, |last| *last as usize + 1) + beyond;
            let code = encode(&ids, rows);
            prop_assert!(code.len() <= 1 + rows.div_ceil(8));
            prop_assert_eq!(decode(&code, rows), Some(ids));
        }

        #[test]
        fn no_code_names_a_row_that_is_not_there(code in prop::collection::vec(any::<u8>(), 0..40), rows in 0usize..300) {
            if let Some(ids) = decode(&code, rows) {
                prop_assert!(ids.is_sorted_by(|before, after| before < after));
                prop_assert!(ids.iter().all(|id| (0..rows as i64).contains(id)));
            }
        }
    }

    #[test]
    fn one_row_in_a_hundred_takes_a_byte_and_all_rows_a_bit() {
        let thin: Vec<i64> = (0..1000).map(|row| 100 * row).collect();
        assert_eq!(encode(&thin, 100_000).len(), 1001);
        let all: Vec<i64> = (0..1000).collect();
        assert_eq!(encode(&all, 1000).len(), 126);
        assert_eq!(decode(&encode(&all, 1000), 999), None);
    }
}
