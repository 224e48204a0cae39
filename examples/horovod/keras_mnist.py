"""Trains a small network on Fashion-MNIST with Keras 3 and Horovod's API. The script imports only Horovod.

    KERAS_BACKEND=jax mpirun -n 4 --oversubscribe python -m ringpull.horovod examples/horovod/keras_mnist.py

Keras uses the backend that KERAS_BACKEND names: torch, jax or tensorflow.
"""

import argparse
import hashlib
import pathlib

import fashion_mnist
import horovod.keras as hvd
import keras


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="images in a rank's batch (default: 16)")
    parser.add_argument(
        "--lr", type=float, default=0.0125, help="of one rank; multiplied by the number of ranks (default: 0.0125)"
    )
    parser.add_argument(
        "--checkpoint", type=pathlib.Path, help="rank 0 writes the model there, a .keras file, after each epoch"
    )
    parser.add_argument("--limit-train", type=int, help="train on the first N images only")
    parser.add_argument("--limit-test", type=int, help="evaluate on the first N images only")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the IDX files")
    return parser.parse_args()


def main():
    options = arguments()
    hvd.init()
    keras.utils.set_random_seed(1 + hvd.rank())
    images, labels = fashion_mnist.read("train", options.limit_train, options.data)
    test_images, test_labels = fashion_mnist.read("t10k", options.limit_test, options.data)
    # Each rank has the same number of images, so all ranks have the same number of batches.
    share = len(labels) // hvd.size() // options.batch * options.batch
    own = slice(hvd.rank(), share * hvd.size(), hvd.size())

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 5, strides=2, padding="same", activation="relu"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(options.lr * hvd.size(), momentum=0.9))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    if options.checkpoint and hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.checkpoint))
    model.fit(
        images[own][..., None] - 0.3,
        labels[own],
        batch_size=options.batch,
        epochs=options.epochs,
        callbacks=callbacks,
        validation_data=(test_images[..., None] - 0.3, test_labels),
        verbose=2 if hvd.rank() == 0 else 0,
    )
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights()))
    print(f"rank {hvd.rank()} of {hvd.size()} weights {digest.hexdigest()[:16]}", flush=True)


main()
