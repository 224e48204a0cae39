//! Suggests the existing name that a misspelt one may mean.

/// Returns the name in `names` that is closest to `given`, if at most a third of its letters differ.
pub fn closest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = given.to_lowercase();
    let (edits, name) = names.into_iter().map(|name| (edits(&lower, name), name)).min_by_key(|(edits, _)| *edits)?;
    (3 * edits <= name.chars().count() && !given.is_empty()).then_some(name)
}

/// `; did you mean NAME?`, or nothing.
pub fn did_you_mean<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    closest(given, names).map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// Returns the number of letters to insert, remove, replace or swap with the next one that turns `from` into
/// `to`.
fn edits(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    // table[i][j]: from the first i letters to the first j.
    let mut table = vec![vec![0; to.len() + 1]; from.len() + 1];
    for i in 0..=from.len() {
        for j in 0..=to.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = table[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
                let best = replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                let is_swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
                if is_swapped { best.min(table[i - 2][j - 2] + 1) } else { best }
            };
        }
    }
    table[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_are_distinguished_from_other_words() {
        let names = ["ring", "direct", "ordered", "dist_sync_mpi", "dist_sync"];
        for (given, meant) in [
            ("rign", Some("ring")),
            ("Ring", Some("ring")),
            ("dirct", Some("direct")),
            ("order", Some("ordered")),
            ("dist_sync_mpl", Some("dist_sync_mpi")),
            ("dist_snyc", Some("dist_sync")),
            ("", None),
            ("horovod", None),
            ("r", None),
        ] {
            assert_eq!(closest(given, names), meant, "{given}");
        }
        assert_eq!(did_you_mean("rign", names), "; did you mean ring?");
        assert_eq!(did_you_mean("x", names), "");
    }
}
