"""Imports `ringpull._native`. A build from source has it beside this file. A wheel has one copy for each family of MPI: the one is
taken that fits the MPI to use, which is loaded before."""

import importlib.util
import pathlib
import sys


def _native() -> None:
    package = __name__.rpartition(".")[0]
    name = f"{package}._native"
    variants = pathlib.Path(__file__).with_name("_variants")
    if name in sys.modules or not variants.is_dir():
        return
    from . import _loader

    path = variants / _loader.load(f"{sys.prefix}/lib", str(variants)) / "_native.abi3.so"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    setattr(sys.modules[package], "_native", module)  # noqa: B010


_native()
