"""``python -m ringpull.mxnet SCRIPT ARGS...``: runs a script that does not import this package, with our stores.

In a job with servers (``ringpull launch -s N``) the servers are ours, so the names of MXNet's own distributed kinds make our stores too.
"""

import os
import runpy
import sys

from . import serve_native_names


def main() -> None:
    """Runs the script named on the command line as ``__main__``."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print("usage: python -m ringpull.mxnet SCRIPT ARGS...", file=sys.stderr)
        sys.exit(2)
    if os.environ.get("DMLC_PS_ROOT_URI"):
        serve_native_names()
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


main()
