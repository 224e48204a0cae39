"""Tests that MXNet's examples end on our stores with the same bits as on MXNet's own servers.

There are two workers, because a sum of two numbers is the same in both orders: so there is one right result. With dist_async the
result depends on the order of the pushes, so there is one worker.
"""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from ranks import launched, mpi, well

mx = pytest.importorskip("mxnet")

RUNNER = Path(__file__).with_name("run_mxnet.py")

#: True to train with all default options too, which takes half an hour and up to 14 GB of memory.
IS_WHOLE = bool(os.environ.get("WHOLE_PROGRAMS"))

#: The seconds after which a job that hangs is killed.
DEADLINE = 3000 if IS_WHOLE else 300

IMAGES = "example/image-classification"
#: Each script with its arguments. Its defaults are kept, except for sizes that two cores can train in seconds.
SCRIPTS = {
    "mnist": (f"{IMAGES}/train_mnist.py", "--num-examples 256 --num-epochs 3 --lr-step-epochs 1,2"),
    "mnist-adagrad": (f"{IMAGES}/train_mnist.py", "--num-examples 256 --num-epochs 2 --optimizer adagrad"),
    "mnist-rmsprop": (f"{IMAGES}/train_mnist.py", "--num-examples 256 --num-epochs 2 --optimizer rmsprop"),
    "cifar10": (f"{IMAGES}/train_cifar10.py", "--num-layers 8 --num-examples 32 --batch-size 8 --num-epochs 2 --lr-step-epochs 1"),
    "imagenet": (
        f"{IMAGES}/train_imagenet.py",
        "--benchmark 1 --num-layers 8 --image-shape 3,28,28 --num-classes 10 --num-examples 32 --batch-size 8 --num-epochs 2 --lr-step-epochs 1",
    ),
    "lstm": ("example/rnn/bucketing/lstm_bucketing.py", "--num-hidden 16 --num-embed 16 --num-epochs 1"),
    "gluon": (
        "example/gluon/image_classification.py",
        "--model mobilenet0.25 --dataset dummy --batch-size 2 --epochs 1 --mode imperative --log-interval 1",
    ),
}
#: Scripts with their default options, and the number of updates after which the training ends, if it would take days.
WHOLE = {
    "mnist": (f"{IMAGES}/train_mnist.py", "", None),
    "lstm": ("example/rnn/bucketing/lstm_bucketing.py", "", None),
    "cifar10": (f"{IMAGES}/train_cifar10.py", "", 2),
    "imagenet": (f"{IMAGES}/train_imagenet.py", "--benchmark 1", 1),
}
SPARSE = "example/sparse/linear_classification/train.py"
FACES = "recognition/arcface_mxnet"

#: The user's settings, which follow insightface's example settings: a small data set, and a last step.
FACES_CONFIG = """
dataset.emore.update(num_classes=5, val_targets=[], dataset_path='faces')
config.update(max_steps=2, count_flops=False)
default.update(network='y1', per_batch_size=2)
"""


def zipped(path, numbers, content):
    """Writes a file of MNIST: the kind, the lengths of the dimensions, and the bytes."""
    body = struct.pack(f">{len(numbers)}I", *numbers) + content.astype(np.uint8).tobytes()
    made = zlib.compressobj(wbits=31)
    path.write_bytes(made.compress(body) + made.flush())


def bitmap(pixels):
    """An image of height x width x 3 as a bitmap file, which every decoder reads."""
    rows = b"".join(row.tobytes() + bytes(-len(row.tobytes()) % 4) for row in pixels[::-1])
    header = struct.pack("<IiiHHIIiiII", 40, pixels.shape[1], pixels.shape[0], 1, 24, 0, len(rows), 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", 54 + len(rows), 0, 0, 54) + header + rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder whose `data` has small versions of the files that the scripts would download."""
    made = tmp_path_factory.mktemp("programs")
    data = made / "data"
    data.mkdir()
    draw = np.random.RandomState(3)
    for name, count in (("train", 60000 if IS_WHOLE else 512), ("t10k", 64)):
        labels = draw.randint(0, 10, count)
        images = draw.randint(0, 64, (count, 28, 28)) + labels[:, None, None] * 16
        zipped(data / f"{name}-labels-idx1-ubyte.gz", (2049, count), labels)
        zipped(data / f"{name}-images-idx3-ubyte.gz", (2051, count, 28, 28), images)
    for name, count in (("train", 64), ("val", 16)):
        written = mx.recordio.MXRecordIO(str(data / f"cifar10_{name}.rec"), "w")
        for index in range(count):
            pixels = draw.randint(0, 256, (32, 32, 3)).astype(np.uint8)
            written.write(mx.recordio.pack(mx.recordio.IRHeader(0, float(index % 10), index, 0), bitmap(pixels)))
        written.close()
    for name, count in (("train", 70), ("test", 40)):
        sentences = [" ".join(f"w{word}" for word in draw.randint(0, 30, length)) for length in (8, 18) for _ in range(count)]
        (data / f"sherlockholmes.{name}.txt").write_text("\n".join(sentences) + "\n")
    (made / "faces").mkdir()
    written = mx.recordio.MXIndexedRecordIO(str(made / "faces/train.idx"), str(made / "faces/train.rec"), "w")
    # Record 0 has the range of records that list the images of each person.
    written.write_idx(0, mx.recordio.pack(mx.recordio.IRHeader(2, [21, 26], 0, 0), b""))
    for index in range(1, 21):
        pixels = draw.randint(0, 256, (112, 112, 3)).astype(np.uint8)
        written.write_idx(index, mx.recordio.pack(mx.recordio.IRHeader(0, float(index % 5), index, 0), bitmap(pixels)))
    for person in range(5):
        first = 1 + 4 * person
        written.write_idx(21 + person, mx.recordio.pack(mx.recordio.IRHeader(2, [first, first + 4], 0, 0), b""))
    written.close()
    for name in ("avazu-app", "avazu-app.t"):
        # MXNet divides a file among workers by bytes, at the ends of lines. Its servers hang if a worker has more batches than another.
        found = [np.sort(draw.choice(900000, 5, replace=False)) + 100000 for _ in range(72)]
        lines = [f"{draw.randint(0, 2)} " + " ".join(f"{index}:1" for index in row) for row in found]
        (data / name).write_text("\n".join(lines) + "\n")
    return made


@pytest.fixture(scope="module")
def ended():
    """The final parameters of jobs, by their command lines. So each job on MXNet's own servers runs only once for all of ours."""
    return {}


def parameters(folder, ended, of_mxnet, kind, workers, script, arguments):
    """The parameters on each worker after a job of the script. The servers are MXNet's own, or ours."""
    key = (of_mxnet, kind, workers, script, *arguments)
    if key not in ended:
        saved = f"saved-{len(ended)}"
        command = [*([] if of_mxnet else ["-m", "ringpull.mxnet"]), RUNNER, folder, saved, script, *arguments]
        if kind == "dist_sync_mpi":
            well(mpi(workers, *command, deadline=DEADLINE, RINGPULL_TIMEOUT=DEADLINE))
        else:
            launched(workers, 2, *command, deadline=DEADLINE, RINGPULL_TIMEOUT=DEADLINE)
        ended[key] = [mx.nd.load(str(folder / f"{saved}-{rank}.params")) for rank in range(workers)]
    return ended[key]


def compare(folder, ended, kind, script, arguments, option="--kv-store"):
    workers = 1 if "async" in kind else 2
    theirs = "dist_sync" if kind == "dist_sync_mpi" else kind
    expected = parameters(folder, ended, True, theirs, workers, script, [*arguments, option, theirs])
    found = parameters(folder, ended, False, kind, workers, script, [*arguments, option, kind])
    assert expected[0]
    for ours, real in zip(found, expected, strict=True):
        assert ours.keys() == real.keys()
        different = [name for name in real if not np.array_equal(ours[name].asnumpy(), real[name].asnumpy())]
        assert not different


@pytest.mark.parametrize("kind", ["dist_sync", "dist_sync_mpi", "dist_async", "dist_device_sync"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_ends_with_the_bits_of_mxnets_own_servers(name, kind, checkout, folder, ended):
    script, arguments = SCRIPTS[name]
    option = "--kvstore" if name == "gluon" else "--kv-store"
    compare(folder, ended, kind, checkout("mxnet") / script, arguments.split(), option)


@pytest.mark.skipif(not IS_WHOLE, reason="WHOLE_PROGRAMS=1 trains with all default options")
@pytest.mark.parametrize("kind", ["dist_sync", "dist_sync_mpi", "dist_async"])
@pytest.mark.parametrize("name", WHOLE)
def test_an_example_with_its_default_options_ends_with_the_bits_of_mxnets_own_servers(name, kind, checkout, folder, ended, monkeypatch):
    if name == "imagenet" and kind != "dist_async":
        pytest.skip("two workers with batches of 128 images need more than 24 GB")
    script, arguments, updates = WHOLE[name]
    if updates:
        monkeypatch.setenv("CUT_AFTER", str(updates))
    compare(folder, ended, kind, checkout("mxnet") / script, arguments.split())


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam"])
def test_the_sparse_example_ends_with_the_bits_of_mxnets_own_servers(rule, kind, checkout, folder, ended):
    arguments = ["--num-epoch", "1", "--batch-size", "8", "--optimizer", rule]
    compare(folder, ended, kind, checkout("mxnet") / SPARSE, arguments, "--kvstore")


@pytest.mark.parametrize("kind", ["dist_sync", "dist_sync_mpi", "dist_async", "dist_device_sync"])
def test_insightface_ends_with_the_bits_of_mxnets_own_servers(kind, checkout, folder, ended, monkeypatch):
    scripts = checkout("insightface") / FACES
    (folder / "config.py").write_text((scripts / "sample_config.py").read_text() + FACES_CONFIG)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    compare(folder, ended, kind, scripts / "train.py", [], "--kvstore")
