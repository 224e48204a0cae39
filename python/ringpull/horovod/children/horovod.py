"""Runs at the first import of Horovod in a process that `multiprocessing` started, from scratch, under `python -m ringpull.horovod`."""

import importlib
import sys

from ringpull.horovod.names import Finder

sys.meta_path.insert(0, Finder("horovod"))
# The finder now finds `ringpull.horovod` under this name. It replaces this module.
del sys.modules[__name__]
sys.modules[__name__] = importlib.import_module(__name__)
