"""``python -m ringpull.torchrun``: torchrun's command line for programs that run as ranks of MPI.

    python -m ringpull.torchrun --nproc-per-node 4 train.py --epochs 2

It starts the program by ``ringpull launch``. With several nodes, start it on each of them, as with torchrun. The nodes
connect to a store of PyTorch. There node 0 learns the hosts; it starts the job by ssh, and the other nodes wait for the job's end.
An option that cannot be translated is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from . import launcher

__all__ = ["main"]

#: The port of the store to which torchrun's nodes connect by default.
_PORT = 29500
#: The longest time that nodes wait for each other.
_MEETING = timedelta(minutes=15)
#: The longest time that node 0 waits, at the end, for the others to read the job's status.
_PARTING = timedelta(seconds=10)
_JOB = timedelta(days=3650)
#: An address, in brackets if it is an IPv6 address, and a number of ranks.
_SLOTS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):[1-9][0-9]*")

#: Options for the way in which torchrun watches its processes. They are ignored: here the launcher and MPI watch the processes.
_OF_AGENTS = ("monitor-interval", "start-method", "role", "rdzv-conf", "signals-to-handle", "event-log-handler")
#: Options that do not exist here, each with a hint.
_MISSING = {
    "log-dir": "redirect the output of the command, whose lines name their ranks",
    "redirects": "redirect the output of the command, whose lines name their ranks",
    "tee": "redirect the output of the command, whose lines name their ranks",
    "local-ranks-filter": "filter the output of the command, whose lines name their ranks",
    "logs-specs": "redirect the output of the command, whose lines name their ranks",
    "numa-binding": "bind ranks by the options of mpirun",
}


def _refuse(error: str, hint: str, status: int = 2) -> NoReturn:
    print(f"error: {error}\n  hint: {hint}", file=sys.stderr)
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ringpull.torchrun",
        description="Starts a program for torchrun by `ringpull launch`. The variable PET_NNODES has the same effect as --nnodes, and so on for the other options.",
        allow_abbrev=False,
    )

    def option(name: str, *more: str, **words: Any) -> None:
        given = os.environ.get("PET_" + name.replace("-", "_").upper())
        if given is not None:
            words["default"] = given not in ("", "0") if words.get("action") == "store_true" else given
        names = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
        parser.add_argument(*names, *more, **words)

    option("nnodes", default="1", help="the number of nodes; start this command on each of them")
    option("nproc-per-node", default="1", help="the number of ranks on this node: a number, cpu, gpu or auto")
    option("node-rank", default=None, help="this node's number [default: 0 on the node of the store, then in the order in which nodes connect]")
    option("master-addr", default=None, help="the address of node 0, to which the nodes connect")
    option("master-port", default=None, help=f"the port on node 0 [default: {_PORT}]")
    option("rdzv-endpoint", default="", help="the address, and port, of the node to which the nodes connect")
    option("rdzv-backend", default="static", help="c10d or static")
    option("rdzv-id", default="none", help="the name of the job; give each job of one address a name of its own")
    option("local-addr", default=None, help="this node's address for the other nodes [default: the one from which it reaches node 0]")
    option("max-restarts", default="0", help="0: a job that goes on after a loss is `ringpull launch --elastic`")
    option("standalone", action="store_true", help="one node, which connects to no other")
    option("module", "-m", action="store_true", help="the program is a module")
    option("no-python", action="store_true", help="the program is no script of Python")
    option("run-path", action="store_true", help=argparse.SUPPRESS)
    for name in _OF_AGENTS:
        option(name, default=None, help=argparse.SUPPRESS)
    short = {"redirects": ["-r"], "tee": ["-t"]}
    for name in _MISSING:
        option(name, *short.get(name, []), default=None, help=argparse.SUPPRESS)
    parser.add_argument("program", help="the script, module or command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _number(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        _refuse(f"--{name} {text}: expected a number of at least {least}", f"give --{name} a number")
    return int(text)


def _nodes(text: str) -> int:
    least, _, most = text.partition(":")
    if most and most != least:
        _refuse(f"--nnodes {text} lets the number of nodes change", "give one number; a job that changes is `ringpull launch --elastic`")
    return _number("nnodes", least, 1)


def _ranks_here(text: str) -> int:
    if text in ("auto", "gpu"):
        torch: Any = importlib.import_module("torch")
        gpus = int(torch.cuda.device_count())
        if gpus or text == "gpu":
            return gpus or _number("nproc-per-node", "gpu (there is no GPU)", 1)
    if text in ("auto", "cpu"):
        return os.cpu_count() or 1
    return _number("nproc-per-node", text, 1)


def _command(options: argparse.Namespace) -> list[str]:
    """The command of each rank."""
    program = [options.program, *options.arguments]
    if options.no_python:
        return program
    return [sys.executable, "-u", *(["-m"] if options.module else []), *program]


class _Meeting:
    """The nodes of a job, which exchange data through a store on one of them."""

    def __init__(self, options: argparse.Namespace, count: int) -> None:
        self._count = count
        host, _, port = options.rdzv_endpoint.rpartition(":") if ":" in options.rdzv_endpoint else (options.rdzv_endpoint, "", "")
        host = options.master_addr or host
        if not host:
            _refuse(f"--nnodes {count} without the address of a node", "give --master-addr or --rdzv-endpoint, the same on every node")
        place = host, _number("master-port", options.master_port or port or str(_PORT), 0)
        distributed: Any = importlib.import_module("torch.distributed")
        own = None if options.node_rank is None else _number("node-rank", options.node_rank, 0)
        if own is not None and own >= count:
            _refuse(f"--node-rank {own} of {count} nodes", "number the nodes from 0")
        self._has_store = own == 0 if own is not None else _is_here(host)
        try:
            self._store = distributed.TCPStore(*place, None, self._has_store, _MEETING, wait_for_workers=False)
        except (RuntimeError, ValueError):
            if own is not None:
                _refuse(f"no store can be reached or opened at {host} port {place[1]}", "start node 0 there, or give a --master-port that is free")
            # Two nodes are on one host, and the other node has opened the store.
            self._has_store = False
            self._store = distributed.TCPStore(*place, None, False, _MEETING, wait_for_workers=False)
        self._store = distributed.PrefixStore(f"ringpull/{options.rdzv_id}", self._store)
        if own is None:
            own = 0 if self._has_store else int(self._store.add("nodes", 1))
        self.rank = own
        if self.rank >= count or int(self._store.add(f"claimed/{self.rank}", 1)) > 1:
            _refuse(
                f"node {self.rank} of the job {options.rdzv_id} of {count} nodes has already connected to {host} port {place[1]}",
                "if two jobs use one address, give each its own --rdzv-id or --master-port",
                1,
            )
        self._address = options.local_addr or _address_to(*place)

    def hosts(self, ranks: int) -> list[str]:
        """Gives the others this node's address and number of ranks. On node 0 it returns those of all nodes. Anybody who reaches the port may
        write to the store, so each entry is checked: it must be one address and one number."""
        slots = f"[{self._address}]:{ranks}" if ":" in self._address else f"{self._address}:{ranks}"
        self._store.set(f"node/{self.rank}", slots)
        if self.rank != 0:
            return []
        found = []
        for rank in range(self._count):
            try:
                self._store.wait([f"node/{rank}"], _MEETING)
            except RuntimeError:
                _refuse(f"node {rank} of {self._count} has not connected", "start this command on every node, with the same --rdzv-id", 1)
            found.append(self._store.get(f"node/{rank}").decode())
            if not _SLOTS.fullmatch(found[-1]):
                _refuse(f"node {rank} gives {found[-1]!r} for its address and number of ranks", "let nobody else reach the port of the store", 1)
        return found

    def ended(self, status: int | None = None) -> int:
        """The status of the job. Node 0 gives it to the others."""
        if status is not None:
            self._store.set("ended", str(status))
        try:
            self._store.wait(["ended"], _JOB)
            found = int(self._store.get("ended"))
        except RuntimeError:
            _refuse("node 0 has ended without giving the status of the job", "look at its output", 1)
        self._store.set(f"left/{self.rank}", "")
        if self._has_store:
            with contextlib.suppress(RuntimeError):
                self._store.wait([f"left/{rank}" for rank in range(self._count)], _PARTING)
        return found


def _is_here(host: str) -> bool:
    """Returns True if the name has an address of this host."""
    for family, kind, protocol, _, place in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind((place[0], 0))
            return True
    return False


def _address_to(host: str, port: int) -> str:
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # This sends nothing: it only chooses the address.
        probe.connect(place)
        return str(probe.getsockname()[0])


@contextlib.contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """A context in which signals that would end this process go to the job instead."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    before = [signal.signal(number, lambda number, _: child.send_signal(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def main(words: Sequence[str] | None = None) -> int:
    """Starts the job that the command line asks for, and returns its status."""
    options = _parser().parse_args(words)
    for name, remedy in _MISSING.items():
        if getattr(options, name.replace("-", "_")) is not None:
            _refuse(f"--{name} is not supported", remedy)
    if options.run_path:
        _refuse("--run-path is not supported", "give the script without --run-path")
    if _number("max-restarts", options.max_restarts, 0):
        _refuse(f"--max-restarts {options.max_restarts}: jobs do not restart by this option", "see `ringpull launch --elastic` and `ringpull launch --help`")
    if options.rdzv_backend not in ("static", "c10d"):
        _refuse(f"--rdzv-backend {options.rdzv_backend} is not supported", "give c10d, or leave it out")
    count = 1 if options.standalone else _nodes(options.nnodes)
    ranks = _ranks_here(options.nproc_per_node)
    ringpull = launcher.find()
    if ringpull is None:
        _refuse("there is no command ringpull", "install the wheel, or set RINGPULL_BINARY")
    if ranks * count > 1:
        # torchrun sets it too.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    command = ["--env", "OMP_NUM_THREADS", "--", *_command(options)] if "OMP_NUM_THREADS" in os.environ else ["--", *_command(options)]
    if count == 1:
        sys.stdout.flush()
        os.execv(ringpull, [ringpull, "launch", "-n", str(ranks), *command])
    meeting = _Meeting(options, count)
    hosts = meeting.hosts(ranks)
    if meeting.rank != 0:
        return meeting.ended()
    total = sum(int(host.rpartition(":")[2]) for host in hosts)
    child = subprocess.Popen([ringpull, "launch", "-n", str(total), "-H", ",".join(hosts), *command])
    with _passing_on(child):
        status = child.wait()
    return meeting.ended(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    sys.exit(main())
