"""``python -m ringpull.horovod SCRIPT ARGS...``: runs a script that imports Horovod, with our package in place of Horovod.

As with Python itself, ``-m MODULE`` instead of a script runs a module, such as pytest.
"""

import os
import runpy
import sys
from pathlib import Path

from .names import Finder

#: A folder with a module `horovod`: by it, processes that the program starts by `multiprocessing` find Horovod's names as this process does.
_FOR_CHILDREN = str(Path(__file__).parent / "children")


def main() -> None:
    """Runs the script named on the command line as ``__main__``."""
    is_module = len(sys.argv) > 2 and sys.argv[1] == "-m"
    if len(sys.argv) < 2 or (sys.argv[1].startswith("-") and not is_module):
        print("usage: python -m ringpull.horovod {SCRIPT | -m MODULE} ARGS...", file=sys.stderr)
        sys.exit(2)
    sys.meta_path.insert(0, Finder("horovod"))
    if is_module:
        sys.argv = sys.argv[2:]
        sys.path.insert(1, _FOR_CHILDREN)
        # Python has put the working folder first on the path, and replaces the module's name in `sys.argv` by its file.
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = sys.argv[1:]
    sys.path[:1] = [os.path.dirname(os.path.abspath(sys.argv[0])), _FOR_CHILDREN]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
