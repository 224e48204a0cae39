//! The picture of the book that shows the plans of four ranks, drawn from the plans themselves.

#[path = "../../../tests/committed/mod.rs"]
mod committed;

use std::fmt::Write as _;

use crate::{Algorithm, Move, Plan, ReceiveAction, allreduce};

const RANKS: usize = 4;
const LEN: usize = 1200;

/// A message in the picture. It leaves at the beginning of its round.
struct Arrow {
    round: usize,
    from: usize,
    to: usize,
    elements: usize,
    then: ReceiveAction,
}

/// Returns the round of each message, if all take one round, and a rank sends one and receives one at a time.
fn rounds(plans: &[Plan]) -> Vec<Arrow> {
    let mut left: Vec<Vec<Move>> = plans.iter().map(|plan| plan.moves.clone()).collect();
    let (mut drawn, mut round) = (Vec::new(), 0);
    while left.iter().any(|moves| !moves.is_empty()) {
        let ready: Vec<(usize, usize)> = (0..RANKS).filter_map(|from| Some((from, ready_send(&left[from])?))).collect();
        let mut receives = [false; RANKS];
        let count = drawn.len();
        for (from, send) in ready {
            let (to, parts) = (left[from][send].peer(), left[from][send].parts());
            let is_receive = |step: &Move| matches!(step, Move::Recv { from: peer, .. } if *peer == from);
            let receive = left[to].iter().position(is_receive).expect("a receive for each send");
            let Move::Recv { then, .. } = left[to][receive] else { unreachable!("it was found as one") };
            if std::mem::replace(&mut receives[to], true) {
                continue;
            }
            left[to].remove(receive);
            let send = left[from].iter().position(|step| matches!(step, Move::Send { .. })).expect("the same send");
            left[from].remove(send);
            drawn.push(Arrow { round, from, to, elements: plans[from].parts.range(parts).len(), then });
        }
        assert!(drawn.len() > count, "a plan makes progress in every round");
        round += 1;
    }
    drawn
}

/// The index of a rank's first send, if all that it needs has been received.
fn ready_send(moves: &[Move]) -> Option<usize> {
    let at = moves.iter().position(|step| matches!(step, Move::Send { .. }))?;
    let parts = moves[at].parts();
    let overlaps = |step: &Move| step.parts().start < parts.end && parts.start < step.parts().end;
    (!moves[..at].iter().any(overlaps)).then_some(at)
}

const WIDTH: usize = 760;
const PANEL: (usize, usize) = (368, 176);

/// Draws one algorithm, with a line for each rank and an arrow for each message.
fn panel(algorithm: Algorithm, x: usize, y: usize, svg: &mut String) {
    let plans: Vec<Plan> = (0..RANKS).map(|rank| allreduce(algorithm, rank, RANKS, LEN)).collect();
    let messages = rounds(&plans);
    let count = messages.iter().map(|message| message.round + 1).max().unwrap_or(0);
    let busiest = plans.iter().map(Plan::sent_len).max().unwrap_or(0) as f64 / LEN as f64;
    let (left, right) = (50, PANEL.0 - 30);
    writeln!(svg, "<g transform=\"translate({x} {y})\">").unwrap();
    writeln!(svg, "<text class=\"name\" x=\"0\" y=\"14\">{algorithm}</text>").unwrap();
    let cost = format!("{count} rounds, a rank sends up to {busiest} payloads");
    writeln!(svg, "<text class=\"soft\" x=\"{right}\" y=\"14\" text-anchor=\"end\">{cost}</text>").unwrap();
    let lane = |rank: usize| 42 + 34 * rank;
    for rank in 0..RANKS {
        let y = lane(rank);
        writeln!(svg, "<text class=\"soft\" x=\"0\" y=\"{}\">rank {rank}</text>", y + 4).unwrap();
        writeln!(svg, "<line class=\"lane\" x1=\"{left}\" x2=\"{right}\" y1=\"{y}\" y2=\"{y}\"/>").unwrap();
    }
    let column = |round: usize| left + (right - left) * round / count;
    for Arrow { round, from, to, elements, then } in messages {
        let class = if then == ReceiveAction::Reduce { "reduce" } else { "copy" };
        let width = 1.2 + 2.8 * elements as f64 / LEN as f64;
        let at = format!(
            "x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"",
            column(round) + 4,
            lane(from),
            column(round + 1) - 7,
            lane(to)
        );
        writeln!(svg, "<line class=\"{class}\" stroke-width=\"{width:.1}\" marker-end=\"url(#{class})\" {at}/>")
            .unwrap();
    }
    svg.push_str("</g>\n");
}

const STYLE: &str = r#"
svg { --paper: #fbfaf7; --ink: #1d1f24; --soft: #5f636d; --rule: #dcd9d1; --reduce: #0b6e69; --copy: #c2662d; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #16181c; --ink: #e8e6e1; --soft: #a2a5ad; --rule: #34373d; --reduce: #3fb5ad; --copy: #e58f58; }
}
text { fill: var(--ink); font: 12px ui-sans-serif, system-ui, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif; }
text.name { font-weight: 650; font-size: 14px; }
text.soft { fill: var(--soft); }
line.lane { stroke: var(--rule); stroke-width: 2; }
line.reduce { stroke: var(--reduce); }
line.copy { stroke: var(--copy); }
path.reduce { fill: var(--reduce); }
path.copy { fill: var(--copy); }
rect.paper { fill: var(--paper); }
"#;

#[test]
fn the_picture_of_plans_shows_every_algorithm() {
    let height = 60 + Algorithm::ALL.len().div_ceil(2) * PANEL.1;
    let title = "The plans of four ranks";
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n<defs>\n"
    );
    for class in ["reduce", "copy"] {
        let form = "viewBox=\"0 0 8 8\" refX=\"4\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\"";
        let path = format!("<path class=\"{class}\" d=\"M0 0L8 4L0 8z\"/>");
        writeln!(svg, "<marker id=\"{class}\" {form} markerUnits=\"userSpaceOnUse\" orient=\"auto\">{path}</marker>")
            .unwrap();
    }
    writeln!(svg, "</defs>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"100%\" rx=\"8\"/>").unwrap();
    for (class, x, words) in [("reduce", 24, "the receiver adds"), ("copy", 190, "the receiver keeps what arrives")] {
        let line = format!("x1=\"{x}\" x2=\"{}\" y1=\"27\" y2=\"27\"", x + 22);
        writeln!(svg, "<line class=\"{class}\" stroke-width=\"2\" marker-end=\"url(#{class})\" {line}/>").unwrap();
        writeln!(svg, "<text class=\"soft\" x=\"{}\" y=\"31\">{words}</text>", x + 36).unwrap();
    }
    for (index, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        panel(algorithm, 24 + PANEL.0 * (index % 2), 56 + PANEL.1 * (index / 2), &mut svg);
    }
    svg.push_str("</svg>\n");
    committed::keep("docs/pictures/plans.svg", &svg);
}
