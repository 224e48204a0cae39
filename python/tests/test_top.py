"""Tests the output of `ringpull top`, the metrics and SIGUSR1 for a running job."""

import json
import os
import re
import socket

from ranks import HERE, launch, mpi, ringpull_binary


def free_address():
    """A free port at an address that only this process's jobs use. All addresses of 127.0.0.0/8 are loopback addresses."""
    pid = os.getpid()
    host = f"127.{1 + (pid >> 16) % 254}.{(pid >> 8) % 256}.{pid % 256}"
    with socket.socket() as found:
        found.bind((host, 0))
        return f"{host}:{found.getsockname()[1]}"


def test_a_late_rank_is_named_with_its_line_and_the_key_by_whoever_asks():
    metrics = free_address()
    words = {"RINGPULL_METRICS": metrics, "RINGPULL_TIMEOUT": 60}
    done = mpi(3, HERE / "jobs/watched.py", "dist_sync_mpi", ringpull_binary(), metrics, **words)
    assert done.status == 0 and all(f"rank {rank} is done" in printed.out for rank, printed in enumerate(done.ranks)), (
        f"{done}"
    )
    out, err = done.ranks[2].out, done.ranks[2].err
    status, rest = re.split(r"<json took [\d.]+ s>\n", out)
    (job,) = json.loads(status)
    late = job["late"]
    assert late["ranks"] == [2] and late["operation"].endswith('key "first"') and late["waited_s"] > 0.5, f"{done}"
    assert [rank["steps"] for rank in job["ranks"]] == [51, 51, 50], f"{done}"
    site = r"rank 2 \(pid \d+ on \S+\) at \S*watched\.py:\d+ in evaluate has not called"
    assert re.search(
        rf"^late: rank [01] has waited [\d.]+ s for .* key \"first\", which {site}$", rest, re.MULTILINE
    ), f"{done}"
    for line in (
        'ringpull_late{rank="2"} 1',
        'ringpull_up{rank="1"} 1',
        "<metrics 200>",
        "ok",
        "<health 200>",
        "<nothing 404>",
    ):
        assert line in rest.splitlines(), f"{line}\n{done}"
    assert re.search(r"^ringpull_steps_total\{rank=\"0\",host=\"[^\"]+\"\} 51$", rest, re.MULTILINE), f"{done}"
    # After SIGUSR1 there is a line for each rank, and a line with the late rank.
    assert "(SIGUSR1)" in err and all(re.search(rf"^  rank {rank} \(pid", err, re.MULTILINE) for rank in range(3)), (
        f"{done}"
    )
    assert re.search(site.replace("evaluate", "answered"), err), f"{done}"


def test_a_job_with_servers_is_shown_with_them():
    metrics = free_address()
    words = {"RINGPULL_METRICS": metrics, "RINGPULL_TIMEOUT": 60}
    done = launch(3, 2, HERE / "jobs/watched.py", "dist_sync", ringpull_binary(), metrics, **words)
    assert done.status == 0 and all(f"rank {rank} is done" in printed.out for rank, printed in enumerate(done.ranks)), (
        f"{done}"
    )
    status, rest = re.split(r"<json took [\d.]+ s>\n", done.ranks[2].out)
    (job,) = json.loads(status)
    assert job["placement"] == "3 workers and 2 servers on 1 host" and job["library"] == "parameter servers", f"{done}"
    late = job["late"]
    assert late["ranks"] == [2] and late["operation"].endswith('key "first"') and late["waited_s"] > 0.5, f"{done}"
    assert [rank["steps"] for rank in job["ranks"]] == [51, 51, 50], f"{done}"
    # Each key is on one of the two servers. Workers only check whether the other server lives.
    servers = [server for server in job["servers"] if server["received_bytes"] > 500]
    assert servers and all(server["steps"] == 50 and server["peer"]["role"] == "server" for server in servers), f"{done}"
    assert any(server["doing"] == 'waits for push of key "first" by rank(s) [2]' for server in servers), f"{done}"
    assert re.search(r'^server [01] .*waits for push of key "first" by rank\(s\) \[2\]', rest, re.MULTILINE), f"{done}"
    assert re.search(r"^late: rank [01] has waited .*watched\.py:\d+ in evaluate has not called$", rest, re.MULTILINE)
    for line in ('ringpull_late{rank="2"} 1', "<metrics 200>", "<health 200>"):
        assert line in rest.splitlines(), f"{line}\n{done}"
    assert re.search(r"^ringpull_steps_total\{server=\"[01]\",host=\"[^\"]+\"\} 50$", rest, re.MULTILINE), f"{done}"
