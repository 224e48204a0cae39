"""Runs a script of MXNet with fixed seeds, in a folder with its data, and saves the trained parameters.

    python run_mxnet.py FOLDER SAVED SCRIPT ARGUMENTS...

At the end FOLDER/SAVED-RANK.params has the parameters of every module, or of every trainer of Gluon. Packages that the
script imports for other purposes than training need not be installed.
"""

import os
import random
import runpy
import sys
from unittest import mock

import mxnet
import numpy

folder, saved, script = sys.argv[1:4]
rank = os.environ.get("DMLC_WORKER_ID") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or "0"
# Every worker begins with the same weights, and shuffles its data differently.
mxnet.random.seed(7)
numpy.random.seed(int(rank))
random.seed(int(rank))

trained, prefetching = [], []


def follow(owner, name, found):
    """Adds to `found` each object of which the method is called."""
    method = getattr(owner, name)

    def call(self, *arguments, **keywords):
        result = method(self, *arguments, **keywords)
        if self not in found:
            found.append(self)
        return result

    setattr(owner, name, call)


follow(mxnet.mod.Module, "init_optimizer", trained)
follow(mxnet.mod.BucketingModule, "init_optimizer", trained)
follow(mxnet.gluon.Trainer, "__init__", trained)
follow(mxnet.io.PrefetchingIter, "__init__", prefetching)



def cut(method, left):
    """Returns the method, which ends the script after `left` calls."""

    def call(self, *arguments, **keywords):
        nonlocal left
        method(self, *arguments, **keywords)
        left -= 1
        if left == 0:
            raise SystemExit

    return call


if os.environ.get("CUT_AFTER"):
    mxnet.mod.Module.update = cut(mxnet.mod.Module.update, int(os.environ["CUT_AFTER"]))


class EasyDict(dict):
    """A dict whose items are attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


for absent in "cv2", "scipy", "sklearn", "sklearn.decomposition", "sklearn.model_selection":
    sys.modules[absent] = mock.MagicMock()
sys.modules["easydict"] = mock.MagicMock(EasyDict=EasyDict)

os.chdir(folder)
sys.argv = sys.argv[3:]
sys.path[:0] = [os.path.dirname(script), os.getcwd()]
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as end:
    if end.code:
        raise

values = {}
for one in trained:
    if isinstance(one, mxnet.gluon.Trainer):
        found = {parameter.name: parameter.data() for parameter in one._params}
    else:
        found, _ = one.get_params()
    values |= {name: value.tostype("default") for name, value in found.items()}
mxnet.nd.save(f"{saved}-{rank}.params", values)
# If a script ends in the middle of training, the prefetchers' threads are inside MXNet, and the end of Python would abort them.
for one in prefetching:
    one.__del__()
