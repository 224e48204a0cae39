//! The results of sweeps as one Markdown page. Every word follows from the samples.

use super::{Contender, Results};
use crate::harness::compare::table::{format_seconds, several};
use crate::harness::record::Record;
use crate::harness::size::format_size;
use crate::harness::statistics::Summary;

/// Payloads up to here are decided by messages and turns on the processors more than by the link.
const LATENCY_BYTES: u64 = 1 << 16;

/// Ours beside the best of the others, for one number of ranks and one size.
struct Match<'a> {
    ours: &'a Record,
    summary: Summary,
    on_mpich: Option<Summary>,
    best: &'a Record,
    best_summary: Summary,
}

impl Match<'_> {
    /// How many times our time the best of the others takes.
    fn gain(&self) -> f64 {
        self.best_summary.median / self.summary.median
    }

    fn is_lost(&self) -> bool {
        self.gain() < 1.0 && self.summary.differs_from(&self.best_summary)
    }
}

/// The page for all of `sweeps`.
pub fn render(sweeps: &[Results]) -> String {
    let mut page = "# Allreduce, measured against others\n\n\
        Generated from the JSON files beside it by `ringpull sweep --report`. Every sum of every sample was checked. Times are from a \
        barrier to the slowest rank's end, the median of all samples, with half the middle half as spread; the ratio is the best \
        other's time over ours, so above 1 is in our favour. *Lost* is what another does in less time beyond noise: the middle halves \
        of the samples do not touch and the medians differ by more than 2 %. Nothing was set by hand: ours is `auto`.\n"
        .to_owned();
    for sweep in sweeps {
        section(&mut page, sweep);
    }
    page
}

fn section(page: &mut String, sweep: &Results) {
    let plan = &sweep.plan;
    let links =
        plan.link.bits_per_s().map_or("links without a limit".to_owned(), |_| format!("links of {}", plan.link));
    let place = &sweep.environment;
    page.extend([format!(
        "\n## {}, {links}\n\n{}; {} cores, {}; ringpull {}, {}; {} of {} short iterations, {} of {} long ones, {:.0} minutes.\n\n```\n{}\n```\n\n",
        plan.place,
        place.date,
        place.cores,
        place.kernel,
        place.ringpull,
        place.mpi,
        several(plan.rounds.max(plan.short_rounds), "round"),
        plan.short_iters,
        several(plan.rounds, "round"),
        plan.long_iters,
        sweep.took_s / 60.0,
        sweep.command
    )]);
    let matches: Vec<Match> = sweep.plan.ranks.iter().flat_map(|ranks| matches(sweep, *ranks)).collect();
    page.push_str(&verdict(&matches));
    page.push_str(&against_each(sweep));
    for missing in &sweep.missing {
        // Only the first line: the rest is what a failed job wrote.
        let what = missing.lines().next().unwrap_or_default();
        page.extend(["\nMissing: ", what.strip_suffix("; its last words:").unwrap_or(what), "\n"]);
    }
    let has_mpich = matches.iter().any(|of| of.on_mpich.is_some());
    let (head, rule) = if has_mpich { (" ours on MPICH |", " --- |") } else { ("", "") };
    for ranks in &plan.ranks {
        let ranks_words = several(*ranks, "rank");
        page.extend([format!(
            "\n| {ranks_words} | ours | of the bound |{head} best other | its time | ratio |\n| --- | --- | --- |{rule} --- | --- | --- |\n"
        )]);
        let on_mpich = |of: &Match| {
            let cell = of.on_mpich.as_ref().map_or("-".to_owned(), time);
            if has_mpich { format!(" {cell} |") } else { String::new() }
        };
        page.extend(matches.iter().filter(|of| of.ours.ranks == *ranks).map(|of| {
            format!(
                "| {} | {} | {} |{} {} | {} | {:.2}{} |\n",
                format_size(of.ours.bytes as f64),
                time(&of.summary),
                of.ours.ratio_to_bound.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
                on_mpich(of),
                words(&of.best.mode),
                time(&of.best_summary),
                of.gain(),
                if of.is_lost() { " (lost)" } else { "" },
            )
        }));
    }
}

fn time(summary: &Summary) -> String {
    format!("{} +-{:.0} %", format_seconds(summary.median), 100.0 * summary.relative_spread())
}

fn words(mode: &str) -> String {
    mode.parse::<Contender>().map_or(mode.to_owned(), Contender::words)
}

fn is_ours(record: &Record) -> bool {
    record.mode.parse().is_ok_and(Contender::is_ours)
}

fn matches(sweep: &Results, ranks: usize) -> Vec<Match<'_>> {
    let of_size = |bytes: &usize| {
        let here = || sweep.records.iter().filter(|it| it.ranks == ranks && it.bytes == *bytes as u64);
        let of = |contender: Contender| here().find(|it| it.mode == contender.to_string());
        let own = of(Contender::Ours)?;
        let best = here().filter(|it| !is_ours(it)).min_by(|a, b| a.median_s.total_cmp(&b.median_s))?;
        Some(Match {
            ours: own,
            summary: Summary::of(&own.seconds)?,
            on_mpich: of(Contender::OursOnMpich).and_then(|it| Summary::of(&it.seconds)),
            best,
            best_summary: Summary::of(&best.seconds)?,
        })
    };
    sweep.plan.sizes.iter().filter_map(of_size).collect()
}

fn verdict(matches: &[Match]) -> String {
    if matches.is_empty() {
        return "Nothing was measured against others.\n".to_owned();
    }
    let logs: f64 = matches.iter().map(|of| of.gain().ln()).sum();
    let lost: Vec<&Match> = matches.iter().filter(|of| of.is_lost()).collect();
    let mut text = format!(
        "Over {} of ranks and size, against the best of the others in each: geometric mean {:.2}x, {} lost.\n",
        several(matches.len(), "combination"),
        (logs / matches.len() as f64).exp(),
        lost.len()
    );
    let bounded: Vec<&Match> =
        matches.iter().filter(|of| of.ours.bytes >= 25_000_000 && of.ours.ratio_to_bound.is_some()).collect();
    let ratio = |of: &&Match| of.ours.ratio_to_bound.unwrap_or(f64::NAN);
    if let Some(worst) = bounded.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b))) {
        text.extend([format!(
            "Of payloads from 25 MB on the farthest from the bound is {} on {}: {:.3} of it.\n",
            format_size(worst.ours.bytes as f64),
            several(worst.ours.ranks, "rank"),
            ratio(worst)
        )]);
    }
    text
}

/// The geometric mean of each other's time over ours: what a program gains that has chosen one of them for everything.
fn against_each(sweep: &Results) -> String {
    let own = |of: &Record| {
        let alike =
            |it: &&Record| (it.ranks, it.bytes) == (of.ranks, of.bytes) && it.mode == Contender::Ours.to_string();
        sweep.records.iter().find(alike).map(|it| it.median_s)
    };
    let mean = |mode: &str, of_size: &dyn Fn(u64) -> bool| {
        let records = sweep.records.iter().filter(|it| it.mode == mode && of_size(it.bytes));
        let logs: Vec<f64> = records.filter_map(|it| Some((it.median_s / own(it)?).ln())).collect();
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        if logs.is_empty() { "-".to_owned() } else { format!("{mean:.2}x") }
    };
    let others: Vec<String> = Contender::all().iter().filter(|it| !it.is_ours()).map(ToString::to_string).collect();
    let measured = others.iter().filter(|mode| sweep.records.iter().any(|it| it.mode == **mode));
    let mut table = format!(
        "\n| geometric mean of its time over ours | all | up to {short} | longer |\n| --- | --- | --- | --- |\n",
        short = format_size(LATENCY_BYTES as f64)
    );
    table.extend(measured.map(|mode| {
        let [all, short, long] = [
            mean(mode, &|_| true),
            mean(mode, &|bytes| bytes <= LATENCY_BYTES),
            mean(mode, &|bytes| bytes > LATENCY_BYTES),
        ];
        format!("| {} | {all} | {short} | {long} |\n", words(mode))
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::sweep::tests::swept;

    #[test]
    fn the_page_has_a_row_for_each_size_and_says_what_was_missing() {
        let (results, _) = swept();
        let page = render(&[results]);
        for part in [
            "## 3 emulated hosts, links of 1gbit",
            "3 rounds of 4 short iterations, 2 rounds of 1 long ones, ",
            "ringpull sweep --hosts 3",
            "Over 6 combinations of ranks and size, against the best of the others in each: geometric mean 2.00x, 0 lost.",
            "| 2 ranks | ours | of the bound | ours on MPICH |",
            "| 4 B | 1.00 us +-0 % | 31.375 | 0.50 us +-0 % |",
            "| Open MPI, its choice | 2.00x | 2.00x | 2.00x |",
            "Missing: horovod is not installed",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }

    #[test]
    fn what_another_does_faster_is_called_lost() {
        let (mut results, _) = swept();
        for record in &mut results.records {
            if record.mode == "openmpi:default" && record.bytes == 4 && record.ranks == 2 {
                record.seconds.iter_mut().for_each(|sample| *sample /= 10.0);
                record.median_s /= 10.0;
            }
        }
        let page = render(&[results]);
        assert!(page.contains("0.20 (lost)") && page.contains(", 1 lost."), "{page}");
    }
}
