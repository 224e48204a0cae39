//! The notes below a table and on the page: warnings about samples, and the errors of failed variants.

use crate::compare::results::{Comparison, Outcome};
use crate::statistics;
use crate::text::several;

/// Returns warnings and errors, each with the rows that have it.
pub(super) fn notes(results: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    let mut doubts: Vec<(String, Vec<String>)> = Vec::new();
    for row in &results.rows {
        match &row.outcome {
            Outcome::Measured { record, rounds, failure } => {
                let (done, all) = (rounds.len(), several(results.setup.rounds, "round"));
                if let Some(failure) = failure {
                    notes.push(format!("failed: {} after {done} of {all}: {failure}", row.variant));
                } else if done < results.setup.rounds {
                    notes.push(format!("interrupted: {} was measured in {done} of {all}", row.variant));
                }
                for doubt in statistics::warnings(&record.seconds) {
                    let name = row.variant.clone();
                    match doubts.iter_mut().find(|(known, _)| *known == doubt) {
                        Some((_, rows)) => rows.push(name),
                        None => doubts.push((doubt, vec![name])),
                    }
                }
            }
            Outcome::Failed { error } => notes.push(format!("failed: {}: {error}", row.variant)),
            Outcome::Absent { install } => {
                notes.push(format!("absent: {} is not installed\n  hint: {install}", row.variant));
            }
        }
    }
    for scaled in &results.scaling {
        let failed = scaled.rows.iter().filter_map(|row| match &row.outcome {
            Outcome::Failed { error } | Outcome::Measured { failure: Some(error), .. } => Some((row, error)),
            _ => None,
        });
        let workers = several(scaled.workers, "worker");
        notes.extend(failed.map(|(row, error)| format!("failed: {} with {workers}: {error}", row.variant)));
    }
    let stolen = results.stolen.and_then(statistics::doubt_of_stolen).map(|doubt| format!("warning: {doubt}"));
    let warnings = doubts.into_iter().map(|(doubt, rows)| format!("warning: {}: {doubt}", rows.join(", ")));
    stolen.into_iter().chain(warnings).chain(notes).collect()
}
