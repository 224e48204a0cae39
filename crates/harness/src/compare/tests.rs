//! Tests the table and the page of fixed results. The table is compared with committed text; the page is
//! opened in a real browser.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringpull_base::{DType, Error};
use ringpull_workload::sparse::SparseSetup;

use super::results::{Outcome, Row, ScaledRows};
use super::rows::rows;
use super::{Comparison, Environment, Setup, report, table, verdict};
use crate::committed;
use crate::hardware::{Hardware, Hosts};
use crate::record::Record;
use crate::rounds::{Job, Measurement, RoundsOutcome, TrainSetup, Work};
use crate::variant::{Peer, Variant};
use crate::{cost, layers};

/// Results of eight workers on links of 200 Mbit/s, with seconds like those of a real run.
fn results() -> Comparison {
    let setup = Setup {
        place: "8 emulated hosts".to_owned(),
        own_hosts: true,
        workers: 8,
        link: "200mbit".parse().unwrap(),
        slow_hosts: Vec::new(),
        racks: None,
        payload: "25 MB".to_owned(),
        bytes: 25_000_000,
        rounds: 5,
        iters: 2,
        warmup: 1,
        train: None,
        sparse: None,
        bigarray_bound: None,
    };
    let modes = [
        "dist_sync_mpi",
        "dist_sync:1shared",
        "dist_sync:2shared",
        "dist_sync:8shared",
        "dist_sync:8",
        "dist_sync_mpi+2bit:0.5",
    ];
    let modes = modes.map(|mode| mode.parse().unwrap());
    let variants = Variant::list(&modes, &[Peer::Mpi, Peer::Mxnet, Peer::Gloo]);
    let mut found = RoundsOutcome::default();
    for variant in &variants {
        let seconds = match variant.to_string().as_str() {
            "gloo" => {
                found.absent.push((*variant, "scripts/peers/setup --gloo".to_owned()));
                continue;
            }
            "mxnet:dist_sync:2shared" => {
                let error = Error::argument("server 1 ended with signal 9", "see that host's log");
                found.failed.push((*variant, 8, error));
                continue;
            }
            "dist_sync_mpi" => [1.86, 1.87, 1.88, 1.86, 1.89, 1.87, 1.87, 1.88, 1.86, 1.89],
            "dist_sync:1shared" => [7.45, 7.41, 7.52, 7.44, 7.43, 7.46, 7.41, 7.52, 7.44, 7.43],
            "dist_sync:2shared" => [4.24, 4.31, 4.27, 4.22, 4.25, 4.26, 4.31, 4.27, 4.22, 4.25],
            "dist_sync:8shared" => [1.88, 1.86, 1.91, 1.87, 1.95, 1.86, 1.86, 1.91, 1.87, 1.95],
            "dist_sync:8" => [1.08, 1.07, 1.09, 1.08, 1.07, 1.08, 1.07, 1.09, 1.08, 1.07],
            "dist_sync_mpi+2bit:0.5" => [0.23, 0.24, 0.25, 0.23, 0.24, 0.24, 0.24, 0.25, 0.23, 0.24],
            "mpi" => [3.41, 3.05, 3.11, 3.08, 3.06, 3.09, 3.05, 3.11, 3.08, 3.06],
            "mxnet:dist_sync:1shared" => [14.7, 14.9, 14.6, 14.8, 14.7, 14.7, 14.9, 14.6, 14.8, 14.7],
            "mxnet:dist_sync:8shared" => [2.31, 2.28, 2.35, 2.30, 2.33, 3.90, 2.28, 2.35, 2.30, 2.33],
            "mxnet:dist_sync:8" => [2.11, 2.18, 2.15, 2.10, 2.13, 2.14, 2.18, 2.15, 2.10, 2.13],
            other => panic!("{other} has no seconds"),
        };
        found.done.extend(rounds(*variant, &setup, &seconds));
    }
    let job = Job { ranks: 8, work: Work::Buffers(vec![25_000_000]), iters: 2, warmup: 1 };
    let rows = rows(&found, &variants, &job, &setup);
    let environment = Environment {
        date: "2026-01-31 12:00 UTC".to_owned(),
        hardware: Hardware { cores: 2, processor: Some("Xeon 2.8 GHz".to_owned()), memory_bytes: Some(24 << 30) },
        hosts: Vec::new(),
        kernel: "Linux 6.1".to_owned(),
        ringpull: "0.1.0".to_owned(),
        mpi: "mpirun (Open MPI) 4.1.4".to_owned(),
    };
    let command = "ringpull compare --hosts 8 --link 200mbit --bytes 25MB --modes dist_sync_mpi,dist_sync:1shared,dist_sync:2shared,dist_sync:8shared,dist_sync:8 --peers mpi,mxnet,gloo --rounds 5 --iters 2 --out out".to_owned();
    let scaling = Vec::new();
    let mut results = Comparison { environment, setup, rows, scaling, stolen: None, verdict: Vec::new(), command };
    results.verdict = verdict::sentences(&results);
    results
}

/// Results of training on the same hosts with links of 1 Gbit/s: the seconds of steps that compute for 2.184
/// s.
fn training() -> Comparison {
    let mut results = results();
    let setup = &mut results.setup;
    setup.link = "1gbit".parse().unwrap();
    (setup.payload, setup.bytes) = ("vgg16, 32 tensors, 55.3 MB".to_owned(), 55_343_024);
    let train = TrainSetup { model: "vgg16".to_owned(), compute_s: 2.184, batch: Some(64) };
    setup.train = Some(train.clone());
    let variants = ["dist_sync_mpi", "dist_sync:8shared", "dist_sync:8", "dist_sync:4", "dist_sync:2"];
    let variants: Vec<Variant> = variants.map(|mode| mode.parse().unwrap()).to_vec();
    let seconds = [
        [2.19, 2.20, 2.19, 2.191, 2.19, 2.192, 2.20, 2.19, 2.191, 2.19],
        [2.60, 2.61, 2.59, 2.62, 2.60, 2.61, 2.61, 2.59, 2.62, 2.60],
        [2.25, 2.26, 2.25, 2.27, 2.25, 2.26, 2.26, 2.25, 2.27, 2.25],
        [2.52, 2.51, 2.53, 2.52, 2.50, 2.52, 2.51, 2.53, 2.52, 2.50],
        [4.10, 4.12, 4.08, 4.11, 4.10, 4.09, 4.12, 4.08, 4.11, 4.10],
    ];
    let done = variants.iter().zip(seconds).flat_map(|(variant, seconds)| rounds(*variant, setup, &seconds));
    let found = RoundsOutcome { done: done.collect(), ..RoundsOutcome::default() };
    let work = Work::Steps { network: layers::load("vgg16", 0.1).unwrap(), named: Vec::new(), train };
    results.rows = rows(&found, &variants, &Job { ranks: 8, work, iters: 2, warmup: 1 }, setup);
    "ringpull compare --train --hosts 8 --link 1gbit --model vgg16 --scale 0.1".clone_into(&mut results.command);
    results.verdict = verdict::sentences(&results);
    results
}

/// The results with two and with four workers too. An allreduce takes as long as its bound; servers take as
/// long as the busiest host's bytes.
fn scaled() -> Comparison {
    let mut results = results();
    for workers in [2, 4] {
        let setup = Setup { workers, ..results.setup.clone() };
        let variants: Vec<Variant> = ["dist_sync_mpi", "dist_sync:1shared", "dist_sync:2shared", "dist_sync:8", "mpi"]
            .map(|name| name.parse().unwrap())
            .to_vec();
        let rate = setup.link.bytes_per_s().unwrap();
        let seconds = |variant: &Variant| cost::mode_bound_s(variant.mode, workers, setup.bytes as f64, rate) * 1.05;
        let done = variants.iter().flat_map(|variant| rounds(*variant, &setup, &[seconds(variant); 10]));
        let found = RoundsOutcome { done: done.collect(), ..RoundsOutcome::default() };
        let job = Job { ranks: workers, work: Work::Buffers(vec![25_000_000]), iters: 2, warmup: 1 };
        results.scaling.push(ScaledRows { workers, rows: rows(&found, &variants, &job, &setup) });
    }
    results
}

/// The training with one, two and four workers too. With fewer workers less of a step is exposed.
fn scaled_training() -> Comparison {
    let mut results = training();
    for workers in [1, 2, 4] {
        let setup = Setup { workers, ..results.setup.clone() };
        let train = setup.train.clone().unwrap();
        let variants: Vec<Variant> = results.rows.iter().map(|row| row.variant.parse().unwrap()).collect();
        let of =
            |row: &Row| train.compute_s + (row.summary().unwrap().median - train.compute_s) * workers as f64 / 16.0;
        let done =
            variants.iter().zip(&results.rows).flat_map(|(variant, row)| rounds(*variant, &setup, &[of(row); 10]));
        let found = RoundsOutcome { done: done.collect(), ..RoundsOutcome::default() };
        let work = Work::Steps { network: layers::load("vgg16", 0.1).unwrap(), named: Vec::new(), train };
        let rows = rows(&found, &variants, &Job { ranks: workers, work, iters: 2, warmup: 1 }, &setup);
        results.scaling.push(ScaledRows { workers, rows });
    }
    results
}

/// Only the first rounds of a comparison.
fn cut(mut results: Comparison, rounds: usize) -> Comparison {
    results.setup.rounds = rounds;
    for row in &mut results.rows {
        if let Outcome::Measured { rounds: done, record, .. } = &mut row.outcome {
            done.truncate(rounds);
            record.seconds = done.iter().flat_map(|round| round.seconds.clone()).collect();
        }
    }
    results.verdict = verdict::sentences(&results);
    results
}

/// The measurements of jobs of two iterations.
fn rounds(variant: Variant, setup: &Setup, seconds: &[f64]) -> Vec<Measurement> {
    let bytes = cost::busiest_host_bytes(variant.mode, setup.workers, setup.bytes as f64);
    let round = |(index, seconds): (usize, &[f64])| Measurement {
        variant,
        round: index + 1,
        place: index + 1,
        record: Record {
            algorithm: "auto".to_owned(),
            ranks: setup.workers,
            bytes: setup.bytes,
            seconds: seconds.to_vec(),
            host_bytes: Some((bytes * 1.05) as u64),
            ..Record::blank("pushpull", DType::F32)
        },
        stolen: None,
    };
    seconds.chunks(2).enumerate().map(round).collect()
}

#[test]
fn efficiencies_by_workers_have_the_published_ones_beside_them_if_eight_are_among_them() {
    let circles = |results: &Comparison| {
        let picture = report::picture(results).unwrap().unwrap();
        (picture.matches("<circle class=\"published ").count(), picture.contains("grey: published"))
    };
    let all = scaled_training();
    assert_eq!(circles(&all), (5, true));
    let words: Vec<String> = all.records().iter().map(|it| format!("{} {}", it.ranks, it.train.is_some())).collect();
    assert_eq!(words, [1, 2, 4, 8].map(|ranks| vec![format!("{ranks} true"); 5]).concat());
    let mut four = all.clone();
    let ScaledRows { workers, rows } = four.scaling.pop().unwrap();
    (four.setup.workers, four.rows) = (workers, rows);
    assert_eq!(circles(&four), (0, false));
    assert!(!table::render(&four).contains("published, 8"), "{}", table::render(&four));
}

#[test]
fn stolen_time_is_in_the_table_on_the_page_and_in_the_json() {
    let doubt = "3.2 % of the processors' time was taken by the machine's host";
    let quiet = Comparison { stolen: Some(0.009), ..results() };
    assert!(!table::render(&quiet).contains("machine's host"));
    let disturbed = Comparison { stolen: Some(0.032), ..results() };
    assert!(table::render(&disturbed).contains(&format!("warning: {doubt}")));
    assert!(report::render(&disturbed).unwrap().replace("&#x27;", "'").contains(doubt));
    assert!(serde_json::to_string(&disturbed).unwrap().contains("\"stolen\":0.032"));
    let training = Comparison { stolen: Some(0.032), ..training() };
    assert!(table::render(&training).contains(doubt));
}

#[test]
fn ranks_of_one_machine_are_not_called_machines() {
    let mut local = results();
    (local.setup.place, local.setup.own_hosts) = ("processes of one machine".to_owned(), false);
    local.rows.iter_mut().for_each(|row| row.machines = 1);
    local.verdict = verdict::sentences(&local);
    let text = table::render(&local);
    assert!(text.contains("On this machine with 8 workers: dist_sync:8"), "{text}");
    for wrong in ["machines", "8 more", "charged", "other hosts", "busiest host"] {
        assert!(!text.contains(wrong), "{wrong:?} in {text}");
    }
    report::render(&local).unwrap();
}

#[test]
fn the_terminal_shows_the_committed_text() {
    is_as_committed("compare.txt", &results());
    is_as_committed("compare_scaling.txt", &scaled());
    is_as_committed("compare_train.txt", &training());
    is_as_committed("compare_train_scaling.txt", &scaled_training());
}

fn is_as_committed(file: &str, results: &Comparison) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expected").join(file);
    let shown = table::render(results);
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &shown).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(shown, expected, "if this is right, set UPDATE_EXPECTED=1 and commit {}", path.display());
}

#[test]
fn the_verdict_leads_with_the_readers_own_machines_and_then_says_what_more_would_bring() {
    let mut real = results();
    real.setup.place = "8 hosts".to_owned();
    let said = verdict::sentences(&real);
    assert_eq!(said[0], "On your 8 machines: dist_sync_mpi, 1.87 s; dist_sync:8shared may be as fast.");
    let more = "With 8 more: dist_sync:8, 42 % less time (0.58x); charged for all 16 machines it is 1.16x, ";
    assert!(said[1].starts_with(more), "{}", said[1]);
}

#[test]
fn a_subtitle_that_is_too_long_for_a_picture_has_a_second_line() {
    let mut results = results();
    let line = |results: &Comparison| {
        let picture = report::picture(results).unwrap().unwrap();
        picture.lines().find_map(|line| line.strip_prefix(r#"<text class="soft" x="24" y="72">"#).map(str::to_owned))
    };
    assert_eq!(line(&results), None);
    results.setup.place = "8 emulated hosts with h5=100mbit, h6=100mbit, h7=100mbit, h8=100mbit".to_owned();
    assert_eq!(line(&results).as_deref(), Some("links of 200mbit</text>"));
}

#[test]
fn too_few_rounds_are_never_called_different_or_level() {
    let three = cut(results(), 3).verdict.join(" ");
    assert!(three.contains("if that is not by chance") && three.contains("give --rounds 4 or more"), "{three}");
    assert!(!three.contains("may be as fast"), "{three}");
    let four = cut(results(), 4).verdict.join(" ");
    assert!(four.contains("dist_sync:8shared may be as fast") && !four.contains("too few"), "{four}");
}

#[test]
fn one_variant_alone_has_nothing_to_be_compared_with() {
    let mut alone = results();
    alone.rows.truncate(1);
    let said = verdict::sentences(&alone);
    assert_eq!(said[0], "On 8 machines (emulated): dist_sync_mpi, 1.87 s; nothing else was measured.");
    assert_eq!(said.len(), 2, "{said:?}");
    alone.verdict = said;
    assert!(!table::render(&alone).contains("charged"), "a column that says nothing is left out");
}

#[test]
fn the_same_names_are_in_table_charts_and_verdict() {
    let results = results();
    let (page, text) = (report::render(&results).unwrap(), table::render(&results));
    for measured in results.ranking() {
        let name = measured.row.variant.as_str();
        assert!(page.contains(&format!("<code>{name}</code><span class=\"words\">")), "{name} in the table");
        assert!(page.matches(&format!(">{name}<tspan")).count() >= 2, "{name} in the charts");
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} in a terminal");
    }
}

#[test]
fn the_machines_are_named_with_processor_cores_and_memory() {
    let mut results = results();
    let own = "2 cores of Xeon 2.8 GHz, 24.0 GiB";
    assert!(report::render(&results).unwrap().contains(&format!("{own}, shared by all processes")));
    results.setup.place = "8 hosts".to_owned();
    results.environment.hosts = vec![Hosts { hosts: 8, hardware: results.environment.hardware.clone() }];
    assert!(report::render(&results).unwrap().contains(&format!("8 x {own}")));
}

#[test]
fn results_read_themselves_back_with_every_sample() {
    let results = scaled();
    let json = serde_json::to_string(&results).unwrap();
    assert_eq!(serde_json::from_str::<Comparison>(&json).unwrap(), results);
    assert!(results.any_failed());
}

#[test]
fn the_page_needs_nothing_from_outside() {
    // The template engine writes a slash in text as `&#x2f;`.
    let page = report::render(&results()).unwrap().replace("&#x2f;", "/");
    for forbidden in ["<script", "http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("server 1 ended with signal 9") && page.contains("scripts/peers/setup --gloo"));
    assert!(page.contains("apache/mxnet #10696") && page.contains("--link 200mbit"));
    let page = report::render(&training()).unwrap();
    for words in
        ["94.74 %", "99.7", ">published<tspan class=\"words\" dx=\"10\">MPI allreduce", "2.18 s of computing", "27.76"]
    {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn the_pictures_of_the_book_follow_from_what_was_measured() {
    for name in ["compare", "train", "scaling"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measured");
        let stored = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let picture = report::picture(&serde_json::from_str(&stored).unwrap()).unwrap().unwrap();
        committed::keep(&format!("docs/measured/{name}.svg"), &picture);
    }
}

#[test]
fn a_picture_of_rows_marks_the_bound_of_servers() {
    let mut results = results();
    results.setup.sparse = Some(SparseSetup { rows: 1000, width: 64, touched: 10, zipf: 1.0 });
    let picture = report::picture(&results).unwrap().unwrap();
    assert!(picture.contains(">servers' bound") || picture.contains(">servers&#x27; bound"), "{picture}");
    assert!(!picture.contains("allreduce bound"));
}

#[test]
fn a_picture_stands_alone_and_has_the_bars_of_the_first_chart() {
    let picture = report::picture(&results()).unwrap().unwrap().replace("&#x2f;", "/");
    let has = |part: &str| picture.matches(part).count();
    assert_eq!(
        (has("class=\"bar "), has(">allreduce bound"), has("prefers-color-scheme: dark"), has("var(")),
        (10, 1, 1, 0),
        "{picture}"
    );
    for words in [">1 server on the workers", ">8 servers on other hosts<", ">MPI_Allreduce<", ">dist_sync:8<"] {
        assert_eq!(has(words), 1, "{words}");
    }
    for forbidden in ["<script", "https://", "@import", "url("] {
        assert!(!picture.contains(forbidden), "{forbidden}");
    }
    let nothing = Comparison { rows: Vec::new(), ..results() };
    assert_eq!(report::picture(&nothing), Ok(None));
}

#[test]
fn the_verdict_says_whether_training_has_the_published_ratio() {
    let mut results = training();
    assert!(results.verdict.iter().any(|sentence| sentence.contains("; the order that was published")));
    assert!(results.verdict.iter().any(|sentence| sentence.ends_with("the published ratio.")), "{:?}", results.verdict);
    // Neighbours in the order differ by 1.5 %: two neighbours are level, and the first and third of three
    // differ.
    let served = |modes: &[&str]| {
        let variants: Vec<Variant> = modes.iter().map(|mode| mode.parse().unwrap()).collect();
        let seconds = [2.190, 2.223, 2.256];
        let done = variants.iter().zip(seconds).flat_map(|(variant, s)| rounds(*variant, &results.setup, &[s; 10]));
        let found = RoundsOutcome { done: done.collect(), ..RoundsOutcome::default() };
        let train = results.setup.train.clone().unwrap();
        let work = Work::Steps { network: layers::load("vgg16", 0.1).unwrap(), named: Vec::new(), train };
        let rows = rows(&found, &variants, &Job { ranks: 8, work, iters: 2, warmup: 1 }, &results.setup);
        verdict::sentences(&Comparison { rows, ..training() }).join(" ")
    };
    let two = served(&["dist_sync:4", "dist_sync:8"]);
    assert!(two.contains("dist_sync:4, dist_sync:8; level here, so no order"), "{two}");
    let three = served(&["dist_sync:4", "dist_sync:8shared", "dist_sync:8"]);
    assert!(three.contains("dist_sync:4, dist_sync:8shared, dist_sync:8; not the order that was published"), "{three}");
    results.setup.train.as_mut().unwrap().compute_s = 1.0;
    let said = verdict::sentences(&results);
    assert!(said.iter().any(|sentence| sentence.contains("not the published ratio")), "{said:?}");
    assert!(said.iter().all(|sentence| !sentence.contains("was published")), "{said:?}");
    assert!(!report::picture(&results).unwrap().unwrap().contains(">published<"));
}

#[test]
fn a_browser_draws_every_chart_without_console_messages_or_sideways_scrolling() {
    let Some(chromium) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| runs(name)) else {
        eprintln!("skipped: no Chromium is installed");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let pages = [
        ("pushpull", results(), "10,10,10"),
        ("scaled", scaled(), "0,10,10,10"),
        ("training", training(), "10,5,5"),
        ("efficiencies", scaled_training(), "0,10,5,5"),
    ];
    for (name, results, _) in &pages {
        std::fs::write(folder.path().join(format!("{name}.html")), report::render(results).unwrap()).unwrap();
    }
    for (width, (name, _, bars)) in
        [375, 1200].into_iter().flat_map(|width| pages.iter().map(move |page| (width, page)))
    {
        let probe = folder.path().join(format!("probe-{name}-{width}.html"));
        std::fs::write(&probe, PROBE.replace("WIDTH", &width.to_string()).replace("PAGE", name)).unwrap();
        let output = browser(chromium, folder.path(), &probe);
        let dom = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let found = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next()).unwrap_or("");
        assert_eq!(found, format!("bars {bars}, sideways 0"), "{name} at {width} px: {log}");
        let console: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(console.is_empty(), "at {width} px: {console:?}");
    }
}

/// A page that shows the report in a frame of the tested width, and writes its findings into its own title.
const PROBE: &str = r#"<!doctype html><title>nothing</title>
<iframe id="page" src="PAGE.html" style="width:WIDTHpx;height:3000px;border:0"></iframe>
<script>
window.onload = () => {
  const page = document.getElementById("page").contentDocument;
  const charts = [...page.querySelectorAll("svg.chart")];
  const fits = (text, chart) => text.right <= chart.right + 0.5 && text.left >= chart.left - 0.5;
  const crosses = (line, text) => line.left < text.right && line.right > text.left
    && line.top < text.bottom - 3 && line.bottom > text.top + 3;
  const drawn = charts.map(chart => {
    const box = chart.getBoundingClientRect();
    const bars = [...chart.querySelectorAll("rect.bar")];
    const texts = [...chart.querySelectorAll("text")];
    const whole = box.width > 250 && bars.every(bar => bar.getBoundingClientRect().width > 1)
      && texts.every(text => fits(text.getBoundingClientRect(), box))
      && [...chart.querySelectorAll("line, rect, circle")].every(mark =>
        texts.every(text => !crosses(mark.getBoundingClientRect(), text.getBoundingClientRect())))
      && texts.every(one => texts.every(other =>
        one === other || !crosses(one.getBoundingClientRect(), other.getBoundingClientRect())));
    return whole ? bars.length : "broken";
  });
  const root = page.documentElement;
  const sideways = Math.max(0, root.scrollWidth - root.clientWidth);
  document.title = `bars ${drawn.join()}, sideways ${sideways}`;
};
</script>"#;

fn runs(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

fn browser(chromium: &str, folder: &Path, page: &Path) -> std::process::Output {
    let profile: PathBuf = folder.join("profile");
    // If the browser hangs, `timeout` ends it with all processes that it started.
    Command::new("timeout")
        .args(["60", chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--allow-file-access-from-files", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=2000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap()
}
