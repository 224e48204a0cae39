"""A step of a Kubeflow pipeline that trains with ringpull: the component, and what its container runs.

    from ringpull.kubeflow import train_comp

    @kfp.dsl.pipeline
    def pipeline():
        train_comp(
            train_specification="python3 /train/train.py",
            train_parameters={"kv-store": "dist_sync_mpi"},
            distribution_specification={"distribution_type": "MPI", "number_of_workers": 3},
        )

`train_specification` is a command, or the text of a component whose container runs one. The step writes the
job by ``ringpull manifest specification``, creates it with the pod's service account, follows it, and ends as
the job ends. That account needs the verbs create and get of the job's kind. A step that is stopped leaves its job.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import shlex
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

__all__ = ["train_comp", "train_command", "manifest", "run"]

#: The component, for pipelines that load it themselves.
COMPONENT = pathlib.Path(__file__).with_name("component.yaml")
#: Where Kubernetes gives a pod its account.
ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")


def train_comp(**arguments: Any) -> Any:
    """A task of a pipeline that trains; it takes the inputs of component.yaml, and needs the package kfp."""
    components = importlib.import_module("kfp.components")
    return components.load_component_from_file(str(COMPONENT))(**arguments)


def train_command(specification: str, parameters: dict[str, Any]) -> list[str]:
    """The words that every rank runs: of a command, or of a component's text, whose inputs are the parameters."""
    if "implementation:" not in specification:
        options = [word for name, value in parameters.items() for word in (f"--{name}", str(value))]
        return shlex.split(specification) + options
    container = importlib.import_module("yaml").safe_load(specification)["implementation"]["container"]
    words = []
    for word in [*container.get("command", []), *container.get("args", [])]:
        if isinstance(word, dict):
            kind, name = next(iter(word.items()))
            if kind not in ("inputValue", "inputPath", "outputPath") or name not in parameters:
                raise ValueError(f"train_parameters has no {name!r}, which train_specification needs ({kind})")
            word = parameters[name]
        words.append(str(word))
    return words


def manifest(distribution: dict[str, Any], command: list[str], options: list[str]) -> list[dict[str, Any]]:
    """The objects that ``ringpull manifest specification`` writes."""
    words = ["ringpull", "manifest", "specification", json.dumps(distribution), *options, "--", *command]
    written = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if written.returncode:
        raise SystemExit(written.returncode)
    return [document for document in importlib.import_module("yaml").safe_load_all(written.stdout) if document]


class Cluster:
    """The API server, with the account of this pod."""

    def __init__(self, server: str | None = None, account: pathlib.Path = ACCOUNT) -> None:
        if server is None:
            host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise SystemExit("error: this is no pod of a cluster\n  hint: run it as a step of a pipeline, or print the job with --dry-run")
            server = f"https://{host}:{port}"
        self.server, self.account = server, account
        self.context = ssl.create_default_context(cafile=account / "ca.crt") if server.startswith("https:") else None
        self.namespace = (account / "namespace").read_text().strip()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the server answers; its own words if it refuses."""
        # The token is renewed while the pod runs.
        headers = {"Authorization": f"Bearer {(self.account / 'token').read_text().strip()}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self.context) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as refusal:
            words = refusal.read().decode(errors="replace")
            raise SystemExit(f"error: {method} {path}: {refusal.code} {words}\n  hint: see the role of this pod's service account") from None

    def path(self, thing: dict[str, Any]) -> str:
        """Where objects of this kind are."""
        version, plural = thing["apiVersion"], thing["kind"].lower() + "s"
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return f"{root}/namespaces/{thing['metadata'].get('namespace', self.namespace)}/{plural}"


def run(objects: list[dict[str, Any]], cluster: Cluster, every: float = 5.0) -> int:
    """Creates the objects and waits for the last of them, the job: 0 if it succeeds, 1 if it fails."""
    for thing in objects:
        cluster.call("POST", cluster.path(thing), thing)
        print(f"created {thing['kind']} {thing['metadata']['name']}", flush=True)
    job = objects[-1]
    at, seen, failures = f"{cluster.path(job)}/{job['metadata']['name']}", None, 0
    while True:
        try:
            status = cluster.call("GET", at).get("status", {})
            failures = 0
        except (OSError, SystemExit) as cause:
            failures += 1
            if failures > 10:
                raise
            print(f"warning: the API server does not answer: {cause}", file=sys.stderr, flush=True)
            status = {}
        true = [condition for condition in status.get("conditions", []) if condition.get("status") == "True"]
        types = [condition["type"] for condition in true]
        if types and types != seen:
            print(", ".join(types), flush=True)
            seen = types
        if {"Succeeded", "Complete"} & set(types):
            return 0
        if "Failed" in types:
            last = true[types.index("Failed")]
            print(f"error: the job failed: {last.get('message', '')}\n  hint: its launcher's log has the cause", file=sys.stderr)
            return 1
        time.sleep(every)


def main(words: list[str] | None = None) -> int:
    """What the component's container runs."""
    parser = argparse.ArgumentParser(prog="python3 -m ringpull.kubeflow", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-specification", required=True)
    parser.add_argument("--train-parameters", type=json.loads, default={})
    parser.add_argument("--distribution-specification", type=json.loads, default={})
    for name in ("model-name", "base-image", "pvc-name", "train-mount", "cpus", "memory", "gpus", "node-selector", "options"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--dry-run", action="store_true", help="print the objects and create nothing")
    given = parser.parse_args(words)
    name = f"{given.model_name or 'train'}-{time.strftime('%m%d%H%M%S')}"
    options = ["--name", name, *shlex.split(given.options)]
    for option, value in [("--image", given.base_image), ("--claim", given.pvc_name), ("--cpus", given.cpus), ("--memory", given.memory)]:
        options += [option, value] if value else []
    if given.pvc_name and given.train_mount:
        options += ["--mount", given.train_mount]
    if given.gpus not in ("", "0"):
        options += ["--gpus", given.gpus]
    if given.node_selector:
        # The published component takes a line of YAML.
        label, _, value = given.node_selector.partition(":" if ":" in given.node_selector else "=")
        options += ["--node-selector", f"{label.strip()}={value.strip().strip(chr(34))}"]
    command = train_command(given.train_specification, given.train_parameters)
    objects = manifest(given.distribution_specification or {}, command, options)
    if given.dry_run:
        print(json.dumps(objects, indent=1))
        return 0
    return run(objects, Cluster())


if __name__ == "__main__":
    sys.exit(main())
