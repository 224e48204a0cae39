"""Packs a staged folder into a wheel. Called by scripts/wheel with: STAGE PYPROJECT GLIBC OUT

STAGE holds the packages `ringpull` and `ringpull_torch`, the programs in `bin`, and `share`, which is installed beside
`bin`."""

import pathlib
import platform
import sys
import tomllib

from pyproject_metadata import StandardMetadata
from wheel.wheelfile import WheelFile

stage, pyproject, glibc, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4])
metadata = StandardMetadata.from_pyproject(tomllib.loads(pyproject.read_text()), pyproject.parent)
tag = f"cp311-abi3-manylinux_{glibc.replace('.', '_')}_{platform.machine()}"
name = f"{metadata.name}-{metadata.version}"
info, data = f"{name}.dist-info", f"{name}.data"
wheel = out / f"{name}-{tag}.whl"

with WheelFile(wheel, "w") as archive:
    for folder, at in (
        ("ringpull", "ringpull"),
        ("ringpull_torch", "ringpull_torch"),
        ("bin", f"{data}/scripts"),
        ("share", f"{data}/data/share"),
    ):
        for path in sorted((stage / folder).rglob("*")):
            if path.is_file():
                archive.write(str(path), f"{at}/{path.relative_to(stage / folder)}")
    archive.writestr(f"{info}/METADATA", str(metadata.as_rfc822()))
    entry_points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in places.items())
        for group, places in metadata.entrypoints.items()
    )
    archive.writestr(f"{info}/entry_points.txt", entry_points)
    archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: scripts/wheel\nRoot-Is-Purelib: false\nTag: {tag}\n")
size = wheel.stat().st_size
print(f"{wheel}: {size / 1e6:.1f} MB")
