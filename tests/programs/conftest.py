"""Finds the published programs that these tests run: checkouts of other projects, in one folder. Their data are synthetic.

RINGPULL_PROGRAMS names the folder. If a test's checkout is missing, the test is skipped and names the repository that it
needs. `python/tests/ranks.py` starts the jobs.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))

#: The folders in RINGPULL_PROGRAMS, each with the repository and the tag of its checkout.
CHECKOUTS = {
    "horovod": "https://github.com/horovod/horovod, tag v0.28.1",
    "mxnet": "https://github.com/apache/mxnet, tag v1.9.1",
    "kubeflow-ppc64le-examples": "https://github.com/lehrig/kubeflow-ppc64le-examples",
    "insightface": "https://github.com/deepinsight/insightface",
    "kubeflow-ppc64le-components": "https://github.com/lehrig/kubeflow-ppc64le-components",
}


@pytest.fixture
def checkout():
    """Returns a function that takes a name in CHECKOUTS and returns the folder of this checkout. It skips the test if there is none."""

    def find(name):
        folder = Path(os.environ.get("RINGPULL_PROGRAMS", ".deps/programs")) / name
        if not folder.is_dir():
            pytest.skip(f"there is no {folder}: set RINGPULL_PROGRAMS to a folder with {name}, a checkout of {CHECKOUTS[name]}")
        return folder.resolve()

    return find
