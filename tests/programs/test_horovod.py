"""Tests that Horovod's own examples, and cells of notebooks, run unchanged and end with equal weights on every rank. Their images are
computed, not downloaded."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import horovod_names
import pytest
from ranks import HERE, mpi, ringpull_binary, run

STAND_INS = Path(__file__).parent / "stand_ins"

SHORT = ["--no-cuda", "--num-warmup-batches", 1, "--num-batches-per-iter", 2, "--num-iters", 2, "--batch-size", 2]
#: The examples, with the framework and the arguments of each.
EXAMPLES = {
    "pytorch/pytorch_mnist.py": ("torch", ["--epochs", 1, "--no-cuda"]),
    "pytorch/pytorch_synthetic_benchmark.py": ("torch", SHORT),
    "elastic/pytorch/pytorch_mnist_elastic.py": ("torch", ["--epochs", 2, "--no-cuda"]),
    "elastic/pytorch/pytorch_synthetic_benchmark_elastic.py": ("torch", SHORT),
    "mxnet/mxnet_mnist.py": ("mxnet", ["--epochs", 5, "--no-cuda"]),
    "keras/keras_mnist.py": ("keras", []),
    "keras/keras_mnist_advanced.py": ("keras", ["--epochs", 2]),
    "tensorflow2/tensorflow2_keras_mnist.py": ("keras", []),
    "tensorflow2/tensorflow2_keras_synthetic_benchmark.py": ("keras", ["--no-cuda", "--batch-size", 2, "--num-iters", 1, "--model", "MobileNet"]),
    "elastic/tensorflow2/tensorflow2_keras_mnist_elastic.py": ("keras", []),
}

#: Selects Keras 2, for which the examples are written, and no messages of TensorFlow.
ENVIRONMENT = {"TF_USE_LEGACY_KERAS": 1, "TF_CPP_MIN_LOG_LEVEL": 3, "CUDA_VISIBLE_DEVICES": -1}


def needs(framework):
    for package in ("tensorflow", "tf_keras", "scipy") if framework == "keras" else (framework,):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"could not import {package!r}")


def of_two_ranks(folder, *words, **more):
    """A job of two ranks. Its working folder is `folder`."""
    command = ["env", "-C", folder, sys.executable, "-m", "ringpull.horovod", *words]
    return mpi(2, "-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *command, deadline=600, PYTHONPATH=f"{STAND_INS}:{HERE.parent}", **ENVIRONMENT | more)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_ends_with_equal_weights(checkout, tmp_path, example):
    framework, arguments = EXAMPLES[example]
    needs(framework)
    program = checkout("horovod") / "examples" / example
    done = of_two_ranks(tmp_path, STAND_INS / "weights.py", framework, program, *arguments)
    found = [re.findall(r"^weights (\w+)$", printed.out, re.MULTILINE) for printed in done.ranks]
    assert done.status == 0 and len(found[0]) == 1 and found[0] == found[1], f"{done}"


#: Notebooks whose pipelines train on several workers, with the shape of their images.
NOTEBOOKS = {
    "computer-vision/monkey-classification/Monkey Classification.ipynb": (224, 224, 3),
    "audio-processing/music-genre-classification/Music Genre Classification.ipynb": (64, 173, 1),
}

#: The code around the cell does the work of the pipeline's step: it has the data in folders, and calls the function.
BEFORE = """
import os
InputPath = OutputPath = lambda kind: kind
"""
AFTER = """
import tensorflow as tf
from numpy.random import RandomState

def data(seed, count, folder):
    generator = RandomState(seed)
    images, labels = generator.rand(count, *{shape}).astype("float32"), tf.one_hot(generator.randint(10, size=count), 10)
    tf.data.Dataset.from_tensor_slices((images, labels)).batch(8).save(folder)
    return folder

own = f"of-{{os.getpid()}}"
train_distributed_model(data(1, 24, own + "/train"), data(2, 8, own + "/validation"), "model", epochs=2, batch_size=4)
"""


@pytest.mark.parametrize("is_legacy", [True, False])
@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_notebooks_training_cell_ends_with_equal_weights(checkout, tmp_path, notebook, is_legacy):
    needs("keras")
    pytest.importorskip("tensorboard")
    cells = json.loads((checkout("kubeflow-ppc64le-examples") / notebook).read_text())["cells"]
    (cell,) = [source for source in ("".join(cell["source"]) for cell in cells) if source.startswith("def train_distributed_model(")]
    if not is_legacy:
        # Keras 3 does not have this argument, does not save a model as a folder, and requires another ending for files of weights.
        cell = re.sub("experimental_run_tf_function=False,?", "", cell).replace("model.save(model_dir)", "model.save(model_dir + '/model.keras')")
        cell = cell.replace("best_model.keras", "best_model.weights.h5")
    program = tmp_path / "cell.py"
    program.write_text(BEFORE + cell + AFTER.format(shape=NOTEBOOKS[notebook]))
    keras = {} if is_legacy else {"TF_USE_LEGACY_KERAS": "", "KERAS_BACKEND": "tensorflow"}
    done = of_two_ranks(tmp_path, STAND_INS / "weights.py", "keras", program, TENSORBOARD_S3_ADDRESS="logs", **keras)
    found = [re.findall(r"^weights (\w+)$", printed.out, re.MULTILINE) for printed in done.ranks]
    assert done.status == 0 and len(found[0]) == 1 and found[0] == found[1], f"{done}"
    assert any((tmp_path / "model").iterdir())


@pytest.mark.parametrize("example", ["pytorch/pytorch_mnist.py", "mxnet/mxnet_mnist.py"])
def test_an_example_starts_its_ranks_itself(checkout, tmp_path, example):
    framework, arguments = EXAMPLES[example]
    needs(framework)
    pytest.importorskip("cloudpickle")
    program = checkout("horovod") / "examples" / example
    words = [sys.executable, "-m", "ringpull.horovod", STAND_INS / "weights.py", framework, program, *arguments, "--num-proc", 2, "--communication", "mpi"]
    status, output = run(["env", "-C", tmp_path, *words], deadline=600, RINGPULL_BINARY=ringpull_binary(), PYTHONPATH=f"{STAND_INS}:{HERE.parent}")
    assert status == 0, output


@pytest.mark.parametrize("example", ["tensorflow2/tensorflow2_mnist.py", "tensorflow2/tensorflow2_synthetic_benchmark.py"])
def test_an_example_of_tensorflow_without_keras_says_what_to_do(checkout, tmp_path, example):
    needs("keras")
    done = of_two_ranks(tmp_path, checkout("horovod") / "examples" / example)
    # The launcher may end the other rank while it still imports TensorFlow.
    said = "ringpull.horovod has no horovod.tensorflow.init\n  hint: TensorFlow is supported with Keras alone"
    assert done.status != 0 and any(said in printed.err for printed in done.ranks), f"{done}"


def test_the_list_of_horovods_names_is_that_of_the_checkout(checkout):
    """If they differ, run: python tests/programs/horovod_names.py CHECKOUT > python/tests/horovod_names.txt"""
    assert (HERE / "horovod_names.txt").read_text().splitlines() == list(horovod_names.listed(checkout("horovod")))
