"""Tests Horovod's promises for `horovod.keras`, with Keras 3 on the backend that KERAS_BACKEND names."""

import os
import tempfile

import keras
import numpy

import ringpull.horovod.keras as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
generator = numpy.random.RandomState(1)
inputs = generator.normal(size=(8 * size, 4)).astype("float32")
labels = inputs @ generator.normal(size=(4, 1)).astype("float32")


def model_of(seed, optimizer):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def weights(model):
    return numpy.concatenate([numpy.ravel(value) for value in model.get_weights()])


def rate_of(model):
    return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))


def values_are_reduced():
    assert numpy.allclose(hvd.allreduce(float(rank)), (size - 1) / 2)
    assert hvd.allreduce(numpy.ones((2, 3)), op=hvd.Sum).tolist() == [[size] * 3] * 2
    assert hvd.allgather(numpy.full((1, 2), rank)).tolist() == [[r, r] for r in range(size)]
    assert float(hvd.broadcast(float(rank), size - 1)) == size - 1
    assert hvd.broadcast_object({"of": rank}) == {"of": 0} and hvd.allgather_object(rank) == list(range(size))
    assert hvd.reducescatter(numpy.ones(size * 2), op=hvd.Sum).tolist() == [size] * 2
    assert numpy.allclose(hvd.allreduce(keras.ops.convert_to_tensor([1.0, 2.0])), [1, 2])


def training_ends_where_one_process_ends():
    alone = model_of(1, keras.optimizers.SGD(0.05, momentum=0.9))
    alone.fit(inputs, labels, batch_size=4 * size, epochs=2, shuffle=False, verbose=0)
    expected = weights(alone)
    for options, tolerance in ({}, 1e-4), ({"compression": hvd.Compression.fp16}, 1e-2), ({"gradient_predivide_factor": 2.0}, 1e-4):
        model = model_of(rank + 1, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9), **options))
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        # Rank r's batch k has the rows r, r + size, ... of the whole batch k.
        history = model.fit(inputs[rank::size], labels[rank::size], batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        got = weights(model)
        assert numpy.allclose(got, expected, atol=tolerance), (options, got, expected)
        assert len({tuple(losses) for losses in hvd.allgather_object(history.history["loss"])}) == 1


def rates_are_scheduled():
    model = model_of(1, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    seen = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(rate_of(self.model))

    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1, verbose=0)
    later = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.5, start_epoch=1)
    history = model.fit(inputs[rank::size], labels[rank::size], batch_size=4, epochs=2, verbose=0, callbacks=[warmup, later, Record()])
    assert numpy.allclose(seen, [0.1 * (1 + (size - 1) / 2) / size, 0.1, 0.05, 0.05]), seen
    assert numpy.allclose(history.history["lr"], [0.1, 0.05])


def a_copy_by_its_settings_is_distributed_too():
    first = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), op=hvd.Sum)
    model = model_of(1, type(first).from_config(first.get_config()))
    before = weights(model)
    model.fit(inputs[:4] * (rank == 0), labels[:4], batch_size=4, verbose=0)
    assert not numpy.array_equal(weights(model), before)
    every = hvd.allgather(weights(model).reshape(1, -1))
    assert (every == every[0]).all(), every


def a_saved_model_goes_on():
    model = model_of(1, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    model.fit(inputs[rank::size], labels[rank::size], batch_size=4, verbose=0, shuffle=False)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        plain, loaded = keras.models.load_model(path), hvd.load_model(path)
        made = hvd.load_model(path, custom_objects={"Adam": lambda **settings: hvd.DistributedOptimizer(keras.optimizers.Adam(**settings))})
    # The class has the name and the module of Keras's own class.
    assert isinstance(plain.optimizer, keras.optimizers.Adam) and isinstance(loaded.optimizer, keras.optimizers.Adam)
    assert not hasattr(plain.optimizer, "_way") and hasattr(loaded.optimizer, "_way") and hasattr(made.optimizer, "_way")
    for each in model, loaded, made:
        each.fit(inputs[rank::size], labels[rank::size], batch_size=4, verbose=0, shuffle=False)
    assert numpy.allclose(weights(model), weights(loaded), atol=1e-6)
    assert numpy.allclose(weights(model), weights(made), atol=1e-6)
    every = hvd.allgather(weights(loaded)[None])
    assert (every == every[0]).all()


def is_equal_on_all_ranks(model):
    every = hvd.allgather(weights(model)[None])
    return bool((every == every[0]).all())


def one_rank_may_have_loaded_its_model():
    model = model_of(rank, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    if rank == 0:
        alone = model_of(1, keras.optimizers.Adam(0.01))
        alone.fit(inputs, labels, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            alone.save(os.path.join(folder, "model.keras"))
            # The optimizer of this rank has a state, and those of the others have none.
            model = hvd.load_model(os.path.join(folder, "model.keras"))
    model.fit(inputs[rank::size], labels[rank::size], batch_size=4, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert is_equal_on_all_ranks(model)


def a_rank_whose_gradients_overflow_lets_every_rank_skip_the_step():
    def scaled(optimizer):
        return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=16.0)

    overflowing = numpy.where((numpy.arange(len(inputs)) == 0)[:, None] * (rank == 0), numpy.inf, inputs)[:8]
    # The last form is the one that `compile` makes with the policy mixed_float16.
    for wrapped in hvd.DistributedOptimizer(scaled(keras.optimizers.SGD(0.05))), scaled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))):
        model = model_of(1, wrapped)
        before = weights(model)
        model.fit(overflowing, labels[rank : rank + 8], batch_size=4, verbose=0, shuffle=False)
        assert is_equal_on_all_ranks(model) and numpy.isfinite(weights(model)).all() and not numpy.array_equal(weights(model), before)
        assert hvd.allgather_object(float(keras.ops.convert_to_numpy(wrapped.dynamic_scale))) == [8.0] * size


def what_is_no_optimizer_of_keras_is_refused():
    for wrong in "sgd", None, keras.layers.Dense(1), keras.optimizers.SGD, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)):
        try:
            hvd.DistributedOptimizer(wrong)
        except (TypeError, ValueError) as error:
            assert "no optimizer of Keras 2 or 3\n  hint: " in str(error) or "already" in str(error), error
        else:
            raise AssertionError(wrong)


def a_state_goes_back_to_its_commit():
    model = model_of(1, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)))
    model.fit(inputs[rank::size], labels[rank::size], batch_size=4, verbose=0)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    count = [hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state)]

    @hvd.elastic.run
    def train(state):
        state.model.fit(inputs[rank::size], labels[rank::size], batch_size=4, epochs=2, verbose=0, callbacks=[*count, hvd.elastic.CommitStateCallback(state)])

    train(state)
    committed = [value.copy() for value in model.get_weights()]
    assert (state.epoch, state.batch) == (2, 0)
    model.fit(inputs[rank::size], labels[rank::size], batch_size=4, verbose=0, callbacks=count)
    assert state.epoch == 3 and not numpy.array_equal(model.get_weights()[0], committed[0])
    state.restore()
    assert state.epoch == 2 and all(numpy.array_equal(*pair) for pair in zip(model.get_weights(), committed))
    assert is_equal_on_all_ranks(model)


for check in [value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == "__main__"]:
    if getattr(getattr(check, "__code__", None), "co_argcount", 1) == 0:
        check()
print(f"rank {rank} is done", flush=True)
