"""The published programs that these tests run: checkouts of other projects, in one folder, with synthetic data.

RINGPULL_PROGRAMS names the folder. A test whose checkout is not there is skipped and says which repository it
wants. `python/tests/ranks.py` starts the jobs.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))

#: Folders in RINGPULL_PROGRAMS, with the repository and the tag that each is a checkout of.
CHECKOUTS = {
    "horovod": "https://github.com/horovod/horovod, tag v0.28.1",
    "mxnet": "https://github.com/apache/mxnet, tag v1.9.1",
    "kubeflow-ppc64le-examples": "https://github.com/lehrig/kubeflow-ppc64le-examples",
    "insightface": "https://github.com/deepinsight/insightface",
    "kubeflow-ppc64le-components": "https://github.com/lehrig/kubeflow-ppc64le-components",
}


@pytest.fixture
def checkout():
    """Returns a function from a name in CHECKOUTS to the folder of that checkout, or skips the test."""

    def find(name):
        folder = Path(os.environ.get("RINGPULL_PROGRAMS", ".deps/programs")) / name
        if not folder.is_dir():
            pytest.skip(f"there is no {folder}: set RINGPULL_PROGRAMS to a folder with {name}, a checkout of {CHECKOUTS[name]}")
        return folder.resolve()

    return find
