"""Uses every name of Horovod's modules of some front ends. The name must exist, or its error must have a hint. Prints the names that do not
exist."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

import horovod


def touch(call, is_it):
    """Returns True if the call finds the name. If not, the call must raise an error of ours about a name for which `is_it` returns true."""
    try:
        call()
    except (AttributeError, ImportError) as error:
        first, _, hint = str(error).partition("\n")
        assert first.startswith("ringpull.horovod has no horovod.") and is_it(first.split()[-1]) and hint.startswith("  hint: "), error
        return False
    return True


assert horovod.__version__ == importlib.metadata.version("horovod") == "0.28.1"
missing = []
for line in (Path(__file__).parents[1] / "horovod_names.txt").read_text().splitlines():
    name, _, names = line.partition(":")
    if (name.split(".") + [""])[1] not in sys.argv[1].split(","):
        continue
    # The error may name an outer package that is missing.
    if not touch(lambda: importlib.import_module(name), name.startswith):
        missing.append(name)
        continue
    for attribute in names.split():
        for way in (f"import {name} as module; module.{attribute}", f"from {name} import {attribute}"):
            # If modules here share their names, the error has the name of one of them.
            is_here = touch(lambda: exec(way, {}), lambda said: said.endswith(f".{attribute}"))
            missing += [] if is_here else [f"{name}.{attribute}"]
print(*missing, sep="\n")
