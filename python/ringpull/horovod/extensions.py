"""``horovod.common.util``: questions about Horovod's build, and small helper functions."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any

from . import basics

__all__ = [
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

#: The frameworks for which this package has Horovod's names.
_FRAMEWORKS = ("torch", "mxnet", "keras", "tensorflow")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns True if ``horovod.NAME`` can be imported; for ``tensorflow``, if ``horovod.tensorflow.keras`` can."""
    return ext_base_name in _FRAMEWORKS and importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name: str, *arguments: Any) -> None:
    """Raises ``ImportError`` unless :func:`extension_available` returns True."""
    name = ext_name.removeprefix("horovod.")
    if not extension_available(name):
        raise ImportError(f"horovod.{name} cannot be imported\n  hint: install {name if name in _FRAMEWORKS else 'one of ' + ', '.join(_FRAMEWORKS)}")


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Does nothing: one build serves every version of a framework."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns False: collectives under Horovod's names run in host memory."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """Returns True if this build has MPI."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """False."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    """False."""
    return bool(basics.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    """False."""
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """False."""
    return basics.ccl_built()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns True if the number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[Any], n: int) -> list[Sequence[Any]]:
    """Splits a list into ``n`` consecutive parts. If the parts cannot be equal, the first ones are longer by one."""
    each, more = divmod(len(values), n)
    ends = [part * each + min(part, more) for part in range(n + 1)]
    return [values[start:stop] for start, stop in zip(ends, ends[1:])]


def is_iterable(x: Any) -> bool:
    """Returns True if the object can be iterated over."""
    return isinstance(x, Iterable)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Returns True if the version ``ver`` is ``target`` or later. Compares the first three numbers."""

    def numbers(version: str) -> list[int]:
        found = [int("".join(filter(str.isdigit, part)) or 0) for part in version.split("+")[0].split(".")[:3]]
        return found + [0] * (3 - len(found))

    return numbers(ver) >= numbers(target)
