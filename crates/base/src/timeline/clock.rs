//! Measures the lead of this process's clock over rank 0's clock by round trips of messages. The shortest
//! round trip gives the most exact lead.

/// The number of round trips. One undisturbed round trip is enough.
const ROUNDS: u32 = 16;

/// The measurement so far.
#[derive(Debug, Default)]
pub struct Offset {
    rounds: u32,
    best: Option<(u64, i64)>,
}

impl Offset {
    /// Records an answer. The question left at `sent_ns` and the answer came at `now_ns` by this clock. Rank
    /// 0 answered at `there_ns` by its own clock, by assumption in the middle of the round trip. Returns true
    /// if another question is needed.
    pub fn answered(&mut self, sent_ns: u64, there_ns: u64, now_ns: u64) -> bool {
        let round_trip = now_ns.saturating_sub(sent_ns);
        let ahead = i128::from(sent_ns) + i128::from(round_trip / 2) - i128::from(there_ns);
        if self.best.is_none_or(|(least, _)| round_trip < least) {
            self.best = Some((round_trip, ahead as i64));
        }
        self.rounds += 1;
        self.rounds < ROUNDS
    }

    /// Returns the lead of this clock, and the round trip that measured it, in nanoseconds.
    pub fn found(&self) -> Option<(i64, u64)> {
        self.best.map(|(round_trip, ahead)| (ahead, round_trip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_answer_counts_and_after_enough_of_them_no_more_is_asked() {
        let mut offset = Offset::default();
        // This clock is 1000 ahead; the first answer was held up on its way back, the second one was not.
        assert!(offset.answered(10_000, 9_050, 10_500));
        assert!(offset.answered(20_000, 19_050, 20_100));
        assert!(offset.answered(30_000, 29_300, 30_400));
        assert_eq!(offset.found(), Some((1000, 100)));
        assert_eq!((3..20).take_while(|_| offset.answered(0, 0, 900)).count(), 12);
    }
}
