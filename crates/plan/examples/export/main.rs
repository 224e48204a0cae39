//! Writes the plan of every rank of an allreduce for a simulator: GOAL for `LogGOPSim`, or a trace for
//! `smpirun -replay` of `SimGrid`, which posts the messages in the plan's order. A message is posted when the
//! earlier messages that it needs have arrived or left.
//!
//!     cargo run -q --release -p ringpull-plan --example export -- smpi 64 25000000 ring 200e6
//!
//! The arguments are the format, the number of ranks, the payload in bytes, the plan's name or auto, and the
//! rate of a link in bits per second. The rate decides the choice of auto and the length of segments.

mod formats;

use std::process::ExitCode;

use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, DType};
use ringpull_plan::{Model, Schedule, Segments, allreduce, choose, predict};

use formats::{goal, smpi};

/// The part of a link's rate that TCP carries.
const GOODPUT: f64 = 0.956;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(text) = exported(&words) else {
        eprintln!("usage: export goal|smpi RANKS BYTES auto|PLAN BITS_A_SECOND");
        return ExitCode::from(2);
    };
    print!("{text}");
    ExitCode::SUCCESS
}

/// Returns the text for these arguments, or `None` if one of them is invalid.
fn exported(words: &[String]) -> Option<String> {
    let [format, ranks, bytes, algorithm, rate] = words else { return None };
    let (ranks, bytes, rate) = (ranks.parse().ok()?, bytes.parse().ok()?, rate.parse::<f64>().ok()?);
    let bytes_per_us = GOODPUT * rate / 8e6;
    let model = Model {
        latency_us: 50.0,
        short_bytes_per_us: bytes_per_us,
        long_bytes_per_us: bytes_per_us,
        ..Model::default()
    };
    let segments = Segments { most_bytes: Config::default().segment_bytes, is_fixed: false };
    let chosen = match algorithm.parse().ok()? {
        AlgorithmChoice::Auto => choose(&model, bytes, ranks, segments),
        AlgorithmChoice::Plan(algorithm) => predict(&model, algorithm, bytes, ranks, segments),
        _ => return None,
    };
    let write = match format.as_str() {
        "goal" => goal,
        "smpi" => smpi,
        _ => return None,
    };
    let of = |rank| {
        let plan = allreduce(chosen.algorithm, rank, ranks, bytes / 4);
        write(rank, &Schedule::of(&plan, DType::F32, chosen.segment_bytes))
    };
    let heading = if format == "goal" { format!("num_ranks {ranks}\n") } else { String::new() };
    Some(heading + &(0..ranks).map(of).collect::<String>())
}
