"""Tests the two published notebooks that train by the component. Their cells compile with our component instead, and it makes the job
that their specification describes.

The notebooks are written for kfp 1.8, so the test makes an environment with kfp 1.8. The training code of their cells runs in
test_horovod.py.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys

import pytest
import ranks

from ringpull import kubeflow

NOTEBOOKS = [
    "computer-vision/monkey-classification/Monkey Classification.ipynb",
    "audio-processing/music-genre-classification/Music Genre Classification.ipynb",
]
#: Cells are run if they have one of these texts. The other cells draw pictures, or call a cluster.
WANTED = ("ARGUMENTS = {", "def preprocess_dataset", "def train_model(", "def train_distributed_model(", "train_specification =", "def evaluate_model", "@dsl.pipeline")
HEADER = """
import importlib.util, json, kfp, os, sys
from pydoc import importfile
from typing import List, NamedTuple
from kfp import dsl
from kfp.components import InputPath, OutputPath

components, module, out = sys.argv[1:]
CATALOG = importfile(f"{components}/catalog.py")
spec = importlib.util.spec_from_file_location("kubeflow", module)
kubeflow = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kubeflow)
CATALOG.train_model_comp = kubeflow.train_comp
"""
FOOTER = """
(pipeline,) = [value for name, value in list(globals().items()) if name.endswith("_pipeline")]
kfp.compiler.Compiler().compile(pipeline, f"{out}/pipeline.yaml")
with open(f"{out}/specification.yaml", "w") as file:
    file.write(train_specification)
"""


@functools.cache
def python_with_kfp(folder):
    """Makes an environment with the notebooks' kfp. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "--quiet", "kfp==1.8.22", "setuptools<81"], check=True)
    return folder / "bin/python"


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=["images", "audio"])
def test_a_published_notebook_compiles_and_writes_the_job_that_it_means(tmp_path, tmp_path_factory, monkeypatch, capsys, checkout, notebook, workers):
    yaml = pytest.importorskip("yaml")
    cells = json.loads((checkout("kubeflow-ppc64le-examples") / notebook).read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = "\n".join([HEADER, *(text for text in sources if any(part in text for part in WANTED)), FOOTER])
    (tmp_path / "namespace").write_text("team")
    (tmp_path / "cells.py").write_text(program.replace("/var/run/secrets/kubernetes.io/serviceaccount/namespace", str(tmp_path / "namespace")))
    catalog = checkout("kubeflow-ppc64le-components")
    python = python_with_kfp(tmp_path_factory.getbasetemp() / "kfp")
    words = [python, tmp_path / "cells.py", catalog, kubeflow.__file__, tmp_path]
    subprocess.run(words, check=True, env=os.environ | {"NUMBER_OF_WORKERS": workers})
    # One step of the compiled pipeline is ours. In its arguments Argo replaces parameters by the pipeline's arguments.
    templates = yaml.safe_load((tmp_path / "pipeline.yaml").read_text())["spec"]["templates"]
    (step,) = [it["container"] for it in templates if "ringpull.kubeflow" in it.get("container", {}).get("command", [])]
    arguments = {"model_name": "notebook", "training_gpus": "0", "number_of_workers": workers, "distribution_type": "Job" if workers == "1" else "MPI"}
    given = [arguments_in(word, arguments) for word in step["args"]]
    monkeypatch.setenv("PATH", f"{pathlib.Path(ranks.ringpull_binary()).parent}:{os.environ['PATH']}")
    assert kubeflow.main([*given, "--dry-run"]) == 0
    job = json.loads(capsys.readouterr().out)[-1]
    if workers == "1":
        (container,) = job["spec"]["template"]["spec"]["containers"]
    else:
        (container,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
        assert container["args"][:5] == ["mpirun", "--bind-to", "none", "--map-by", "slot"]
        assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    assert job["kind"] == ("Job" if workers == "1" else "MPIJob")
    place = f"/train/{job['metadata']['name']}"
    at = container["args"].index("--train-dataset-dir")
    assert container["args"][at:] == [
        *("--train-dataset-dir", f"{place}/train_dataset_dir", "--validation-dataset-dir", f"{place}/validation_dataset_dir"),
        *("--model-dir", f"{place}/model_dir"),
    ]
    # The distributed cell imports Horovod, and finds our package.
    assert ("find_horovod()" in container["args"][at - 1]) == (workers != "1")
    assert "TENSORBOARD_S3_ADDRESS" in {variable["name"] for variable in container["env"]}


def arguments_in(word, arguments):
    """The word with the pipeline's parameters replaced: by their values in `arguments`, or else by nothing."""
    while "{{inputs.parameters." in word:
        before, _, rest = word.partition("{{inputs.parameters.")
        name, _, after = rest.partition("}}")
        word = before + arguments.get(name, "") + after
    return word
