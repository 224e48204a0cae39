"""Two tables of Horovod's names: modules that have another place here, and hints for names that are missing here.

`Finder` imports Horovod's modules from their places. It also makes each module of this package raise an error with a hint
for a name that the module lacks. So a program that uses a name of Horovod's gets it, or an error with a hint.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["VERSION", "Finder", "explain"]

#: The version of Horovod that this package follows in names and meaning.
VERSION = "0.28.1"

_OURS = "ringpull.horovod"

#: Modules of Horovod that have another place here; their submodules move with them. If several entries match, the longest counts.
_PLACES = {
    "horovod": _OURS,
    "horovod.common": _OURS,
    "horovod.common.basics": f"{_OURS}.basics",
    "horovod.common.elastic": f"{_OURS}.elastic",
    "horovod.common.exceptions": f"{_OURS}.exceptions",
    "horovod.common.process_sets": f"{_OURS}.process_sets",
    "horovod.common.util": f"{_OURS}.extensions",
    "horovod.mxnet.compression": f"{_OURS}.mxnet",
    "horovod.mxnet.functions": f"{_OURS}.mxnet",
    "horovod.runner": f"{_OURS}.running",
    "horovod.tensorflow.keras": f"{_OURS}.keras",
    "horovod.torch.elastic.sampler": f"{_OURS}.torch.elastic",
    "horovod.torch.elastic.state": f"{_OURS}.torch.elastic",
}

#: Horovod's names of some of our modules, for errors.
_THEIRS = {place: known for known, place in _PLACES.items() if re.match(r"horovod\.(common\.|runner)", known)}

#: The hints for names that are missing here. The first pattern that matches the full dotted name counts.
_HINTS = {
    r"horovod\.(spark|ray)\b.*": "start the job with ringpull launch -n N -- python SCRIPT: Spark and Ray are not supported",
    r"horovod\.runner\b.*": "start jobs with ringpull launch -n N -- python SCRIPT, or by horovod.run(function, num_proc=N)",
    r"horovod\.tensorflow\b.*": (
        "TensorFlow is supported with Keras alone: import horovod.tensorflow.keras as hvd."
        " hvd.DistributedOptimizer reduces the gradients that its apply_gradients gets, also in a loop with GradientTape"
    ),
    r".*\.(TensorFlowKerasState|LocalGradientAggregation\w+|create_distributed_optimizer|CallableList)": "use hvd.elastic.KerasState and hvd.DistributedOptimizer",
    r"horovod\._keras\b.*": "import horovod.keras as hvd",
    r"horovod\.data\b.*": "load data with the framework's own loader: ringpull.elastic.Sampler divides it over the ranks",
    r".*\.(\w*Compressor)": "give compression=hvd.Compression.none or hvd.Compression.fp16",
    r".*\.BestModelCheckpoint": "use keras.callbacks.ModelCheckpoint(PATH, save_best_only=True) on rank 0",
    r".*\.PartialDistributedOptimizer": "train the local layers with an optimizer of their own, and give the others to hvd.DistributedOptimizer",
    r".*\.broadcast_global_variables": "call hvd.broadcast_variables(model.variables, root_rank=0)",
    r".*\.broadcast_object_fn": "call hvd.broadcast_object(object, root_rank=0)",
    r".*\.(HorovodBasics|mpi_lib|MPI_\w+|dll_path|get_ext\w+|EXTENSIONS|MPI|util)": (
        "leave it out: there is no library of Horovod's to load, and rank, size and the like are functions of hvd"
    ),
    r".*\.(HorovodVersionMismatchError|get_version_mismatch_message)": "leave it out: one build serves every version of a framework",
    r".*\.(get_average|handle_average|check_num_rank)\w*": "leave it out, and give op=hvd.Average or another to the call",
    r".*\.(Horovod(All|Bro|Gro|Red)\w+)": "call hvd.allreduce and its like, which can be differentiated",
    r".*\.(run_fn|\w*otification\w*|HostUpdateResult)": "decorate the function with hvd.elastic.run",
    r".*\.(\w*StateHandler|\w+_handler_registry)": "pass the object to the state: it saves and restores an object by the object's state_dict and load_state_dict",
    r".*": "docs/how-to/horovod.md lists what is here; dir() of the module has its names",
}


def _theirs(rest: str) -> str:
    """Horovod's name of the module or attribute whose name here is `ringpull.horovod` followed by `rest`."""
    parent, dot, last = f"{_OURS}{rest}".rpartition(".")
    return _THEIRS[parent] + dot + last if parent in _THEIRS else f"horovod{rest}"


def _absent(name: str) -> str:
    hint = next(hint for pattern, hint in _HINTS.items() if re.fullmatch(pattern, name))
    return f"ringpull.horovod has no {name}\n  hint: {hint}"


def _place_of(name: str) -> str:
    """The place that a module of Horovod has here, if it is here."""
    known = next(known for known in sorted(_PLACES, key=len, reverse=True) if f"{name}.".startswith(f"{known}."))
    return _PLACES[known] + name.removeprefix(known)


class _Distribution(importlib.metadata.Distribution):
    """The metadata of the package `horovod` for `importlib.metadata`."""

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: horovod\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of Horovod at its place here, by Horovod's name or by ours."""

    def __init__(self, root: str) -> None:
        #: `horovod`, or our package.
        self._root = root
        #: The specs that modules have under our names, while the modules are being imported by Horovod's names.
        self._specs: dict[str, importlib.machinery.ModuleSpec | None] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if not f"{name}.".startswith(f"{self._root}."):
            return None
        theirs = _theirs(name.partition(self._root)[2])
        if _place_of(theirs) != name:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is None:
            # The error carries Horovod's name: `from PACKAGE import NAME` hides an error that carries the name it looks for, which is ours.
            raise ModuleNotFoundError(_absent(theirs), name=theirs)
        _explain_after(found.loader)
        return found

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        """The package `horovod`, for a program that asks for its version."""
        return [_Distribution()] if self._root == "horovod" and getattr(context, "name", None) in (None, "horovod") else []

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        theirs = "horovod" + spec.name.removeprefix(self._root)
        try:
            module = importlib.import_module(_place_of(theirs))
        except ModuleNotFoundError as error:
            if not f"{error.name}.".startswith("horovod."):
                raise
            raise ModuleNotFoundError(_absent(theirs), name=theirs) from None
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module back the spec of our name, under which it has been executed already."""
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)


def explain(module: ModuleType) -> None:
    """Makes the module raise an error with a hint for a name that it lacks.

    Horovod's modules import many names from each other, and programs use these names from any of the modules. So a module also has the
    names of its front end, and the names that all front ends have.
    """
    name = module.__name__
    front = name.split(".")[2:3]
    # TensorFlow without Keras is not supported, so `horovod.tensorflow` has no name at all, not even `init`.
    others = [] if front in ([], ["tensorflow"]) else [f"{_OURS}.{front[0]}", f"{_OURS}.basics", f"{_OURS}.extensions"]

    def missing(attribute: str) -> Any:
        if not attribute.startswith("_"):
            for other in others:
                known = vars(importlib.import_module(other))
                if attribute in known.get("__all__", ()) and attribute in known:
                    return known[attribute]
            # Given the name and the module, Python adds "Did you mean ...?" to the message.
            raise AttributeError(_absent(_theirs(f"{name.removeprefix(_OURS)}.{attribute}")), name=attribute, obj=module)
        if attribute == "__version__":
            return VERSION
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    # Not as a definition: type checkers would then believe that the module has every name.
    vars(module)["__getattr__"] = missing
    # If the module has a path, `from MODULE import NAME` asks `Finder` and shows its error. Otherwise Python's error has no hint.
    vars(module).setdefault("__path__", [])


def _explain_after(loader: Any) -> None:
    """Makes a loader call `explain` on its module after it has executed the module."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        explain(module)

    loader.exec_module = exec_module


# It stands before Python's path finder, which would load a file of our package a second time, under Horovod's name.
sys.meta_path.insert(0, Finder(_OURS))
