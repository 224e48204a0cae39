"""The images and labels of Fashion-MNIST, from the packed IDX files of Debian's package
dataset-fashion-mnist."""

import gzip
import pathlib
import struct

import numpy

#: Where the package puts the files, and where `scripts/setup` puts them without root.
FOLDERS = [
    pathlib.Path("/usr/share/datasets/fashion-mnist"),
    pathlib.Path(__file__).resolve().parents[2] / ".deps/usr/share/datasets/fashion-mnist",
]


def read(part, limit=None, folder=None):
    """The first `limit` images, float32 of shape (N, 28, 28) from 0 to 1, and labels, int64 of shape (N,), of
    `train` or `t10k`."""
    folder = folder or next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
    if not folder.is_dir():
        raise SystemExit(f"no folder {folder}: run scripts/setup, or name the folder of the IDX files with --data")
    images = _read_idx(folder / f"{part}-images-idx3-ubyte.gz")[:limit]
    labels = _read_idx(folder / f"{part}-labels-idx1-ubyte.gz")[:limit]
    return images.astype(numpy.float32) / 255, labels.astype(numpy.int64)


def _read_idx(path):
    with gzip.open(path) as file:
        content = file.read()
    dimensions = struct.unpack_from(f">{content[3]}i", content, 4)
    return numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * len(dimensions)).reshape(dimensions)
