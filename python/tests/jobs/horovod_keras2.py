"""Tests Horovod's promises for `horovod.tensorflow.keras` with Keras 2, its optimizers and its legacy optimizers: TF_USE_LEGACY_KERAS=1."""

import os
import tempfile

import numpy
import tensorflow as tf

import ringpull.horovod.tensorflow.keras as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
keras = tf.keras
generator = numpy.random.RandomState(1)
inputs = generator.normal(size=(8 * size, 4)).astype("float32")
labels = inputs @ generator.normal(size=(4, 1)).astype("float32")
mine = inputs[rank::size], labels[rank::size]


def model_of(seed, optimizer, **more):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    # All of Horovod's examples give this argument.
    model.compile(optimizer, "mse", experimental_run_tf_function=False, **more)
    return model


def weights(model):
    return numpy.concatenate([numpy.ravel(value) for value in model.get_weights()])


def is_equal_on_all_ranks(model):
    every = hvd.allgather(weights(model)[None])
    return bool((every == every[0]).all())


def training_ends_where_one_process_ends(optimizers):
    alone = model_of(1, optimizers.SGD(0.05, momentum=0.9))
    alone.fit(inputs, labels, batch_size=4 * size, epochs=2, shuffle=False, verbose=0)
    for options in {}, {"run_eagerly": True}, {"steps_per_execution": 2}:
        model = model_of(rank + 1, hvd.DistributedOptimizer(optimizers.SGD(0.05, momentum=0.9)), **options)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        history = model.fit(*mine, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        assert numpy.allclose(weights(model), weights(alone), atol=1e-4) and is_equal_on_all_ranks(model), options
        assert len({tuple(losses) for losses in hvd.allgather_object(history.history["loss"])}) == 1


def rates_are_scheduled(optimizers):
    model = model_of(1, hvd.DistributedOptimizer(optimizers.SGD(0.1)))
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1)
    later = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.5, start_epoch=1)
    history = model.fit(*mine, batch_size=4, epochs=2, verbose=0, callbacks=[warmup, later])
    assert numpy.allclose(history.history["lr"], [0.1, 0.05]), history.history


def loops_of_the_programs_own_are_reduced(optimizers):
    model, optimizer = model_of(1, "sgd"), hvd.DistributedOptimizer(optimizers.Adam(0.05))
    wanted, plain = model_of(1, "sgd"), optimizers.Adam(0.05)

    def step(model, optimizer, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    for call in step, tf.function(step):
        call(model, optimizer, *mine)
    optimizer.minimize(lambda: tf.reduce_mean((model(mine[0]) - mine[1]) ** 2), model.trainable_variables)
    for _ in range(3):
        step(wanted, plain, inputs, labels)
    assert is_equal_on_all_ranks(model) and numpy.allclose(weights(model), weights(wanted), atol=1e-4)


def sparse_gradients_are_reduced(optimizers):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,), dtype="int32"), keras.layers.Embedding(10, 3), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(optimizers.Adam(0.1, global_clipnorm=1.0)), "mse")
    before = weights(model)
    model.fit(generator.randint(10, size=(8, 4)) * (rank + 1) % 10, mine[1], batch_size=4, verbose=0)
    assert is_equal_on_all_ranks(model) and not numpy.array_equal(weights(model), before)


def a_saved_model_goes_on(optimizers):
    model = model_of(1, hvd.DistributedOptimizer(optimizers.Adam(0.01)))
    model.fit(*mine, batch_size=4, verbose=0)
    for ending in ".h5", ".keras", "":
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model" + ending)
            model.save(path)
            plain, loaded = keras.models.load_model(path), hvd.load_model(path)
        assert not hasattr(plain.optimizer, "_way") and hasattr(loaded.optimizer, "_way")
        # From some of these files Keras itself does not load the optimizer's state.
        states = [[float(numpy.sum(value)) for value in hvd.elastic.variables_of(each.optimizer)] for each in (model, plain, loaded)]
        assert numpy.array_equal(*states[1:]) and (ending != ".h5" or numpy.allclose(*states[:2])), (ending, states)
        loaded.fit(*mine, batch_size=4, verbose=0)
        assert is_equal_on_all_ranks(loaded)


def one_rank_may_have_loaded_its_model(optimizers):
    model = model_of(rank, hvd.DistributedOptimizer(optimizers.Adam(0.01)))
    if rank == 0:
        alone = model_of(1, optimizers.Adam(0.01))
        alone.fit(inputs, labels, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            alone.save(os.path.join(folder, "model.h5"))
            # The optimizer of this rank has a state, and those of the others have none.
            model = hvd.load_model(os.path.join(folder, "model.h5"))
    model.fit(*mine, batch_size=4, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert is_equal_on_all_ranks(model)


def a_model_that_is_not_built_is_broadcast(optimizers):
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
    model.fit(*mine, batch_size=4, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert is_equal_on_all_ranks(model)


def a_rank_whose_gradients_overflow_lets_every_rank_skip_the_step(optimizers):
    def scaled(optimizer):
        return keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=16.0)

    overflowing = numpy.where((numpy.arange(8) == 0)[:, None] * (rank == 0), numpy.inf, mine[0])
    for wrapped in hvd.DistributedOptimizer(scaled(optimizers.SGD(0.05))), scaled(hvd.DistributedOptimizer(optimizers.SGD(0.05))):
        model = model_of(1, wrapped)
        before = weights(model)
        model.fit(overflowing, mine[1], batch_size=4, verbose=0, shuffle=False)
        assert is_equal_on_all_ranks(model) and numpy.isfinite(weights(model)).all() and not numpy.array_equal(weights(model), before)
        assert hvd.allgather_object(float(wrapped.loss_scale)) == [8.0] * size


def a_state_goes_back_to_its_commit(optimizers):
    model = model_of(1, hvd.DistributedOptimizer(optimizers.Adam(0.05)))
    model.fit(*mine, batch_size=4, verbose=0)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    callbacks = [hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.CommitStateCallback(state)]

    @hvd.elastic.run
    def train(state):
        state.model.fit(*mine, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)

    train(state)
    committed = weights(model)
    model.fit(*mine, batch_size=4, verbose=0)
    state.restore()
    assert (state.epoch, state.batch) == (2, 0) and numpy.array_equal(weights(model), committed)


def what_cannot_be_reduced_is_refused(optimizers):
    wrong = ["sgd", keras.layers.Dense(1), tf.compat.v1.train.GradientDescentOptimizer(0.1), hvd.DistributedOptimizer(optimizers.SGD(0.1))]
    said = ["no optimizer of Keras 2 or 3"] * 3 + ["already"]
    calls = [(lambda one=one: hvd.DistributedOptimizer(one), words) for one, words in zip(wrong, said)]
    calls.append((lambda: hvd.DistributedOptimizer(optimizers.SGD(0.1), backward_passes_per_step=2), "not supported with Keras 2\n  hint: "))
    compiled = model_of(1, hvd.DistributedOptimizer(optimizers.SGD(0.1)), jit_compile=True)
    calls.append((lambda: compiled.fit(*mine, verbose=0), "hint: give compile(jit_compile=False)"))
    for call, words in calls:
        try:
            call()
        except (TypeError, ValueError) as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)


for check in [value for value in list(globals().values()) if getattr(getattr(value, "__code__", None), "co_varnames", ("",))[:1] == ("optimizers",)]:
    for optimizers in keras.optimizers, keras.optimizers.legacy:
        check(optimizers)
print(f"rank {rank} is done", flush=True)
