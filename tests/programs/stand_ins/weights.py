"""Runs an unchanged program of Horovod, and prints a hash of its model's final weights.

python -m ringpull.horovod weights.py FRAMEWORK PROGRAM ARGS...

Images are computed instead of downloaded, and `fit` of Keras runs few and short epochs.
"""

import functools
import hashlib
import importlib
import os
import pathlib
import runpy
import sys
import types
import zipfile

import digits
import numpy

#: The objects that the program has broadcast or trained. They have the weights at the end.
seen = []


def noting(call):
    @functools.wraps(call)
    def noted(*arguments, **keywords):
        seen.append(arguments[0])
        return call(*arguments, **keywords)

    return noted


def prepare_torch():
    import ringpull.horovod.torch as hvd

    hvd.broadcast_parameters = noting(hvd.broadcast_parameters)
    return lambda state: [value.detach().numpy() for value in (state if isinstance(state, dict) else state.state_dict()).values()]


def prepare_mxnet():
    import ringpull.horovod.mxnet as hvd
    from mxnet import test_utils

    def download(url, dirname):
        folder = pathlib.Path(dirname)
        digits.files(folder)
        with zipfile.ZipFile(folder / "mnist.zip", "w") as archive:
            for path in folder.glob("*ubyte"):
                archive.write(path, path.name)
        return folder / "mnist.zip"

    test_utils.download = download
    hvd.broadcast_parameters = noting(hvd.broadcast_parameters)
    return lambda parameters: [value.data().asnumpy() for value in parameters.values()]


def prepare_keras():
    import tensorflow as tf

    keras = tf.keras
    fit = noting(keras.Model.fit)

    def short(self, *arguments, epochs=1, **options):
        steps = {name: min(options[name], 3) for name in ("steps_per_epoch", "validation_steps") if options.get(name)}
        return fit(self, *arguments, epochs=min(epochs, 3), **options | steps)

    def backbone(include_top, weights, input_shape):
        """A model of the same kind, but without weights to download."""
        images = keras.layers.Input(input_shape)
        return keras.Model(images, keras.layers.Conv2D(4, 3)(keras.layers.AveragePooling2D(32)(images)))

    keras.Model.fit = short
    importlib.import_module("tensorflow.keras.applications").InceptionV3 = backbone
    keras.datasets.mnist.load_data = lambda path=None: (digits.images(True), digits.images(False))
    if os.environ.get("TF_USE_LEGACY_KERAS"):
        # Two of the examples are for TensorFlow 1, with which the package keras was Keras 2.
        sys.modules["keras"] = keras
        for name in ("datasets", "models", "layers", "preprocessing", "preprocessing.image", "backend"):
            sys.modules[f"keras.{name}"] = importlib.import_module(f"tf_keras.api._v2.keras.{name}")
        keras.backend.set_session = lambda session: None
        keras.Model.fit_generator = short
        tf.ConfigProto, tf.Session = tf.compat.v1.ConfigProto, lambda config: types.SimpleNamespace()
    # Each rank has its own moving averages of batch normalization, so only trainable weights are compared.
    return lambda model: [value.numpy() for value in model.trainable_weights]


def main():
    values_of = {"torch": prepare_torch, "mxnet": prepare_mxnet, "keras": prepare_keras}[sys.argv[1]]()
    sys.argv = sys.argv[2:]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    names = runpy.run_path(sys.argv[0], run_name="__main__")
    models = [*seen, *(names[name] for name in ("model",) if name in names)]
    if not models:
        # The program has started its ranks itself, so this process has no weights.
        return
    values = [numpy.ascontiguousarray(value) for value in values_of(models[-1])]
    assert values and all(numpy.isfinite(value).all() for value in values)
    print("weights", hashlib.sha1(b"".join(value.tobytes() for value in values)).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
