"""Prints the modules of a checkout of Horovod and their public names, as in python/tests/horovod_names.txt:

python tests/programs/horovod_names.py CHECKOUT > python/tests/horovod_names.txt

A name counts if the module defines it, or imports it from another module of Horovod. Some modules do not exist in ringpull, and their import
is an error that tells so. The names of these modules are left out.
"""

import ast
import sys
from pathlib import Path

NOT_HERE = ("spark", "ray", "runner", "data", "_keras")


def defined(body):
    """The names that statements define, also in the branches of an `if` or a `try`."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            names = (name for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))
            yield from (name.id for name in names if isinstance(name.ctx, ast.Store))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("horovod"):
            yield from (name.asname or name.name for name in node.names)
        for branch in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield from defined(getattr(node, branch, []))


def listed(checkout):
    """A line for each module, with its name, a colon and its public names."""
    for path in sorted((checkout / "horovod").rglob("*.py")):
        parts = path.relative_to(checkout).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        names = sorted({name for name in defined(ast.parse(path.read_text()).body) if not name.startswith("_")})
        if parts[1] not in NOT_HERE:
            yield " ".join([f"{module}:", *names])
        elif len(parts) < 4:
            yield f"{module}:"


if __name__ == "__main__":
    print("\n".join(listed(Path(sys.argv[1]))))
