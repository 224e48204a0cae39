"""Images of 28 x 28 pixels in ten classes, which replace MNIST. Class k has a bright band at row 2 k + 4."""

import numpy


def images(train):
    """Images and labels. They are the same in every process."""
    generator = numpy.random.RandomState(1 if train else 2)
    labels = generator.randint(10, size=640 if train else 128).astype("uint8")
    pixels = generator.randint(40, size=(len(labels), 28, 28)).astype("uint8")
    for image, label in zip(pixels, labels):
        image[2 * label + 4 : 2 * label + 7] += 200
    return pixels, labels


def files(folder):
    """Writes the images and labels as MNIST's four files."""
    for name, train in ("train", True), ("t10k", False):
        pixels, labels = images(train)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(numpy.array([2051, *pixels.shape], ">i4").tobytes() + pixels.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(numpy.array([2049, len(labels)], ">i4").tobytes() + labels.tobytes())
