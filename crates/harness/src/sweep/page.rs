//! The results of sweeps as one Markdown page, which follows from the samples alone.

use super::{JobTimes, SHORT_BYTES, Sweep, SweepPlan};
use crate::allreduce::REST_MS;
use crate::mode::Mode;
use crate::size::format_payload;
use crate::statistics::{RESOLUTION, Summary};
use crate::text::{format_seconds, several};
use crate::variant::{Peer, Variant};

/// Up to this size the time is limited more by messages and processors than by the link.
const LATENCY_BYTES: u64 = 1 << 16;

fn ours() -> Variant {
    Variant::ours(Mode::Allreduce)
}

/// The variants with their own columns, besides ours and the best of the others.
fn beside() -> [Variant; 2] {
    [Variant::ours_on_mpich(), Variant::theirs(Peer::Mpi, Mode::Allreduce)]
}

/// Our times and those of the best other, for one number of ranks and one size.
struct Match<'a> {
    ours: &'a JobTimes,
    summary: Summary,
    /// The times of the variants of [`beside`].
    beside: [Option<Summary>; 2],
    best: &'a JobTimes,
    best_summary: Summary,
}

impl Match<'_> {
    /// The time of the best other divided by our time.
    fn gain(&self) -> f64 {
        self.best_summary.median / self.summary.median
    }

    /// Our time divided by the bound. `None` for short payloads, because the burst of an idle link carries
    /// much of them.
    fn of_bound(&self) -> Option<f64> {
        Some(self.summary.median / self.ours.bound_s.filter(|_| self.ours.bytes > SHORT_BYTES as u64)?)
    }

    /// Returns true if the best other takes less time than ours.
    fn is_behind(&self) -> bool {
        self.gain() < 1.0 - RESOLUTION
    }

    /// Returns true if the best other takes less time than ours in each of its jobs.
    fn is_lost(&self) -> bool {
        self.is_behind() && self.best_summary.max < self.summary.min
    }
}

/// The page for all of `sweeps`.
pub fn render(sweeps: &[Sweep]) -> String {
    let mut page = "# Allreduce, measured against others\n\n\
        `ringpull compare --sizes` wrote this page from the JSON files beside it. Each command is the one of its day: a later build \
        may have other options. Every sum of every sample was checked, and ours is `auto`, with nothing set by hand.\n\n\
        - A time runs from a barrier to the end of the slowest rank. It is the median of the jobs' medians. The spread behind it is half \
        of their interquartile range; if that is 20 % or more, the quartiles are given instead.\n\
        - The ratio is the best other's time over ours: above 1 ours is faster. The best other is picked in each row, after the fact.\n\
        - *(lost)* marks a row where every job of another program took less time than any of ours, and the medians differ by more than \
        2 %. By chance alone that happens to a row once in 70 times with four jobs of each program, and once in 6 times with two.\n\
        - The bound counts bytes on the links. Up to 1 MiB it is left out: the first burst of a link carries much of such a payload.\n\
        - Before each iteration there is a rest, so the shaper of a link has always saved up the same burst. Without a rest, a slow \
        barrier would make the next sum look fast.\n\
        - Ranks share the cores of one machine, emulated hosts too. With short payloads, a program that polls without yielding loses for \
        that reason alone.\n"
        .to_owned();
    for sweep in sweeps {
        section(&mut page, sweep);
    }
    page
}

fn section(page: &mut String, sweep: &Sweep) {
    let plan = &sweep.plan;
    let links =
        plan.link.bits_per_s().map_or("links without a limit".to_owned(), |_| format!("links of {}", plan.link));
    let place = &sweep.environment;
    page.extend([format!(
        "\n## {}, {links}\n\n{}; {}, {}; ringpull {}, {}; {}, {:.0} minutes.\n\n```\n{}\n```\n\n",
        plan.place,
        place.date,
        place.hardware.words(),
        place.kernel,
        place.ringpull,
        place.mpi,
        samples(plan),
        sweep.took_s / 60.0,
        sweep.command
    )]);
    let matches: Vec<Match> = sweep.plan.ranks.iter().flat_map(|ranks| matches(sweep, *ranks)).collect();
    page.push_str(&verdict(&matches));
    page.push_str(&against_each(sweep));
    for missing in &sweep.missing {
        // The rest is the output of a failed job.
        let what = missing.lines().next().unwrap_or_default();
        page.extend(["\nMissing: ", what.split_once("; its last ").map_or(what, |(what, _)| what), "\n"]);
    }
    let columns: Vec<usize> = (0..2).filter(|at| matches.iter().any(|of| of.beside[*at].is_some())).collect();
    let head: String = columns.iter().flat_map(|at| [" ".to_owned(), beside()[*at].words(), " |".to_owned()]).collect();
    let rule = " --- |".repeat(columns.len());
    for ranks in &plan.ranks {
        let ranks_words = several(*ranks, "rank");
        page.extend([format!(
            "\n| {ranks_words} | ours | of the bound |{head} best other | its time | ratio |\n| --- | --- | --- |{rule} --- | --- | --- |\n"
        )]);
        let cells = |of: &Match| -> String {
            let cell = |at: &usize| of.beside[*at].as_ref().map_or("-".to_owned(), time);
            columns.iter().flat_map(|at| [" ".to_owned(), cell(at), " |".to_owned()]).collect()
        };
        page.extend(matches.iter().filter(|of| of.ours.ranks == *ranks).map(|of| {
            format!(
                "| {} | {} | {} |{} {} | {} | {:.2}{} |\n",
                format_payload(of.ours.bytes),
                time(&of.summary),
                of.of_bound().map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
                cells(of),
                words(of.best),
                time(&of.best_summary),
                of.gain(),
                if of.is_lost() { " (lost)" } else { "" },
            )
        }));
    }
}

/// The number of rounds and iterations, in words.
fn samples(plan: &SweepPlan) -> String {
    let (short, long): (Vec<usize>, Vec<usize>) = plan.sizes.iter().partition(|bytes| **bytes <= SHORT_BYTES);
    let limit = format_payload(SHORT_BYTES as u64);
    let words = |sizes: &[usize], which: String| {
        let bytes = *sizes.first()?;
        let (rounds, iters) = (several(plan.rounds_of(bytes), "round"), plan.iters_of(bytes));
        Some(format!("{rounds} of {} {which}", several(iters, "iteration")))
    };
    let both = [words(&short, format!("up to {limit}")), words(&long, format!("beyond {limit}"))];
    let rest = Some(format!("each after {REST_MS} ms of rest"));
    both.into_iter().flatten().chain(rest).collect::<Vec<_>>().join(", ")
}

fn time(summary: &Summary) -> String {
    /// With a larger spread the quartiles are printed instead.
    const WIDE: f64 = 0.2;
    let (median, spread) = (format_seconds(summary.median), summary.relative_spread());
    if spread < WIDE {
        return format!("{median} +-{:.0} %", 100.0 * spread);
    }
    format!("{median} ({} to {})", format_seconds(summary.q1), format_seconds(summary.q3))
}

/// The variant of a record, by its present or an earlier name.
fn who(record: &JobTimes) -> Option<Variant> {
    record.mode.parse().ok()
}

fn words(record: &JobTimes) -> String {
    who(record).map_or(record.mode.clone(), Variant::words)
}

fn is_ours(record: &JobTimes) -> bool {
    who(record).is_some_and(|variant| variant.peer.is_none())
}

fn matches(sweep: &Sweep, ranks: usize) -> Vec<Match<'_>> {
    let of_size = |bytes: &usize| {
        let here = || sweep.records.iter().filter(|it| it.ranks == ranks && it.bytes == *bytes as u64);
        let of = |variant: Variant| here().find(|it| who(it) == Some(variant));
        let own = of(ours())?;
        let others = here().filter(|it| !is_ours(it)).filter_map(|it| Some((it, it.summary()?)));
        let (best, best_summary) = others.min_by(|a, b| a.1.median.total_cmp(&b.1.median))?;
        Some(Match {
            ours: own,
            summary: own.summary()?,
            beside: beside().map(|variant| of(variant).and_then(JobTimes::summary)),
            best,
            best_summary,
        })
    };
    sweep.plan.sizes.iter().filter_map(of_size).collect()
}

fn verdict(matches: &[Match]) -> String {
    if matches.is_empty() {
        return "Nothing was measured against others.\n".to_owned();
    }
    let logs: f64 = matches.iter().map(|of| of.gain().ln()).sum();
    let mut text = format!(
        "In {} of ranks and size, the best other takes {:.2}x our time (geometric mean). It takes less time than ours in {}; {} of these count as lost.\n",
        several(matches.len(), "combination"),
        (logs / matches.len() as f64).exp(),
        matches.iter().filter(|of| of.is_behind()).count(),
        matches.iter().filter(|of| of.is_lost()).count(),
    );
    let bounded = matches.iter().filter(|of| of.ours.bytes >= 25_000_000);
    let bounded = bounded.filter_map(|of| Some((of, of.of_bound()?)));
    if let Some((worst, ratio)) = bounded.max_by(|a, b| a.1.total_cmp(&b.1)) {
        text.extend([format!(
            "Among payloads of 25 MB and more, {} on {} is farthest from the bound: {:.3} times the bound.\n",
            format_payload(worst.ours.bytes),
            several(worst.ours.ranks, "rank"),
            ratio
        )]);
    }
    text
}

/// For each other, the geometric mean of its time divided by our time: our gain over a program that uses this
/// other for all sizes.
fn against_each(sweep: &Sweep) -> String {
    let own = |of: &JobTimes| {
        let alike = |it: &&JobTimes| (it.ranks, it.bytes) == (of.ranks, of.bytes) && who(it) == Some(ours());
        Some(sweep.records.iter().find(alike)?.summary()?.median)
    };
    let mean = |variant: Variant, of_size: &dyn Fn(u64) -> bool| {
        let records = sweep.records.iter().filter(|it| who(it) == Some(variant) && of_size(it.bytes));
        let logs: Vec<f64> = records.filter_map(|it| Some((it.summary()?.median / own(it)?).ln())).collect();
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        if logs.is_empty() { "-".to_owned() } else { format!("{mean:.2}x") }
    };
    let others = Variant::allreduces().into_iter().filter(|it| it.peer.is_some());
    let measured = others.filter(|variant| sweep.records.iter().any(|it| who(it) == Some(*variant)));
    let mut table = format!(
        "\n| geometric mean of its time over ours | all | up to {short} | longer |\n| --- | --- | --- | --- |\n",
        short = format_payload(LATENCY_BYTES)
    );
    table.extend(measured.map(|variant| {
        let [all, short, long] = [
            mean(variant, &|_| true),
            mean(variant, &|bytes| bytes <= LATENCY_BYTES),
            mean(variant, &|bytes| bytes > LATENCY_BYTES),
        ];
        format!("| {} | {all} | {short} | {long} |\n", variant.words())
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::tests::swept;

    #[test]
    fn the_page_has_a_row_for_each_size_and_names_missing_contenders() {
        let (results, _) = swept();
        let page = render(&[results]);
        for part in [
            "## 3 emulated hosts, links of 1gbit",
            "4 rounds of 10 iterations up to 1 MiB, 2 rounds of 1 iteration beyond 1 MiB, each after 2 ms of rest, ",
            "ringpull compare --hosts 3",
            "In 6 combinations of ranks and size, the best other takes 2.00x our time (geometric mean). It takes less time than ours in 0; 0 of these count as lost.",
            "| 2 ranks | ours | of the bound | ours on MPICH | MPI_Allreduce | best other |",
            "| 1 MiB | 1.05 ms +-0 % | - | 524 us +-0 % | 2.10 ms +-0 % |",
            "| 10 MB | 10.0 ms +-0 % | 0.125 | 5.00 ms +-0 % | 20.0 ms +-0 % |",
            "| MPI_Allreduce | 2.00x | 2.00x | 2.00x |",
            "Missing: horovod is not installed",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }

    #[test]
    fn a_row_where_another_is_faster_is_lost() {
        let (mut results, _) = swept();
        for record in &mut results.records {
            if record.mode == "mpi" && record.bytes == 4 && record.ranks == 2 {
                record.seconds.iter_mut().for_each(|sample| *sample /= 10.0);
            }
        }
        let page = render(&[results]);
        assert!(page.contains("0.20 (lost)") && page.contains("than ours in 1; 1 of these count as lost."), "{page}");
    }

    #[test]
    fn a_row_where_one_of_our_jobs_is_as_fast_is_not_lost() {
        let (mut results, _) = swept();
        for record in results.records.iter_mut().filter(|record| record.bytes == 4 && record.ranks == 2) {
            match record.mode.as_str() {
                "dist_sync_mpi" => record.seconds[0] /= 10.0,
                "mpi" => record.seconds.iter_mut().for_each(|sample| *sample /= 10.0),
                _ => {}
            }
        }
        let page = render(&[results]);
        assert!(page.contains("0.20 |") && page.contains("than ours in 1; 0 of these count as lost."), "{page}");
    }

    #[test]
    fn the_committed_page_follows_from_the_committed_files() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/results");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let stored = ["hosts8-1gbit.json", "local.json"].map(|name| serde_json::from_str(&read(name)).unwrap());
        crate::committed::keep("benches/results/README.md", &render(&stored));
    }
}
