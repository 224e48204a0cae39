//! The shortest step that any schedule of the communication can reach.
//!
//! A gradient is there when its layer's backward pass ends; its sum is needed when the next forward pass comes to its
//! layer. Between the two it takes its own time on the link, which carries one thing at a time but may interrupt it. This is
//! one machine with release times and delivery times; serving whatever has the longest way to go after it, and
//! interrupting for what is longer still, is optimal (Jackson's rule with preemption).

use crate::layers::Network;

/// The part of a step's computing that is the backward pass.
pub const BACKWARD: f64 = 2.0 / 3.0;

struct Job {
    release: f64,
    left: f64,
    tail: f64,
}

/// The least seconds of a step that computes for `compute_s`, where `link_s` is how long each key's sum takes on the link.
pub fn shortest_step_s(network: &Network, compute_s: f64, link_s: &[f64]) -> f64 {
    let (mut clock, mut after) = (0.0, compute_s * (1.0 - BACKWARD));
    let mut jobs: Vec<Job> = Vec::new();
    for layer in network.layers.iter().rev() {
        clock += compute_s * BACKWARD * layer.part;
        jobs.push(Job { release: clock, left: link_s[layer.keys.clone()].iter().sum(), tail: 0.0 });
    }
    for (job, layer) in jobs.iter_mut().rev().zip(&network.layers) {
        job.tail = after;
        after -= compute_s * (1.0 - BACKWARD) * layer.part;
    }
    makespan(jobs).max(compute_s)
}

fn makespan(mut jobs: Vec<Job>) -> f64 {
    let (mut now, mut end) = (0.0f64, 0.0f64);
    while jobs.iter().any(|job| job.left > 0.0) {
        let open = |job: &&mut Job| job.left > 0.0;
        let next = jobs.iter().filter(|job| job.left > 0.0 && job.release > now).map(|job| job.release);
        let next = next.fold(f64::INFINITY, f64::min);
        let ready = jobs.iter_mut().filter(open).filter(|job| job.release <= now);
        let Some(job) = ready.max_by(|a, b| a.tail.total_cmp(&b.tail)) else {
            now = next;
            continue;
        };
        let until = (now + job.left).min(next);
        // What rounding leaves over is nothing.
        job.left = if until < next { 0.0 } else { job.left - (until - now) };
        now = until;
        if job.left <= 0.0 {
            end = end.max(now + job.tail);
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers;

    fn link(network: &Network, bytes_per_s: f64) -> Vec<f64> {
        network.keys.iter().map(|key| 1.75 * 4.0 * key.len() as f64 / bytes_per_s).collect()
    }

    #[test]
    fn the_published_testbed_could_hide_all_but_a_thousandth() {
        let vgg = layers::load("vgg16", 1.0).unwrap();
        let step = shortest_step_s(&vgg, 2.184, &link(&vgg, 1.25e9));
        assert!((0.999..1.0).contains(&(2.184 / step)), "{}", 2.184 / step);
    }

    #[test]
    fn without_communication_a_step_is_its_computing_and_without_computing_its_communication() {
        let vgg = layers::load("vgg16", 0.01).unwrap();
        assert_eq!(shortest_step_s(&vgg, 2.0, &vec![0.0; 32]), 2.0);
        let times = link(&vgg, 1e9);
        assert!((shortest_step_s(&vgg, 0.0, &times) - times.iter().sum::<f64>()).abs() < 1e-9);
    }

    #[test]
    fn what_is_needed_first_overtakes_what_came_first() {
        let jobs = || vec![Job { release: 0.0, left: 4.0, tail: 0.0 }, Job { release: 1.0, left: 1.0, tail: 5.0 }];
        assert_eq!(makespan(jobs()), 7.0);
    }
}
