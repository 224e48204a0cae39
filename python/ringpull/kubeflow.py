"""A step of a Kubeflow pipeline that trains with ringpull: the component, and the program of its container.

    from ringpull.kubeflow import train_comp

    @kfp.dsl.pipeline
    def pipeline():
        train_comp(
            train_specification="python3 /train/train.py",
            train_parameters={"kv-store": "dist_sync_mpi"},
            distribution_specification={"distribution_type": "MPI", "number_of_workers": 3},
        )

`train_specification` is a command, or the text of a component whose container runs a command, such as the text that
``kfp.components.func_to_component_text`` returns. The step writes the job by ``ringpull manifest specification``,
creates it with the pod's service account, follows it, and ends with the job's result. The account needs the verbs
create and get for the job's kind. If the step is stopped, its job goes on.

The step and its job both mount the claim `pvc_name` at `train_mount`. Through it the data sets reach the job, and the model reaches the
step.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["train_comp", "train_command", "manifest", "run"]

#: The component, for pipelines that load it themselves.
COMPONENT = pathlib.Path(__file__).with_name("component.yaml")
#: The folder in which a pod finds its service account.
ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: `DATA_SETS` are the inputs that are folders of the step; `PATHS` adds the output.
DATA_SETS = ("train_dataset_dir", "validation_dataset_dir")
PATHS = (*DATA_SETS, "model_dir")


def train_comp(*by_position: Any, **arguments: Any) -> Any:
    """Makes the task of a pipeline that trains. Needs the package kfp.

    It takes the inputs of component.yaml, by name or in their order. A data set is the output of another task, or
    the path of a folder on the claim. Data sets may be left out.
    """
    component = importlib.import_module("yaml").safe_load(COMPONENT.read_text())
    names = [given["name"] for given in component["inputs"]]
    if len(by_position) > len(names):
        raise TypeError(f"train_comp() takes {len(names)} arguments, and {len(by_position)} were given")
    for name, value in zip(names, by_position, strict=False):
        if name in arguments:
            raise TypeError(f"train_comp() got {name} by position and by name")
        arguments[name] = value
    arguments = {name: value for name, value in arguments.items() if value is not None}
    words = component["implementation"]["container"]["args"]
    for name in DATA_SETS:
        at = words.index({"inputPath": name})
        if name not in arguments:
            del words[at - 1 : at + 1]
            component["inputs"] = [given for given in component["inputs"] if given["name"] != name]
        elif _is_text(arguments[name]):
            words[at] = {"inputValue": name}
            next(given for given in component["inputs"] if given["name"] == name)["type"] = "String"
    text = importlib.import_module("yaml").safe_dump(component, sort_keys=False)
    return importlib.import_module("kfp.components").load_component_from_text(text)(**arguments)


def _is_text(value: Any) -> bool:
    """Returns True if kfp passes a value on as text (here the path of a folder) and not as a folder."""
    kinds = {kind.__name__ for kind in type(value).__mro__}
    # In kfp 1.8 a `PipelineParam` with an `op_name` is a task's output, which may be a folder. Without one it is a parameter of the
    # pipeline, which is text.
    of_pipeline = "PipelineParam" in kinds and not value.op_name
    return isinstance(value, str) or "PipelineParameterChannel" in kinds or of_pipeline


def train_command(specification: str, parameters: Mapping[str, Any], inputs: Mapping[str, str] | None = None) -> list[str]:
    """The command of every rank, as words. The specification is a command, or the text of a component.

    The parameters are options of the command, or inputs of the component. If the value of a parameter is the name of one of `inputs`, that
    input's value is used.
    """
    inputs = inputs or {}
    given = {name: inputs.get(value, value) if isinstance(value, str) else value for name, value in parameters.items() if value is not None}
    for name, value in given.items():
        if inputs and isinstance(value, str) and value in PATHS:
            raise ValueError(f"train_parameters gives {name!r} the input {value}, but this step has no {value}\n  hint: give train_comp {value} too")
    if "implementation:" not in specification:
        options = [word for name, value in given.items() for word in (f"--{name}", _text(value))]
        try:
            return shlex.split(specification) + options
        except ValueError as cause:
            raise ValueError(f"train_specification is no command: {cause}\n  hint: close each quotation that it opens") from None
    yaml = importlib.import_module("yaml")
    try:
        component = yaml.safe_load(specification)
    except yaml.YAMLError as cause:
        raise ValueError(f"train_specification is no YAML: {cause}\n  hint: give a command, or the text of a component") from None
    implementation = component.get("implementation") if isinstance(component, dict) else None
    container = implementation.get("container") if isinstance(implementation, dict) else None
    if not isinstance(container, dict):
        raise ValueError("train_specification has no container\n  hint: give a command, or the text of a component that is one container")
    items = []
    for name in "command", "args":
        part = container.get(name) or []
        if not isinstance(part, list):
            raise ValueError(f"train_specification has {part!r} as {name}, which is no list\n  hint: write {name}: [WORD, WORD]")
        items += part
    words = _Placeholders(component, given).words(items)
    return [word if _is_script(words[:at]) else _find_horovod_in(word) for at, word in enumerate(words)]


class _Placeholders:
    """The placeholders in a component's words, and the values that replace them."""

    def __init__(self, component: dict[str, Any], given: Mapping[str, Any]) -> None:
        inputs = {one["name"]: one for one in component.get("inputs") or []}
        self.given = given
        self.defaults = {name: one["default"] for name, one in inputs.items() if one.get("default") is not None}
        self.optional = {name for name, one in inputs.items() if one.get("optional")}

    def words(self, items: Iterable[Any]) -> list[str]:
        """Returns the words that replace the items. An optional input that was not given is replaced by no word."""
        return [word for item in items for word in self._resolve(item)]

    def _resolve(self, item: Any) -> list[str]:
        if not isinstance(item, dict):
            return [_text(item)]
        kind, of = next(iter(item.items())) if len(item) == 1 else (None, None)
        if kind in ("inputValue", "inputPath", "inputUri", "outputPath", "outputUri") and isinstance(of, str):
            return self._value(kind, of)
        if kind == "concat" and isinstance(of, list):
            return ["".join(self.words(of))]
        if kind == "if" and isinstance(of, dict) and "cond" in of:
            branch = of.get("then") if self._holds(of["cond"]) else of.get("else")
            return self.words(branch if isinstance(branch, list) else [] if branch is None else [branch])
        raise ValueError(f"train_specification has the placeholder {item}, which has no meaning in a job\n  hint: leave it out, or give a command")

    def _holds(self, condition: Any) -> bool:
        if isinstance(condition, dict) and "isPresent" in condition:
            return condition["isPresent"] in self.given
        return "".join(self._resolve(condition)).lower() == "true"

    def _value(self, kind: str, name: str) -> list[str]:
        if name in self.given:
            value = _text(self.given[name])
            if kind.endswith("Path") and "/" not in value:
                names = ", ".join(PATHS)
                raise ValueError(f"train_parameters gives {name!r} the path {value!r}, which is no input of this step\n  hint: write one of {names}, or a path with /")
            return [value]
        if kind == "inputValue" and name in self.defaults:
            return [_text(self.defaults[name])]
        if kind.startswith("input") and name in self.optional:
            return []
        meant = name if name in PATHS else "VALUE"
        raise ValueError(f"train_parameters has no {name!r}, which train_specification needs ({kind})\n  hint: add {name!r}: {meant!r} to train_parameters")


def _text(value: Any) -> str:
    """The text that kfp writes for a value in a container's command."""
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _is_script(before: list[str]) -> bool:
    """Returns True if the word after these is a shell script. Such a script can be valid Python too."""
    return len(before) > 1 and before[-1].startswith("-") and before[-1].endswith("c") and pathlib.PurePath(before[-2]).name in ("sh", "bash", "dash")


def _find_horovod_in(word: str) -> str:
    """Returns the word. If it is a program that imports Horovod, first adds a line by which the program finds our package instead."""
    if "horovod" not in word or "\n" not in word:
        return word
    try:
        body = ast.parse(word).body
    except SyntaxError:
        return word
    imported = [node for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [name.name for node in imported if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in imported if isinstance(node, ast.ImportFrom)]
    if "horovod" not in {name.partition(".")[0] for name in names}:
        return word
    lines, after = word.splitlines(keepends=True), 0
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        after = node.end_lineno or after
    return "".join([*lines[:after], f"import {__name__}; {__name__}.find_horovod()\n", *lines[after:]])


def find_horovod() -> None:
    """Makes ``import horovod`` find our package, as ``python -m ringpull.horovod`` does, unless Horovod is installed."""
    if importlib.util.find_spec("horovod") is None:
        sys.meta_path.insert(0, importlib.import_module("ringpull.horovod.names").Finder("horovod"))


def manifest(distribution: dict[str, Any], command: list[str], options: list[str]) -> list[dict[str, Any]]:
    """The objects that ``ringpull manifest specification`` writes."""
    words = ["ringpull", "manifest", "specification", json.dumps(distribution), *options, "--", *command]
    written = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if written.returncode:
        raise SystemExit(written.returncode)
    return [document for document in importlib.import_module("yaml").safe_load_all(written.stdout) if document]


class Cluster:
    """The API server, used with the service account of this pod."""

    def __init__(self, server: str | None = None, account: pathlib.Path = ACCOUNT) -> None:
        if server is None:
            host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise SystemExit("error: this process is not in a pod of a cluster\n  hint: run it as a step of a pipeline, or print the job with --dry-run")
            server = f"https://{host}:{port}"
        self.server, self.account = server, account
        self.context = ssl.create_default_context(cafile=account / "ca.crt") if server.startswith("https:") else None
        self.namespace = (account / "namespace").read_text().strip()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the server's answer. If the server refuses, raises an error with the server's text."""
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
        """The path of objects of this kind."""
        version, plural = thing["apiVersion"], thing["kind"].lower() + "s"
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return f"{root}/namespaces/{thing['metadata'].get('namespace', self.namespace)}/{plural}"


def run(objects: list[dict[str, Any]], cluster: Cluster, every: float = 5.0) -> int:
    """Creates the objects and waits for the last of them, the job. Returns 0 if the job succeeds, 1 if it fails."""
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


class _Shared:
    """The folder of the claim in which the step and its job exchange data."""

    def __init__(self, claim: str, mount: str, job: str) -> None:
        self.claim, self.mount = claim, pathlib.PurePath(mount)
        self.folder = pathlib.Path(mount, job)

    def place(self, name: str, path: str) -> str:
        """Returns the job's path for a path of the step. A path on the claim is the same in both."""
        return path if pathlib.PurePath(path).is_relative_to(self.mount) else str(self.folder / name)

    def check(self, name: str) -> None:
        """Makes the folder. Raises an error unless the step and the job have the claim."""
        if not self.claim or not pathlib.Path(self.mount).is_dir():
            missing = "pvc_name is empty" if not self.claim else f"this step has no folder {self.mount}"
            raise SystemExit(
                f"error: {name} cannot be shared with the job: {missing}\n"
                f"  hint: give pvc_name, and mount that claim at {self.mount} in this step too (add_pvolumes of kfp 1.8, kfp.kubernetes.mount_pvc of kfp 2)"
            )
        self.folder.mkdir(exist_ok=True)
        # The job may run as another user.
        self.folder.chmod(0o777)


def _copy(source: str, target: str) -> None:
    """Copies a folder or a file from `source` to `target`, if these differ."""
    if source == target:
        return
    pathlib.Path(target).parent.mkdir(parents=True, exist_ok=True)
    if os.path.isdir(source):
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def main(words: list[str] | None = None) -> int:
    """Runs the component in its container."""
    parser = argparse.ArgumentParser(prog="python3 -m ringpull.kubeflow", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-specification", required=True)
    parser.add_argument("--train-parameters", type=json.loads, default={})
    parser.add_argument("--distribution-specification", type=json.loads, default={})
    names = ("train-dataset-dir", "validation-dataset-dir", "model-dir", "model-name", "base-image", "pvc-name", "pvc-size", "cpus", "memory", "gpus")
    for name in (*names, "node-selector", "tensorboard-s3-address", "cluster-configuration-secret", "options"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--train-mount", default="/train")
    parser.add_argument("--dry-run", action="store_true", help="print the objects and create nothing")
    given = parser.parse_args(words)
    if given.cluster_configuration_secret:
        raise SystemExit(
            "error: cluster_configuration_secret: this component creates jobs in its own cluster only, and copies nothing through MinIO\n"
            "  hint: leave it empty, and run the pipeline in that cluster"
        )
    name = f"{given.model_name or 'train'}-{time.strftime('%m%d%H%M%S')}"
    shared = _Shared(given.pvc_name, given.train_mount or "/train", name)
    paths = {of: getattr(given, of) for of in PATHS if getattr(given, of)}
    places = {of: shared.place(of, path) for of, path in paths.items()}
    own = {of: getattr(given, of) for of in ("model_name", "train_mount", "tensorboard_s3_address")}
    used = {of for of in places if of in given.train_parameters.values()}
    options = ["--name", name, "--label", f"train-model-job={name}", *shlex.split(given.options)]
    # Programs of the published component read this variable, also if it is empty.
    options += ["--env", f"TENSORBOARD_S3_ADDRESS={given.tensorboard_s3_address}"]
    for option, value in [("--image", given.base_image), ("--claim", given.pvc_name)]:
        options += [option, value] if value else []
    distribution = dict(given.distribution_specification or {})
    for limit, value in [("cpus", given.cpus), ("memory", given.memory)]:
        # These are limits of a Job. The limits of workers, if there are any, are in the dictionary.
        if value and distribution.get("distribution_type") in (None, "Job"):
            distribution.pop(f"worker_{limit}", None)
        if value and distribution.get(f"worker_{limit}") is None:
            options += [f"--{limit}", value]
    if given.pvc_name and given.train_mount:
        options += ["--mount", given.train_mount]
    if given.gpus not in ("", "0"):
        options += ["--gpus", given.gpus]
    if given.node_selector:
        # The published component takes a line of YAML.
        label, _, value = given.node_selector.partition(":" if ":" in given.node_selector else "=")
        options += ["--node-selector", f"{label.strip()}={value.strip().strip(chr(34))}"]
    try:
        command = train_command(given.train_specification, given.train_parameters, places | own)
    except ValueError as cause:
        raise SystemExit(f"error: {cause}") from None
    objects = manifest(distribution, command, options)
    if given.dry_run:
        print(json.dumps(objects, indent=1))
        return 0
    for of in sorted(used):
        shared.check(of)
        if of in DATA_SETS:
            _copy(paths[of], places[of])
    code = run(objects, Cluster())
    if code == 0 and given.model_dir:
        pathlib.Path(given.model_dir).mkdir(parents=True, exist_ok=True)
        if "model_dir" in used:
            if not os.path.exists(places["model_dir"]):
                raise SystemExit(f"error: the job has succeeded without its model_dir, {places['model_dir']}\n  hint: let rank 0 write it")
            _copy(places["model_dir"], given.model_dir)
    if code == 0 and used:
        # Files of another user cannot be removed, and may stay.
        shutil.rmtree(shared.folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
