//! The mode that wins, its lead, and the reason.

use crate::advise::{Advice, PredictedRow};
use ringpull_harness::size::format_size;
use ringpull_harness::text::{format_seconds, several};
use ringpull_harness::variant::Family;

/// Times whose ratio is below this are level, because the simulation is not more exact.
const LEVEL: f64 = 1.05;

/// The sentences, the most important first.
pub fn sentences(advice: &Advice) -> Vec<String> {
    let most = advice.hosts().last().copied().unwrap_or(0);
    let own_and = |hosts, family| best(advice, hosts, Family::Allreduce).zip(best(advice, hosts, family));
    let same = own_and(most, Family::Shared).map(|(own, shared)| on_the_same_hosts(own, shared));
    let ahead = |family| {
        let pairs = advice.hosts().into_iter().filter_map(|hosts| own_and(hosts, family));
        let pairs: Vec<(&PredictedRow, &PredictedRow)> = pairs.collect();
        let ahead: Vec<_> = pairs.iter().copied().filter(|(own, other)| own.step_s > LEVEL * other.step_s).collect();
        (!pairs.is_empty()).then_some(ahead)
    };
    let others = [
        (Family::Shared, "Servers on the workers' hosts are"),
        (Family::Helped, "Allreduce with helpers, on hosts of their own, is"),
        (Family::Dedicated, "Servers on hosts of their own are"),
        (Family::Compressed, "Compressed gradients, which are not the same gradients, are"),
    ];
    let others = others.into_iter().filter_map(|(family, whose)| Some(where_ahead(whose, &ahead(family)?)));
    let all: Vec<String> = same.into_iter().chain(others).collect();
    if all.is_empty()
        && advice.rows.len() > 1
        && !advice.rows.iter().any(|row| row.variant.family() == Family::Allreduce)
    {
        return vec![
            "No verdict: every mode is compared with plain allreduce, so name dist_sync_mpi among --modes too."
                .to_owned(),
        ];
    }
    all
}

/// The fastest row of a family on `hosts` hosts.
fn best(advice: &Advice, hosts: usize, family: Family) -> Option<&PredictedRow> {
    let rows = advice.rows.iter().filter(|row| row.hosts == hosts && row.variant.family() == family);
    rows.min_by(|a, b| a.step_s.total_cmp(&b.step_s))
}

fn on_the_same_hosts(own: &PredictedRow, shared: &PredictedRow) -> String {
    let on = format!("On {}", several(own.hosts, "host"));
    let ratio = shared.step_s / own.step_s;
    let step = |row: &PredictedRow| {
        let [least, most] = if row.is_at_best { ["at least ", "at most "] } else { ["", ""] };
        format!("{least}{} a step, efficiency {most}{:.1} %", format_seconds(row.step_s), 100.0 * row.efficiency)
    };
    if (1.0 / LEVEL..LEVEL).contains(&ratio) {
        let level = if shared.is_at_best { "are level at best" } else { "are level" };
        return format!("{on} {} ({}) and {} ({}) {level}.", own.mode, step(own), shared.mode, step(shared));
    }
    let (first, other) = if ratio > 1.0 { (own, shared) } else { (shared, own) };
    let why = if other.busiest_host_bytes > LEVEL * first.busiest_host_bytes {
        let [one, two] = [first, other].map(|row| format_size(row.busiest_host_bytes));
        format!("its busiest host moves {two} a step, not {one}")
    } else if other.variant == shared.variant {
        "both move the same bytes, but each server takes a message of every worker for every segment".to_owned()
    } else {
        "both move the same bytes, but it moves them later".to_owned()
    };
    let times = other.step_s / first.step_s;
    let (wins, takes) = match (first.is_at_best, other.is_at_best) {
        (true, _) => ("may win", "takes at most"),
        (_, true) => ("wins", "takes at least"),
        _ => ("wins", "takes"),
    };
    format!("{on} {} {wins}: {}. {} {takes} {times:.2}x as long: {why}.", first.mode, step(first), other.mode)
}

/// The sentence on the hosts for which rows are faster than allreduce. `ahead` has these rows, each as a pair
/// with allreduce.
fn where_ahead(whose: &str, ahead: &[(&PredictedRow, &PredictedRow)]) -> String {
    let gain = |(own, other): &(&PredictedRow, &PredictedRow)| own.step_s / other.step_s;
    let Some((own, other)) = ahead.iter().max_by(|a, b| gain(a).total_cmp(&gain(b))) else {
        return format!("{whose} nowhere ahead of plain allreduce by 5 % or more.");
    };
    let (mut all, mut of_servers) = (Vec::new(), Vec::new());
    for (_, other) in ahead {
        all.push(other.hosts.to_string());
        if other.is_at_best {
            of_servers.push(other.hosts.to_string());
        }
    }
    let hosts = all.join(", ");
    let at_best = match of_servers.join(", ") {
        none if none.is_empty() => none,
        hosts => format!(
            " On {hosts} hosts the fastest are servers, which may be behind in fact: measured steps took longer."
        ),
    };
    let ratio = other.step_s / own.step_s;
    let least = if other.is_at_best { "at least " } else { "" };
    let charged = if other.machines > other.hosts {
        format!(
            ", and {least}{:.2}x if its {} hosts are paid",
            ratio * other.machines as f64 / own.machines as f64,
            other.machines
        )
    } else {
        String::new()
    };
    format!(
        "{whose} ahead of plain allreduce on {hosts} hosts, most of all on {}: {} takes {least}{ratio:.2}x its \
         time{charged}.{at_best}",
        own.hosts, other.mode
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::is_at_best;
    use ringpull_harness::variant::Variant;

    fn row(mode: &str, hosts: usize, step_s: f64, busiest_host_bytes: f64) -> PredictedRow {
        let variant: Variant = mode.parse().unwrap();
        let machines = hosts + variant.mode.extra_hosts();
        let (efficiency, exposed_s) = (1.0 / step_s, step_s - 1.0);
        PredictedRow {
            mode: mode.to_owned(),
            hosts,
            machines,
            step_s,
            is_at_best: is_at_best(variant.mode, hosts),
            efficiency,
            exposed_s,
            busiest_host_bytes,
            variant,
        }
    }

    fn of(rows: Vec<PredictedRow>) -> Vec<String> {
        let (model, link) = ("m".to_owned(), "1gbit".to_owned());
        let (assumptions, verdict) = (Vec::new(), Vec::new());
        sentences(&Advice { model, compute_s: 1.0, link, latency_s: 0.0, rows, assumptions, verdict })
    }

    #[test]
    fn the_winner_on_the_same_hosts_is_named_with_the_reason() {
        let more = of(vec![row("dist_sync_mpi", 8, 2.0, 1.75e6), row("dist_sync:1shared", 8, 5.0, 7e6)]);
        assert_eq!(
            more[0],
            "On 8 hosts dist_sync_mpi wins: 2.00 s a step, efficiency 50.0 %. dist_sync:1shared takes 2.50x as long: its busiest host moves 7 MB a step, not 1.75 MB."
        );
        let often = of(vec![row("dist_sync_mpi", 8, 2.0, 7e6), row("dist_sync:8shared", 8, 3.0, 7e6)]);
        assert!(often[0].contains("each server takes a message of every worker"), "{}", often[0]);
        let level = of(vec![row("dist_sync_mpi", 8, 2.0, 7e6), row("dist_sync:8shared", 8, 2.05, 7e6)]);
        assert!(level[0].ends_with("are level."), "{}", level[0]);
        let behind = of(vec![row("dist_sync_mpi", 8, 3.0, 7e6), row("dist_sync:8shared", 8, 2.0, 7e6)]);
        assert!(behind[0].starts_with("On 8 hosts dist_sync:8shared wins: 2.00 s"), "{}", behind[0]);
    }

    #[test]
    fn servers_of_many_workers_win_at_best() {
        let level = of(vec![row("dist_sync_mpi", 32, 2.0, 7e6), row("dist_sync:32shared", 32, 2.05, 7e6)]);
        assert!(level[0].ends_with("are level at best."), "{}", level[0]);
        let behind = of(vec![row("dist_sync_mpi", 32, 2.0, 7e6), row("dist_sync:32shared", 32, 3.0, 7e6)]);
        assert!(behind[0].contains("dist_sync:32shared takes at least 1.50x"), "{}", behind[0]);
        let ahead = of(vec![row("dist_sync_mpi", 32, 3.0, 7e6), row("dist_sync:32shared", 32, 2.0, 7e6)]);
        for part in
            ["dist_sync:32shared may win: at least 2.00 s a step, efficiency at most 50.0 %", "takes at most 1.50x"]
        {
            assert!(ahead[0].contains(part), "{part} in {}", ahead[0]);
        }
        for part in ["takes at least 0.67x its time.", "On 32 hosts the fastest are servers, which may be behind"] {
            assert!(ahead[1].contains(part), "{part} in {}", ahead[1]);
        }
    }

    #[test]
    fn without_plain_allreduce_it_says_why_there_is_no_verdict() {
        let rows = || vec![row("dist_sync_mpi:8helpers", 8, 1.4, 1e6), row("dist_sync:8", 8, 1.5, 1e6)];
        assert!(of(rows())[0].starts_with("No verdict: "), "{:?}", of(rows()));
        assert!(of(vec![row("dist_sync_mpi", 8, 1.4, 1e6)]).is_empty());
    }

    #[test]
    fn rows_that_beat_allreduce_are_named_where_they_do_and_charged_for_their_hosts() {
        let rows = vec![
            row("dist_sync_mpi", 2, 1.0, 1e6),
            row("dist_sync:2", 2, 1.0, 1e6),
            row("dist_sync_mpi", 8, 2.0, 1e6),
            row("dist_sync:8", 8, 1.5, 1e6),
            row("dist_sync_mpi:8helpers", 8, 1.4, 1e6),
            row("dist_sync_mpi+fp16", 8, 1.99, 1e6),
        ];
        assert_eq!(
            of(rows),
            [
                "Allreduce with helpers, on hosts of their own, is ahead of plain allreduce on 8 hosts, most of all on 8: dist_sync_mpi:8helpers takes 0.70x its time, and 1.40x if its 16 hosts are paid.",
                "Servers on hosts of their own are ahead of plain allreduce on 8 hosts, most of all on 8: dist_sync:8 takes 0.75x its time, and 1.50x if its 16 hosts are paid.",
                "Compressed gradients, which are not the same gradients, are nowhere ahead of plain allreduce by 5 % or more.",
            ]
        );
    }
}
