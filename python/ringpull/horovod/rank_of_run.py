"""A rank of a job that `horovod.run` starts: calls the function, and writes its result.

`python -m ringpull.horovod -m ringpull.horovod.rank_of_run FOLDER`, with the function in FOLDER.
"""

import os
import pickle
import sys
from pathlib import Path

from . import basics


def main(folder: str) -> None:
    """Calls the function of the folder."""
    if not os.path.exists(os.path.join(folder, "function")):
        sys.exit(f"horovod.run: this host has no {folder}\n  hint: call horovod.run in a folder that all hosts share")
    with open(os.path.join(folder, "function"), "rb") as file:
        sys.path[:] = pickle.load(file)
        function, arguments, keywords = pickle.load(file)
    result = function(*arguments, **keywords)
    if not basics.is_initialized():
        basics.init()
    try:
        packed = pickle.dumps(result)
    except Exception as error:
        sys.exit(f"horovod.run: the function's result cannot be sent back: {error}\n  hint: return None, or an object that pickle takes")
    Path(folder, f"result.{basics.rank()}").write_bytes(packed)


if __name__ == "__main__":
    main(sys.argv[1])
