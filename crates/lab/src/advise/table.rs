//! The advice for a terminal, and as a chart.

use crate::advise::{Advice, COMPARED_HOSTS, Choice, PredictedRow};
use ringpull_harness::charts::{self, Curve, Curves};
use ringpull_harness::text::{format_seconds, grid};

/// Two grids with a row for each mode, the assumptions, and the verdict.
pub fn render(advice: &Advice, choices: &[Choice]) -> String {
    let mut lines = vec![
        format!("training steps of {}", headline(advice)),
        String::new(),
        by_hosts(advice, choices, "efficiency, %, on hosts:", percent),
        String::new(),
        by_hosts(advice, choices, "step, s, on hosts:", step),
        String::new(),
    ];
    lines.extend([
        "n: the number of workers' hosts. dist_sync:K has K servers on hosts of their own, dist_sync:Kshared on the workers'."
            .to_owned(),
        "efficiency: computing / step. Every figure is predicted:".to_owned(),
    ]);
    lines.extend(advice.assumptions.iter().map(|line| format!("- {line}")));
    if advice.hosts().last().is_some_and(|most| *most > COMPARED_HOSTS) {
        lines.push(format!("*: on more hosts than any of these measurements ({COMPARED_HOSTS})."));
    }
    lines.push(String::new());
    lines.extend(advice.verdict.iter().cloned());
    lines.join("\n") + "\n"
}

/// The subject of the prediction, in one line.
pub fn headline(advice: &Advice) -> String {
    let compute = format_seconds(advice.compute_s);
    format!(
        "{}, {compute} of computing, links of {}, latency {}",
        advice.model,
        advice.link,
        format_seconds(advice.latency_s)
    )
}

fn percent(row: &PredictedRow) -> String {
    format!("{}{:.1}", if row.is_at_best { "<" } else { "" }, 100.0 * row.efficiency)
}

fn step(row: &PredictedRow) -> String {
    format!("{}{}", if row.is_at_best { ">" } else { "" }, seconds(row.step_s))
}

/// Seconds with three digits, and at most four places after the point.
fn seconds(value: f64) -> String {
    let decimals = (2 - value.max(1e-4).log10().floor() as i32).clamp(0, 4);
    format!("{value:.*}", decimals as usize)
}

fn by_hosts(advice: &Advice, choices: &[Choice], title: &str, cell: impl Fn(&PredictedRow) -> String) -> String {
    let hosts = advice.hosts();
    let number = |hosts: &usize| format!("{hosts}{}", if *hosts > COMPARED_HOSTS { "*" } else { "" });
    let head = std::iter::once(title.to_owned()).chain(hosts.iter().map(number));
    let rows = choices.iter().map(|choice| {
        let cells =
            hosts.iter().map(|hosts| advice.row(*hosts, choice.variant(*hosts)).map_or_else(String::new, &cell));
        std::iter::once(choice.name.clone()).chain(cells).collect()
    });
    grid(head, rows.collect(), 1)
}

/// Efficiency over the number of hosts.
pub fn curves(advice: &Advice, choices: &[Choice]) -> Curves {
    let curve = |choice: &Choice| {
        let point = |hosts: &usize| Some((*hosts, 100.0 * advice.row(*hosts, choice.variant(*hosts))?.efficiency));
        Curve {
            name: choice.name.clone(),
            family: Some(choice.variant(2).family()),
            points: advice.hosts().iter().filter_map(point).collect(),
            published: None,
        }
    };
    Curves {
        id: "advice",
        title: "Predicted scaling efficiency by number of hosts",
        axis: if advice.rows.iter().any(|row| row.is_at_best) {
            "per cent of a step that computes, over the number of hosts; at best with servers of many workers"
        } else {
            "per cent of a step that computes, over the number of hosts"
        },
        by_doubling: true,
        of_variants: choices.iter().map(curve).collect(),
        tick: charts::percent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::predict::Setting;
    use crate::advise::{assumptions, rows};
    use ringpull_harness::layers;

    fn advice(hosts: &[usize]) -> Advice {
        let network = layers::load("resnet50", 0.1).unwrap();
        let (link_bytes_per_s, latency_s) = (1.25e9, 50e-6);
        let setting = Setting { network, compute_s: 0.02, link_bytes_per_s, own: Vec::new(), latency_s };
        let rows = rows(&setting, (&Choice::all(), false), hosts).unwrap();
        let (model, link, verdict) = ("m".to_owned(), "10gbit".to_owned(), vec!["it wins".to_owned()]);
        let assumptions = assumptions(&setting, &link, &rows);
        Advice { model, compute_s: 0.02, link, latency_s: 50e-6, rows, assumptions, verdict }
    }

    #[test]
    fn every_choice_has_a_line_with_a_cell_for_each_number_of_hosts_and_every_mode_a_row() {
        let advice = advice(&[1, 2, 8]);
        let modes = |hosts: usize| advice.rows.iter().filter(|row| row.hosts == hosts).count();
        assert_eq!([modes(1), modes(2), modes(8)], [6, 8, 10], "of few hosts some choices are the same mode");
        let text = render(&advice, &Choice::all());
        for choice in Choice::all() {
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("{} ", choice.name))).collect();
            assert_eq!(lines.len(), 2, "{} in {text}", choice.name);
            let cells = lines.iter().map(|line| line[choice.name.len()..].split_whitespace().count());
            assert!(cells.clone().all(|count| count == 3), "{lines:?}");
        }
        assert!(!text.contains("8*") && !text.contains("than any of these measurements"), "{text}");
        let beyond = render(&self::advice(&[64, 128]), &Choice::all());
        assert!(beyond.contains("128*\n") && beyond.contains("than any of these measurements"), "{beyond}");
        assert!(text.contains("of which TCP carries 95.6 %; 50.0 us") && text.ends_with("\n\nit wins\n"), "{text}");
    }

    #[test]
    fn what_is_at_best_is_marked_in_both_tables_and_in_the_chart_and_explained() {
        let [few, many] = [[8, 16], [16, 32]].map(|hosts| {
            let advice = advice(&hosts);
            let axis = curves(&advice, &Choice::all()).axis;
            let json = serde_json::to_value(&advice).unwrap();
            assert_eq!(json["rows"][0]["is_at_best"], false, "{json}");
            (render(&advice, &Choice::all()), axis)
        });
        let cells = |text: &str, mode: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| line.split_whitespace().next() == Some(mode));
            lines.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")).collect()
        };
        let [efficiency, step] = &cells(&many.0, "dist_sync:1shared")[..] else { panic!("two tables: {}", many.0) };
        assert!(efficiency.matches('<').count() == 1 && efficiency.contains(" <"), "{efficiency}");
        assert!(step.matches('>').count() == 1 && step.contains(" >"), "{step}");
        assert!(!cells(&many.0, "dist_sync_mpi").concat().contains(['<', '>']), "{}", many.0);
        assert!(many.0.contains("- At best (< and >): ") && many.1.contains("at best"), "{} {}", many.0, many.1);
        assert!(!few.0.contains(['<', '>']) && !few.1.contains("at best"), "{} {}", few.0, few.1);
    }

    #[test]
    fn times_have_three_digits() {
        let all = [474.2, 14.44, 2.184, 0.9271, 0.0123, 0.000_01].map(seconds);
        assert_eq!(all, ["474", "14.4", "2.18", "0.927", "0.0123", "0.0000"]);
    }
}
