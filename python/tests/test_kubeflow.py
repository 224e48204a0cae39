"""Tests the step of a Kubeflow pipeline: kfp compiles it, and its container creates the job and follows it."""

import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import kubeflow_pipeline
import pytest
import ranks

from ringpull import kubeflow

COMPONENT_TEXT = """
name: train
inputs: [{name: epochs, type: Integer}]
implementation:
  container: {image: a, command: [sh, -ec, 'python3 -c "$0" "$@"'], args: ['print(1)', --epochs, {inputValue: epochs}]}
"""


#: The command that kfp gives a function's container, and the program that kfp makes of the function.
SCRIPT = 'program_path=$(mktemp)\nprintf "%s" "$0" > "$program_path"\npython3 -u "$program_path" "$@"\n'
PROGRAM = """def train(epochs):
    import horovod.common.basics as hvd
    import json
    hvd.init()
    print(json.dumps([hvd.rank(), hvd.size(), epochs, __name__]))

import sys
train(*sys.argv[1:])
"""
PLACEHOLDERS = """
inputs:
- {name: data, type: String}
- {name: epochs, type: Integer, default: '100', optional: true}
- {name: rate, type: Float, default: '0.5'}
- {name: note, optional: true}
- {name: amp, type: Boolean}
outputs: [{name: model}]
implementation:
  container:
    image: python:3.7
    command: [python3, train.py]
    args:
    - {concat: [--data=, {inputPath: data}, /, {inputValue: rate}]}
    - {if: {cond: {isPresent: epochs}, then: [--epochs, {inputValue: epochs}]}}
    - {if: {cond: {isPresent: note}, then: [--note, {inputValue: note}], else: [--no-note]}}
    - if:
        cond: {inputValue: amp}
        then: [--amp, {if: {cond: {isPresent: rate}, then: --fast, else: --slow}}]
    - {inputValue: note}
    - --model
    - {outputPath: model}
"""


def test_the_notebooks_call_compiles(tmp_path):
    kfp = pytest.importorskip("kfp", reason="kfp is not installed: scripts/setup --python")
    yaml = pytest.importorskip("yaml")
    path = tmp_path / "pipeline.yaml"
    kubeflow_pipeline.compile_pipeline(kubeflow, path)
    compiled = yaml.safe_load(path.read_text())
    if kfp.__version__.startswith("1."):
        return
    containers = [executor["container"] for executor in compiled["deploymentSpec"]["executors"].values()]
    ours = [container for container in containers if "ringpull.kubeflow" in container["command"]]
    assert len(ours) == 5 and all(container["command"] == ["python3", "-u", "-m", "ringpull.kubeflow"] for container in ours)
    task = compiled["root"]["dag"]["tasks"]["train-with-ringpull"]["inputs"]
    assert set(task["artifacts"]) == {"train_dataset_dir", "validation_dataset_dir"}
    given = task["parameters"]["distribution_specification"]["runtimeValue"]["constant"]
    assert given["number_of_workers"] == "{{$.inputs.parameters['pipelinechannel--number_of_workers']}}"


@pytest.mark.long
def test_the_notebooks_call_compiles_with_the_other_kfp(tmp_path):
    """Makes an environment with kfp 1.8, for which the notebooks were written."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run([tmp_path / "venv/bin/pip", "install", "--quiet", "kfp==1.8.22", "setuptools<81"], check=True)
    program, module = kubeflow_pipeline.__file__, kubeflow.__file__
    subprocess.run([tmp_path / "venv/bin/python", program, module, tmp_path / "pipeline.yaml"], check=True)
    assert "number_of_workers" in (tmp_path / "pipeline.yaml").read_text()


def test_inputs_are_given_by_position_or_by_name_and_not_twice():
    pytest.importorskip("yaml")
    with pytest.raises(TypeError, match="train_dataset_dir by position and by name"):
        kubeflow.train_comp("/train/a", train_dataset_dir="/train/a")
    with pytest.raises(TypeError, match="takes 17 arguments, and 18 were given"):
        kubeflow.train_comp(*range(18))


def test_a_specification_is_a_command_or_the_text_of_a_component():
    assert kubeflow.train_command("python3 'my train.py'", {"epochs": 3}) == ["python3", "my train.py", "--epochs", "3"]
    pytest.importorskip("yaml")
    words = kubeflow.train_command(COMPONENT_TEXT, {"epochs": "3"})
    assert words == ["sh", "-ec", 'python3 -c "$0" "$@"', "print(1)", "--epochs", "3"]
    with pytest.raises(ValueError, match="epochs"):
        kubeflow.train_command(COMPONENT_TEXT, {})


def test_placeholders_are_what_kfp_makes_of_them():
    pytest.importorskip("yaml")
    given = {"data": "/train/a", "amp": "False", "model": "/train/m"}
    words = ["python3", "train.py", "--data=/train/a/0.5", "--no-note", "--model", "/train/m"]
    assert kubeflow.train_command(PLACEHOLDERS, given) == words
    given |= {"epochs": 3, "note": ["a", 1], "amp": True, "rate": 0.25}
    words = ["python3", "train.py", "--data=/train/a/0.25", "--epochs", "3", "--note", '["a", 1]', "--amp", "--fast", '["a", 1]']
    assert kubeflow.train_command(PLACEHOLDERS, given) == [*words, "--model", "/train/m"]
    for left_out in ("data", "amp", "model"):
        with pytest.raises(ValueError, match=f"no '{left_out}'.*\n  hint: add '{left_out}'"):
            kubeflow.train_command(PLACEHOLDERS, {name: value for name, value in given.items() if name != left_out})
    for text, named in [("{executorInput: null}", "executorInput"), ("{ifPresent: {}}", "ifPresent")]:
        with pytest.raises(ValueError, match=f"{named}.*\n  hint: "):
            kubeflow.train_command(f"implementation: {{container: {{command: [{text}]}}}}", {})
    for text, named in [
        ("implementation: {graph: {tasks: {}}}", "no container"),
        ("implementation: [", "no YAML"),
        ("implementation: text", "no container"),
        ("implementation: {container: {command: python3, args: [t.py]}}", "'python3' as command, which is no list"),
        ("implementation: {container: {command: [{}]}}", "placeholder {}"),
        ("implementation: {container: {command: [{inputValue: a, outputPath: b}]}}", "placeholder"),
        ("implementation: {container: {command: [{inputValue: {a: b}}]}}", "placeholder"),
        ("python3 'train.py", "no command: No closing quotation"),
    ]:
        with pytest.raises(ValueError, match=rf"{named}[^\0]*\n  hint: "):
            kubeflow.train_command(text, {"a": 1})


def test_a_parameter_that_names_an_input_stands_for_it():
    pytest.importorskip("yaml")
    inputs = {"train_dataset_dir": "/train/a", "model_dir": "/train/m", "model_name": "monkey"}
    given = {"data": "train_dataset_dir", "amp": "1", "model": "model_dir", "note": "model_name"}
    words = kubeflow.train_command(PLACEHOLDERS, given, inputs)
    assert words == ["python3", "train.py", "--data=/train/a/0.5", "--note", "monkey", "monkey", "--model", "/train/m"]
    assert kubeflow.train_command("train", {"data": "train_dataset_dir"}, inputs) == ["train", "--data", "/train/a"]
    # A misspelled name of a folder is an error.
    with pytest.raises(ValueError, match="'data' the path 'train_data_dir', .*\n  hint: write one of train_dataset_dir, "):
        kubeflow.train_command(PLACEHOLDERS, given | {"data": "train_data_dir"}, inputs)
    with pytest.raises(ValueError, match="validation_dataset_dir.*\n  hint: give train_comp validation_dataset_dir too"):
        kubeflow.train_command("train", {"val": "validation_dataset_dir"}, inputs)


@pytest.mark.parametrize("installed", [False, True])
def test_a_published_cell_finds_our_horovod_unless_horovod_is_installed(tmp_path, installed):
    yaml = pytest.importorskip("yaml")
    words = ["sh", "-ec", SCRIPT, PROGRAM]
    text = yaml.safe_dump({"implementation": {"container": {"command": words, "args": [{"inputValue": "epochs"}]}}})
    command = kubeflow.train_command(text, {"epochs": 3})
    if installed:
        package = tmp_path / "horovod/common"
        package.mkdir(parents=True)
        (package / "basics.py").write_text("def init(): pass\ndef rank(): return 7\ndef size(): return 8\n")
    bin_of_python = tmp_path / "bin"
    bin_of_python.mkdir()
    (bin_of_python / "python3").symlink_to(sys.executable)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "PATH": f"{bin_of_python}:{os.environ['PATH']}"}
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    assert json.loads(ran.stdout.splitlines()[-1]) == [*([7, 8] if installed else [0, 1]), "3", "__main__"]


def test_only_programs_that_import_horovod_are_changed():
    pytest.importorskip("yaml")
    future = '"""Trains."""\nfrom __future__ import annotations\nfrom horovod import torch\n'
    line = "import ringpull.kubeflow; ringpull.kubeflow.find_horovod()\n"
    for words, changed in [
        (["python3", "-u", "-c", future], future.replace("from horovod", f"{line}from horovod")),
        (["python3", "-c", "import ringpull.horovod.torch as hvd\nhvd.init()\n"], None),
        (["/bin/sh", "-ec", "cat > x.py <<END\nimport horovod\nEND\n"], None),
        (["python3", "-c", "print(\n'import horovod')\n"], None),
        (["python3", "-c", "import horovod_tools\nprint(1)\n"], None),
    ]:
        text = f"implementation: {{container: {{command: {json.dumps(words)}}}}}"
        assert kubeflow.train_command(text, {}) == [*words[:-1], changed or words[-1]], words


#: The arguments that a published notebook gives the component, without its data.
CALL = {
    "train-specification": PLACEHOLDERS,
    "train-parameters": json.dumps({"data": "train_dataset_dir", "amp": "1", "model": "model_dir"}),
    "distribution-specification": '{"distribution_type": "Job", "number_of_workers": "1"}',
    "model-name": "monkey",
    "gpus": "0",
    "pvc-name": "data",
    "tensorboard-s3-address": "s3://logs/a",
    "node-selector": 'nvidia.com/gpu.product: "Tesla-V100"',
}


def words_of(call):
    return [word for name, value in call.items() for word in (f"--{name}", value)]


def test_data_sets_reach_the_job_and_its_model_comes_back(tmp_path, monkeypatch):
    pytest.importorskip("yaml")
    mount, data, model = tmp_path / "train", tmp_path / "inputs/data", tmp_path / "outputs/model_dir/data"
    mount.mkdir()
    data.mkdir(parents=True)
    (data / "a.txt").write_text("data")
    seen = {}

    def manifest(distribution, command, options):
        seen.update(distribution=distribution, command=command, options=options)
        return []

    def run(_objects, _cluster):
        # This stands for the job, which has the claim but not the step's other folders.
        place = pathlib.Path(seen["command"][2].removeprefix("--data=").removesuffix("/0.5"))
        target = pathlib.Path(seen["command"][-1])
        assert place.is_relative_to(mount) and target.is_relative_to(mount)
        if seen["writes"]:
            target.mkdir()
            (target / "model.txt").write_text((place / "a.txt").read_text() + " trained")
        return seen["code"]

    for name, double in [("manifest", manifest), ("run", run), ("Cluster", lambda: None)]:
        monkeypatch.setattr(kubeflow, name, double)
    call = CALL | {"train-mount": str(mount), "train-dataset-dir": str(data), "model-dir": str(model)}
    seen.update(code=0, writes=False)
    with pytest.raises(SystemExit, match="without its model_dir, .*/model_dir\n  hint: "):
        kubeflow.main(words_of(call))
    shutil.rmtree(next(mount.iterdir()))
    seen.update(code=1, writes=True)
    assert kubeflow.main(words_of(call)) == 1
    # The folder of a failed job stays, so that one can look at it.
    (kept,) = mount.iterdir()
    assert list(model.parent.rglob("model.txt")) == [] and (kept / "train_dataset_dir/a.txt").exists()
    shutil.rmtree(kept)
    seen["code"] = 0
    assert kubeflow.main(words_of(call)) == 0
    assert (model / "model.txt").read_text() == "data trained" and list(mount.iterdir()) == []
    options = dict(zip(seen["options"][::2], seen["options"][1::2], strict=True))
    assert options["--env"] == "TENSORBOARD_S3_ADDRESS=s3://logs/a" and options["--mount"] == str(mount)
    assert options["--node-selector"] == "nvidia.com/gpu.product=Tesla-V100"
    # Without a folder that both the step and the job have, the job would look for folders of the step.
    for missing in ({"pvc-name": ""}, {"train-mount": str(tmp_path / "none")}):
        with pytest.raises(SystemExit, match="cannot be shared with the job.*\n  hint: give pvc_name, and mount"):
            kubeflow.main(words_of(call | missing))
    with pytest.raises(SystemExit, match="its own cluster only"):
        kubeflow.main(words_of(call | {"cluster-configuration-secret": "other"}))
    # A data set on the claim is used in place.
    (mount / "data").mkdir()
    (mount / "data/a.txt").write_text("there")
    assert kubeflow.main(words_of(call | {"train-dataset-dir": str(mount / "data")})) == 0
    assert (model / "model.txt").read_text() == "there trained" and (mount / "data/a.txt").exists()


def test_the_commands_words_are_those_of_ringpull_manifest(tmp_path, monkeypatch, capsys):
    pytest.importorskip("yaml")
    monkeypatch.setenv("PATH", f"{pathlib.Path(ranks.ringpull_binary()).parent}:{os.environ['PATH']}")

    def written(**changed):
        call = CALL | {"model-dir": str(tmp_path / "m"), "train-dataset-dir": "/d"} | {name.replace("_", "-"): value for name, value in changed.items()}
        assert kubeflow.main([*words_of(call), "--dry-run"]) == 0
        return json.loads(capsys.readouterr().out)[-1]

    job = written(cpus="2")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["kind"] == "Job" and job["metadata"]["labels"]["train-model-job"] == job["metadata"]["name"]
    assert container["env"] == [{"name": "TENSORBOARD_S3_ADDRESS", "value": "s3://logs/a"}]
    assert container["args"][-1] == f"/train/{job['metadata']['name']}/model_dir" and container["resources"]["limits"]["cpu"] == "2"
    # These are all keys of the guide, and the limits of a Job.
    limits = '"worker_cpus": "8", "worker_memory": "32Gi", "launcher_cpus": "2", "launcher_memory": "8Gi"'
    job = written(distribution_specification=f'{{"distribution_type": "MPI", "number_of_workers": 3, {limits}}}', cpus="2")
    assert job["kind"] == "MPIJob" and job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    pod = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "8", "memory": "32Gi"}
    with pytest.raises(SystemExit):
        written(distribution_specification='{"distribution_type": "TF"}', train_specification="train --kv-store dist_sync_mpi", train_parameters="{}")


class Api(http.server.BaseHTTPRequestHandler):
    """The part of Kubernetes' API that the step uses. A job is running at the step's first question, and has ended at the second."""

    end = "Succeeded"
    created: list = []
    asked = 0

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer secret"
        Api.created.append((self.path, body["kind"]))
        self.answer(201, body)

    def do_GET(self):
        Api.asked += 1
        types = ["Created", "Running"] if Api.asked == 1 else ["Created", Api.end]
        self.answer(200, {"status": {"conditions": [{"type": it, "status": "True", "message": "why"} for it in types]}})

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(("end", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_the_job_is_created_and_followed_to_its_end(tmp_path, capsys, end, code):
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("team")
    Api.end, Api.created, Api.asked = end, [], 0
    server = http.server.HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        cluster = kubeflow.Cluster(f"http://127.0.0.1:{server.server_port}", tmp_path)
        job = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "a"}}
        assert kubeflow.run([job], cluster, every=0.01) == code
    finally:
        server.shutdown()
    assert Api.created == [("/apis/kubeflow.org/v2beta1/namespaces/team/mpijobs", "MPIJob")]
    printed = capsys.readouterr()
    assert "Created, Running" in printed.out and ("why" in printed.err) == (code == 1)
