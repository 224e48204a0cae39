#!/usr/bin/env python3
"""A training that loses one of four workers and gets it back: ringpull, Horovod's elastic mode and torchft in turn.

    scripts/setup --openmpi5 && scripts/torch-setup && scripts/peers/setup --horovod --torchft
    .venv/bin/python benches/elastic_peers.py [--rounds 3] [--programs undisturbed,restarted,...] [--out FILE]

A round has a job of each program. All programs train the network of `examples/torch` on the first `--images` images
of Fashion-MNIST on this machine's processors (`elastic_train.py`). In one step a worker kills itself by SIGKILL,
before its sums, and its host is removed from the list of hosts. After three workers have trained for a second, the
host is listed again. A line of the table has the medians over the rounds, with the least and the most:

- start: from the launcher's start to the end of the first step with four workers;
- next step: from the kill to the end of the first step with three workers; and this time minus the start;
- lost: steps that had to be made again, or whose work was dropped;
- grown: from the offer of the host to the end of the first step with four workers; and the time without the end of
  a step before it;
- samples: the number of samples of all epochs that are not in the weights, and of those that are in them repeatedly;
- accuracy: at the end, on the test images.

`horovod` and `torchft` have their default time limits, `horovod quick` and `torchft quick` have shorter limits, and
`torchft DDP` uses torchft's DistributedDataParallel. With `--out` the trials are appended to the file, and the table
shows all trials of the file.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKERS = 4
PEERS, TORCHFT, OPENMPI5 = ROOT / ".venv-peers/bin", ROOT / ".venv-torchft/bin", ROOT / ".deps/openmpi5"
#: The lists of hosts: at first, after the loss, and when the worker is offered again.
SLOTS = ["localhost:4\n", "localhost:3\n", "localhost:4\n"]
#: Horovod leaves out the host of a failed worker for ever. So there must be two hosts, under names that Horovod knows as this machine.
NAMES = ["localhost:3\n127.0.0.1:1\n", "localhost:3\n", f"localhost:3\n{os.uname().nodename}:1\n"]
#: The time limits of torchft: seconds of the manager and of gloo, and options of the lighthouse.
QUICK = (5, ["--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000"])
LIMITS = {"torchft": (60, []), "torchft quick": QUICK, "torchft DDP": (60, [])}
#: The seconds after which a worker of Horovod's gives up another worker, if they are not the default of 30.
HOROVOD = {"horovod": [], "horovod quick": ["--gloo-timeout-seconds", 10]}
PROGRAMS = ["undisturbed", "restarted", "launch in place", "in place", *HOROVOD, *LIMITS]


def absent(program):
    """Returns the reason why a program cannot run here, or None if it can."""
    checks = {
        **dict.fromkeys(("launch in place", "in place"), (OPENMPI5 / "bin/mpirun", None, "scripts/setup --openmpi5")),
        **dict.fromkeys(HOROVOD, (PEERS / "python", "import horovod.torch as hvd; assert hvd.gloo_built()", "scripts/peers/setup --horovod")),
        **dict.fromkeys(LIMITS, (TORCHFT / "python", "import torchft", "scripts/peers/setup --torchft")),
    }
    path, code, hint = checks.get(program, (pathlib.Path(sys.executable), None, ""))
    if path.exists() and (code is None or subprocess.run([path, "-c", code], capture_output=True).returncode == 0):
        return None
    return f"absent: {hint}"


class Job:
    """A job of a program in a folder. A file in the folder has its output."""

    def __init__(self, program, folder, binary):
        self.folder, self.log = folder, open(folder / "printed", "a")  # noqa: SIM115
        self.program, self.workers, self.pids = program, {}, []
        script = [pathlib.Path(__file__).with_name("elastic_train.py")]
        elastic = ["--elastic", "--min-workers", 2, "--max-workers", WORKERS, "--discover-hosts", folder / "discover"]
        library = f"{OPENMPI5 / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        if program in ("undisturbed", "restarted"):
            self.launcher = self.start([binary, "launch", *elastic, "--", sys.executable, *script, "restarted", folder])
        elif program == "launch in place":
            # The program of `restarted`. The place of a lost worker is free again after a second.
            words = [binary, "launch", *elastic, "--in-place", "--cooldown", 1, 60, "--", sys.executable, *script, "restarted", folder]
            self.launcher = self.start(words, LD_LIBRARY_PATH=library, RINGPULL_MPIRUN=str(OPENMPI5 / "bin/mpirun"))
        elif program == "in place":
            mpirun = [OPENMPI5 / "bin/mpirun", "--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none", "-n", WORKERS]
            root = dict.fromkeys(["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"], "1")
            words = [*mpirun, sys.executable, *script, program, folder]
            self.launcher = self.start(words, RINGPULL_ELASTIC="1", LD_LIBRARY_PATH=library, **root)
        elif program in HOROVOD:
            options = ["-np", WORKERS, "--min-np", 2, "--max-np", WORKERS, "--host-discovery-script", folder / "discover"]
            words = [PEERS / "horovodrun", *options, *HOROVOD[program], "--network-interfaces", "lo", PEERS / "python", *script, "horovod", folder]
            self.launcher = self.start(words, PATH=f"{PEERS}:{os.environ['PATH']}")
        else:
            where = "127.0.0.1:29517"
            words = [TORCHFT / "torchft_lighthouse", "--min_replicas", "2", "--bind", where, *LIMITS[program][1]]
            self.launcher = self.start(words)
            self.words = [TORCHFT / "python", *script, "torchft", folder]
            self.names = {"TORCHFT_LIGHTHOUSE": f"http://{where}", "GLOO_SOCKET_IFNAME": "lo"}
            for number in range(WORKERS):
                self.start_replica(number)

    def start(self, words, **names):
        words = [str(word) for word in words]
        return subprocess.Popen(words, env=os.environ | names, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def start_replica(self, number):
        self.workers[number] = self.start(self.words, REPLICA=str(number), **self.names)

    def offer_again(self):
        """Lets the lost worker come back."""
        if self.workers:
            self.start_replica(WORKERS - 1)
        else:
            (self.folder / "next").write_text((self.folder / "hosts-again").read_text())
            os.replace(self.folder / "next", self.folder / "hosts")

    def has_ended(self):
        if not self.workers:
            return self.launcher.poll() is not None
        return all(worker.poll() is not None for worker in self.workers.values())

    def end(self):
        """Ends the processes of the job that are left."""
        self.ended_itself = self.has_ended()
        for job in [self.launcher, *self.workers.values()]:
            if job.poll() is None:
                job.terminate()
                try:
                    job.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait()
        for path in self.folder.glob("steps-*"):
            pid = int(path.name[6:])
            if str(self.folder) in words_of(pid):
                os.kill(pid, signal.SIGKILL)
        self.log.close()


def reason(printed):
    """Returns the last error in the output of a program, with the line of code before it."""
    lines = [line.strip() for line in printed.splitlines()]
    at = max((number for number, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), default=len(lines) - 1)
    where = " ".join(lines[max(at - 2, 0) : at + 1])
    return re.sub(r'File "\S*/([^/"]+/[^/"]+)"', r"\1", where)[:300]


def words_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def steps(folder):
    """Returns for each step the time of its end, its number and the number of workers, by time. The number of a
    dropped step is -1."""
    lines = [line.split() for path in folder.glob("steps-*") for line in path.read_text().splitlines()]
    return sorted((float(line[0]), int(line[1]), int(line[2])) for line in lines if len(line) == 3)


def dropped(folder, since, until):
    """Returns the largest number of steps that one worker dropped."""
    lines = [[float(line.split()[0]) for line in path.read_text().splitlines() if " -1 " in line] for path in folder.glob("steps-*")]
    return max(sum(since < at < until for at in times) for times in lines)


def first(found, workers, since):
    return next((at for at in found if at[0] > since and at[2] == workers), None)


def trial(program, options, images):
    """Runs one job, and returns its measurements as a dictionary."""
    with tempfile.TemporaryDirectory(prefix="elastic-") as name:
        folder = pathlib.Path(name)
        for text, part in zip(NAMES if program in HOROVOD else SLOTS, ["", "-fewer", "-again"], strict=True):
            (folder / f"hosts{part}").write_text(text)
        (folder / "discover").write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
        (folder / "discover").chmod(0o700)
        (folder / "images.npz").symlink_to(images)
        numbers = {"epochs": options.epochs, "batch": 64, "lr": 0.05, "commit": 10, "pace": 0.02, "workers": WORKERS}
        numbers["lost_at"] = -1 if program == "undisturbed" else options.lost_at
        numbers |= {"torchft_seconds": LIMITS.get(program, (0, []))[0], "ddp": program == "torchft DDP"}
        (folder / "trial.json").write_text(json.dumps(numbers))
        begun, offered, job = time.time(), None, Job(program, folder, options.binary)
        try:
            while not job.has_ended() and time.time() < begun + options.patience:
                time.sleep(0.02)
                if offered is None and (folder / "killed").exists() and program != "in place":
                    killed = float((folder / "killed").read_text() or 0)
                    smaller = first(steps(folder), WORKERS - 1, killed)
                    if killed and smaller and time.time() > smaller[0] + 1:
                        offered = time.time()
                        job.offer_again()
        finally:
            job.end()
        measured = evaluate(folder, begun, offered)
        if "accuracy" not in measured:
            measured["why"] = reason((folder / "printed").read_text()) if job.ended_itself else f"not ended after {options.patience} s"
        return {"program": program, **measured}


def evaluate(folder, begun, offered):
    found = steps(folder)
    start = first(found, WORKERS, 0)
    measured = {"start": start and start[0] - begun}
    if (folder / "killed").exists():
        killed = float((folder / "killed").read_text())
        fewer = first(found, WORKERS - 1, killed)
        if fewer:
            before = max(step for at, step, _ in found if at < fewer[0])
            measured |= {"next": fewer[0] - killed, "lost": max(0, before - fewer[1] + 1) + dropped(folder, killed, fewer[0])}
        grown = offered and first(found, WORKERS, offered)
        if grown:
            before = max(at for at, step, _ in found if at < grown[0] and step >= 0)
            measured |= {"grown": grown[0] - offered, "still": grown[0] - before}
    if (folder / "result").exists():
        measured |= json.loads((folder / "result").read_text())
    return measured


def table(trials):
    """Yields the lines of a table in Markdown."""
    yield "| program | start | next step | beyond the start | lost | grown | no step meanwhile | samples missing, repeated | accuracy |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for program in PROGRAMS:
        of = [one for one in trials if one["program"] == program]
        if of and "absent" in of[-1]:
            yield f"| {program} | {of[-1]['absent']} |" + " |" * 7
        elif of:
            for one in of:
                if one.get("next") and one.get("start"):
                    one["beyond"] = one["next"] - one["start"]
            cells = [spread(of, name) for name in ["start", "next", "beyond", "lost", "grown", "still"]]
            samples = [f"{one['missing']}, {one['repeated']}" for one in of if "missing" in one]
            accuracy = spread(of, "accuracy", 100, " %")
            failed = [one["why"] for one in of if "why" in one]
            late = f"; {len(failed)} of {len(of)} failed: {failed[-1]}" if failed else ""
            yield f"| {program}, {len(of)} job{'s'[: len(of) > 1]} | {' | '.join(cells)} | {'; '.join(sorted(set(samples))) or '-'} | {accuracy}{late} |"


def spread(of, name, times=1, unit=" s"):
    found = [one[name] * times for one in of if one.get(name) is not None]
    if not found:
        return "-"
    if name == "lost":
        return f"{statistics.median(found):.0f} ({min(found)} to {max(found)})"
    return f"{statistics.median(found):.2f}{unit} ({min(found):.2f} to {max(found):.2f})"


def prepare(options, folder):
    """Writes the file with the images, the labels and the first weights, which every program reads."""
    import numpy
    import torch

    sys.path.insert(0, str(ROOT / "examples/torch"))
    from train import FASHION_MNIST, build, read_images

    data = next((path for path in FASHION_MNIST if path.is_dir()), None)
    if data is None:
        sys.exit("Fashion-MNIST is missing: run scripts/setup")
    torch.manual_seed(1)
    weights = {f"weight {name}": value.numpy() for name, value in build().state_dict().items()}
    parts = {"": read_images(data, "train", options.images), "test_": read_images(data, "t10k", None)}
    arrays = {f"{part}{name}": value.numpy() for part, both in parts.items() for name, value in zip(["images", "labels"], both, strict=True)}
    numpy.savez(folder / "images.npz", **arrays, **weights)
    return folder / "images.npz"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="programs, separated by commas, of: " + ", ".join(PROGRAMS))
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lost-at", type=int, default=105, help="the step in which a worker is killed")
    parser.add_argument("--patience", type=int, default=180, help="the seconds after which a job is ended")
    parser.add_argument("--binary", default="ringpull", help="the command ringpull")
    parser.add_argument("--out", type=pathlib.Path, help="a file of trials, each a line of JSON")
    options = parser.parse_args()
    # So SIGTERM also ends a running job.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    trials = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out and options.out.exists() else []
    programs = options.programs.split(",")
    with tempfile.TemporaryDirectory(prefix="elastic-") as name:
        images = prepare(options, pathlib.Path(name))
        for number in range(options.rounds):
            turn = number % len(programs)
            for program in programs[turn:] + programs[:turn]:
                why = absent(program)
                trials.append({"program": program, "absent": why} if why else trial(program, options, images))
                print(f"round {number + 1}: {json.dumps(trials[-1])}", file=sys.stderr)
                if options.out:
                    with open(options.out, "a") as file:
                        print(json.dumps(trials[-1]), file=file)
    print("\n".join(table(trials)))


if __name__ == "__main__":
    main()
