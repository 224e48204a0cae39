"""Tests tensors on GPUs without a GPU, by the driver of tests/fake-cuda, which `cargo test` builds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
#: The folder of cargo's programs. `CARGO_TARGET_DIR` may be absolute.
DEBUG = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug"
LIBRARY = DEBUG / "deps/libringpull_fake_cuda.so"


@pytest.fixture
def machine(tmp_path):
    """An environment in which a process finds two GPUs."""
    if not LIBRARY.exists():
        pytest.skip("the driver without a GPU is not built: cargo test -p ringpull-fake-cuda")
    compilers = list(ROOT.glob(".deps/nvrtc/nvidia/*/lib"))
    if not compilers:
        pytest.skip("NVRTC is not here: scripts/setup --nvrtc")
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ["libcuda.so.1", "libnccl.so.2"]:
        (folder / name).symlink_to(LIBRARY)
    paths = [str(folder), str(compilers[0]), os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {
        "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
        "XDG_CACHE_HOME": str(DEBUG / "fake-cuda/cache"),
        "RINGPULL_DEVICES": "cuda",
        "FAKE_CUDA_DEVICES": "2",
        "FAKE_CUDA_LOG": str(tmp_path / "findings"),
    }


def test_tensors_on_gpus_are_used_where_they_are_in_the_order_of_dlpacks_streams(machine):
    program = Path(__file__).parent / "jobs" / "gpus.py"
    done = subprocess.run([sys.executable, program], env=machine, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "the sums are right\n", done.stdout + done.stderr
    assert not Path(machine["FAKE_CUDA_LOG"]).exists(), done.stderr
