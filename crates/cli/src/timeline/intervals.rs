//! Sets of moments as sorted intervals that do not touch.

/// Moments between bounds, in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Intervals(Vec<(f64, f64)>);

impl Intervals {
    /// The union of `spans`, which may overlap and have any order.
    pub(crate) fn of(spans: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut sorted: Vec<(f64, f64)> = spans.into_iter().filter(|(start, end)| start < end).collect();
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut union: Vec<(f64, f64)> = Vec::with_capacity(sorted.len());
        for (start, end) in sorted {
            match union.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => union.push((start, end)),
            }
        }
        Intervals(union)
    }

    /// Its parts, sorted.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.0.iter().copied()
    }

    /// Its total length.
    pub(crate) fn total(&self) -> f64 {
        // The sum of no numbers would be a negative zero.
        self.0.iter().fold(0.0, |total, (start, end)| total + (end - start))
    }

    /// The intersection of the two sets.
    #[must_use]
    pub(crate) fn and(&self, other: &Intervals) -> Intervals {
        let (mut own, mut theirs, mut both) = (self.0.iter().peekable(), other.0.iter().peekable(), Vec::new());
        while let (Some(a), Some(b)) = (own.peek(), theirs.peek()) {
            let (start, end) = (a.0.max(b.0), a.1.min(b.1));
            if start < end {
                both.push((start, end));
            }
            if a.1 < b.1 {
                own.next();
            } else {
                theirs.next();
            }
        }
        Intervals(both)
    }

    /// The moments of this set that are not in the other.
    #[must_use]
    pub(crate) fn minus(&self, other: &Intervals) -> Intervals {
        let mut left = Vec::new();
        let mut from = 0;
        for (mut start, end) in self.0.iter().copied() {
            while from < other.0.len() && other.0[from].1 <= start {
                from += 1;
            }
            for (hole_start, hole_end) in other.0[from..].iter().take_while(|hole| hole.0 < end) {
                if start < *hole_start {
                    left.push((start, *hole_start));
                }
                start = start.max(*hole_end);
            }
            if start < end {
                left.push((start, end));
            }
        }
        Intervals(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spans: &[(u32, u32)]) -> Intervals {
        Intervals::of(spans.iter().map(|(start, end)| (f64::from(*start), f64::from(*end))))
    }

    #[test]
    fn spans_that_touch_or_overlap_become_one() {
        assert_eq!(of(&[(5, 6), (1, 3), (2, 4), (4, 5), (9, 9)]), of(&[(1, 6)]));
        assert_eq!(of(&[(1, 3), (2, 4), (7, 9)]).total(), 5.0);
    }

    #[test]
    fn both_and_the_rest_make_up_the_whole() {
        for (a, b, both) in [
            (of(&[(0, 10)]), of(&[(2, 3), (5, 12)]), of(&[(2, 3), (5, 10)])),
            (of(&[(0, 2), (4, 6)]), of(&[(2, 4)]), of(&[])),
            (of(&[(0, 2), (4, 6), (8, 9)]), of(&[(1, 5), (8, 9)]), of(&[(1, 2), (4, 5), (8, 9)])),
            (of(&[]), of(&[(1, 5)]), of(&[])),
        ] {
            assert_eq!(a.and(&b), both);
            assert_eq!(a.minus(&b).total() + both.total(), a.total());
            assert_eq!(a.minus(&b).and(&b), of(&[]));
        }
    }
}
