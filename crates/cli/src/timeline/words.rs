//! The account as a table for a terminal.

use super::account::{Account, KeyAccount, Share};
use ringpull_harness::size::format_size;
use ringpull_harness::text::{format_seconds, grid};

const HEADER: [&str; 10] =
    ["rank", "host", "steps", "step", "compute", "push calls", "straggler", "communication", "(un)pack", "update"];

/// The table of ranks, the rank for which the others wait longest, and the keys that took the longest.
pub(crate) fn render(account: &Account) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for rank in &account.ranks {
        let front = [rank.rank.to_string(), rank.host.clone(), rank.steps.to_string()];
        rows.push([&front[..], &cells(&rank.share)].concat());
    }
    let front = ["mean", "", ""].map(str::to_owned);
    rows.push([&front[..], &cells(&account.mean)].concat());
    let mut lines = vec![
        format!("Mean seconds of a step, and parts of it. Steps are found by {}.", account.steps_by),
        grid(HEADER, rows, 2),
        String::new(),
        "compute: the caller was not blocked; straggler: blocked until the last rank had called; communication: blocked for the wire."
            .to_owned(),
    ];
    let worst = account.ranks.iter().max_by(|a, b| a.awaited_s.total_cmp(&b.awaited_s));
    if let Some(worst) = worst.filter(|rank| rank.awaited_s > 0.0) {
        lines.push(format!(
            "The other ranks wait longest for rank {} on {}: {} a step, added over these ranks.",
            worst.rank,
            worst.host,
            format_seconds(worst.awaited_s)
        ));
    }
    let key = |key: &KeyAccount| {
        vec![
            key.key.clone(),
            if key.bytes > 0 { format_size(key.bytes as f64) } else { "-".to_owned() },
            format_seconds(key.blocked_s),
            format_seconds(key.communication_s),
        ]
    };
    if !account.keys.is_empty() {
        let keys = account.keys.iter().map(key).collect();
        lines.extend([String::new(), grid(["key", "payload", "callers blocked", "on the wire"], keys, 1)]);
    }
    lines.join("\n") + "\n"
}

fn cells(share: &Share) -> Vec<String> {
    let part = |seconds: f64| {
        let percent = if share.step_s > 0.0 { 100.0 * seconds / share.step_s } else { 0.0 };
        format!("{percent:.1} %")
    };
    let parts =
        [share.compute_s, share.push_s, share.straggler_s, share.communication_s, share.packing_s, share.update_s];
    std::iter::once(format_seconds(share.step_s)).chain(parts.map(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::account::RankAccount;

    #[test]
    fn the_table_names_the_straggler_and_the_costliest_keys() {
        let share = Share { step_s: 0.1, compute_s: 0.075, communication_s: 0.025, ..Share::default() };
        let rank = |rank: usize, awaited_s| RankAccount { rank, host: format!("h{rank}"), steps: 3, share, awaited_s };
        let key = |key: &str| KeyAccount { key: key.to_owned(), blocked_s: 0.02, communication_s: 0.04, bytes: 4000 };
        let account = Account {
            steps_by: "marks".to_owned(),
            ranks: vec![rank(0, 0.0), rank(1, 0.012)],
            mean: share,
            keys: vec![key("fc6")],
        };
        let text = render(&account);
        assert!(text.contains("75.0 %") && text.contains("25.0 %") && text.contains("100 ms"), "{text}");
        assert!(text.contains("The other ranks wait longest for rank 1 on h1: 12.0 ms a step"), "{text}");
        assert!(text.contains("fc6") && text.contains("4 kB"), "{text}");
    }
}
