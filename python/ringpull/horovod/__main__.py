"""``python -m ringpull.horovod SCRIPT ARGS...``: runs a script that imports Horovod, with ours in its place.

As with Python itself, ``-m MODULE`` in place of the script runs a module, such as pytest.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType

_OURS = "ringpull.horovod"
#: Modules of Horovod's that have another place here.
_PLACES = {
    "horovod": _OURS,
    "horovod.common": _OURS,
    "horovod.common.basics": f"{_OURS}.basics",
    "horovod.common.elastic": f"{_OURS}.elastic",
    "horovod.common.exceptions": f"{_OURS}.exceptions",
    "horovod.common.process_sets": f"{_OURS}.process_sets",
    "horovod.tensorflow.keras": f"{_OURS}.keras",
    "horovod.torch.elastic.state": f"{_OURS}.torch.elastic",
    "horovod.torch.elastic.sampler": f"{_OURS}.torch.elastic",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ours where Horovod's is asked for."""

    def __init__(self) -> None:
        #: The own specs of modules that are being imported.
        self._specs: dict[str, importlib.machinery.ModuleSpec | None] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "horovod":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        place = _PLACES.get(spec.name) or _OURS + spec.name.removeprefix("horovod")
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place:
                raise
            text = f"ringpull.horovod has no {spec.name}\n  hint: it has horovod.torch, horovod.mxnet and horovod.keras, and nothing of Spark and Ray"
            raise ModuleNotFoundError(text, name=spec.name) from None
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It was executed under its own name, and stays what that says."""
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)


def main() -> None:
    """Runs the script named on the command line as ``__main__``."""
    is_module = len(sys.argv) > 2 and sys.argv[1] == "-m"
    if len(sys.argv) < 2 or (sys.argv[1].startswith("-") and not is_module):
        print("usage: python -m ringpull.horovod {SCRIPT | -m MODULE} ARGS...", file=sys.stderr)
        sys.exit(2)
    sys.meta_path.insert(0, _Finder())
    if is_module:
        sys.argv = sys.argv[2:]
        # Python has put the folder of work first on the path, and puts the module's file where its name is.
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
