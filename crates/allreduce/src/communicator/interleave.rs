//! The order of the messages that one rank sends another in an exchange of compressed gradients: codes of the receiver's part, and sums of the
//! sender's own.
//!
//! A sum cannot leave before its codes have come from everybody, so some codes lead; then sums and codes take turns, and the wire carries the
//! first sums while the last codes are still being made:
//!
//! ```text
//!   codes 0, codes 1, codes 2, codes 3, sum 0, codes 4, sum 1, codes 5, ... sum n
//! ```
//!
//! Sender and receiver compute the same order from the numbers of segments alone. It cannot lock up: what is sent before the codes of a segment
//! are sums of earlier segments only.

/// Segments of codes that leave before the first sum: enough for the slowest of ranks that share cores to have made its first ones.
const LEAD: usize = 4;

/// What a message holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    /// The codes of a segment of the receiver's part.
    Codes(usize),
    /// The sum of a segment of the sender's part.
    Sum(usize),
}

/// The message of this number, of `codes` segments of codes and `sums` segments of sums; none after the last.
pub(super) fn item(number: usize, codes: usize, sums: usize) -> Option<Item> {
    let lead = LEAD.min(codes);
    let Some(rest) = number.checked_sub(lead) else { return Some(Item::Codes(number)) };
    let turns = (codes - lead).min(sums);
    let (turn, after) = (rest / 2, rest.saturating_sub(2 * turns));
    match rest {
        _ if rest < 2 * turns && rest.is_multiple_of(2) => Some(Item::Sum(turn)),
        _ if rest < 2 * turns => Some(Item::Codes(lead + turn)),
        _ if lead + turns + after < codes => Some(Item::Codes(lead + turns + after)),
        _ if turns + after < sums => Some(Item::Sum(turns + after)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn everything_is_sent_once_in_order_and_codes_before_the_sums_that_come_after_them(codes in 0usize..40, sums in 0usize..40) {
            let order: Vec<Item> = (0..codes + sums).map(|number| item(number, codes, sums).unwrap()).collect();
            prop_assert_eq!(item(codes + sums, codes, sums), None);
            let of_codes: Vec<Item> = order.iter().copied().filter(|item| matches!(item, Item::Codes(_))).collect();
            let of_sums: Vec<Item> = order.iter().copied().filter(|item| matches!(item, Item::Sum(_))).collect();
            prop_assert_eq!(of_codes, (0..codes).map(Item::Codes).collect::<Vec<_>>());
            prop_assert_eq!(of_sums, (0..sums).map(Item::Sum).collect::<Vec<_>>());
            for segment in 0..codes.min(sums) {
                let place = |item| order.iter().position(|other| *other == item).unwrap();
                prop_assert!(place(Item::Codes(segment)) < place(Item::Sum(segment)));
            }
        }
    }

    #[test]
    fn sums_and_codes_take_turns_after_the_lead() {
        use Item::{Codes, Sum};
        let order: Vec<Item> = (0..).map_while(|number| item(number, 6, 5)).collect();
        let expected =
            [Codes(0), Codes(1), Codes(2), Codes(3), Sum(0), Codes(4), Sum(1), Codes(5), Sum(2), Sum(3), Sum(4)];
        assert_eq!(order, expected);
    }
}
