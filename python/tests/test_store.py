"""Tests the plain API in one process."""

import array
import importlib
import inspect
import pickle
import pydoc
import re
import threading

import numpy as np
import pytest
from ranks import ROOT

import ringpull


@pytest.fixture
def store():
    with ringpull.create("local") as made:
        yield made


def test_the_documented_example_runs(store):
    store.init("w", np.zeros(4, np.float32))
    gradient = np.ones(4, np.float32)
    store.pushpull("w", gradient)
    assert gradient.tolist() == [1, 1, 1, 1]
    assert (store.rank, store.num_workers, store.local_rank, store.type) == (0, 1, 0, "local")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64"])
def test_lists_are_summed_in_every_dtype(store, dtype):
    store.init(3, np.zeros((2, 3), dtype))
    outs = [np.empty((2, 3), dtype) for _ in range(2)]
    store.push(3, [np.full((2, 3), value, dtype) for value in (1, 2, 3)])
    store.pull(3, outs)
    for out in outs:
        assert (out == 6).all()


def test_lists_of_keys_travel_together(store):
    keys = ["b", "c", "d"]
    store.init(keys, [np.zeros(2)] * 3)
    values = [[np.full(2, 2.0) for _ in range(4)] for _ in keys]
    store.pushpull(keys, values)
    assert all((value == 8).all() for some in values for value in some)


def test_a_repeated_key_has_all_its_values(store):
    store.init("k", np.zeros(1))
    store.push(["k", "k"], [np.ones(1), np.ones(1)])
    out = np.empty(1)
    store.pull("k", out)
    assert out[0] == 2


def test_outputs_may_be_the_values_or_the_same_array_twice(store):
    store.init("k", np.zeros(3))
    value = np.ones(3)
    store.pushpull("k", [value, value], [value, value])
    assert value.tolist() == [2, 2, 2]


def test_a_pushed_array_may_be_changed_at_once(store):
    store.init("k", np.zeros(3))
    value = np.ones(3)
    store.push("k", value)
    value[:] = 7
    out = np.empty(3)
    store.pull("k", out)
    assert out.tolist() == [1, 1, 1]


def test_without_an_updater_the_sum_overwrites(store):
    store.init("k", np.full(2, 5.0))
    for value in (1.0, 2.0):
        store.push("k", np.full(2, value))
    out = np.empty(2)
    store.pull("k", out)
    assert out.tolist() == [2, 2]


def test_broadcast_is_init_and_pull(store):
    outs = [np.empty(2), np.empty(2)]
    store.broadcast("k", np.full(2, 3.0), outs)
    assert outs[0].tolist() == outs[1].tolist() == [3, 3]


def test_an_empty_list_does_nothing(store):
    store.init("k", np.ones(1))
    store.push("k", [])
    store.pushpull("k", [])
    out = np.empty(1)
    store.pull("k", out)
    assert out[0] == 1


def test_a_handle_is_waited_for(store):
    store.init("k", np.zeros(2))
    out = np.empty(2)
    handle = store.pushpull("k", np.ones(2), out, wait=False)
    assert handle.wait(10) and handle.done()
    assert out.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64"])
def test_an_array_of_shared_memory_is_an_array_of_numpy(store, dtype):
    made = ringpull.zeros((2, 3), dtype)
    assert type(made) is np.ndarray and made.dtype == dtype and made.flags.writeable and (made == 0).all()
    store.init("k", made)
    made += 1
    store.pushpull("k", made, keep=False)
    assert (made == 1).all() and ringpull.zeros(5).shape == (5,)
    with pytest.raises(ringpull.ArgumentError, match="more bytes than can be addressed"):
        ringpull.zeros((2**32, 2**32), dtype)


def test_scalars_and_empty_tensors_are_tensors(store):
    store.init("scalar", np.zeros(()))
    value = np.ones(())
    store.pushpull("scalar", value)
    store.init("empty", np.zeros((0, 3)))
    store.pushpull("empty", np.zeros((0, 3)))
    assert value == 1


def test_what_has_the_buffer_protocol_is_a_tensor(store):
    value = array.array("f", [1, 2, 3])
    store.init("k", value)
    out = array.array("f", [0, 0, 0])
    store.pull("k", out)
    assert out == value


def test_what_has_only_dlpack_is_a_tensor(store):
    class Unversioned:
        """The method of a producer that is older than versioned capsules."""

        def __init__(self, content):
            self.content = content

        def __dlpack__(self, stream=None):
            return self.content.__dlpack__()

    value = np.arange(3.0)
    store.init("k", Unversioned(value))
    out = np.empty(3)
    store.pushpull("k", Unversioned(value), Unversioned(out))
    assert out.tolist() == [0, 1, 2]


def test_rows_are_pulled_in_the_order_asked_for_and_pushed_rows_add_up(store):
    store.init("e", np.zeros((4, 2), np.float32))
    rows = np.array([[1, 1], [2, 2], [3, 3]], np.float32)
    store.push("e", ringpull.RowSparse([2, 0, 2], rows, (4, 2)))
    out = np.empty((3, 2), np.float32)
    store.row_sparse_pull("e", out, row_ids=np.array([2, 1, 0]))
    assert out.tolist() == [[4, 4], [0, 0], [2, 2]]


def test_an_optimizer_runs_in_the_store_and_its_states_go_on(store, tmp_path):
    def steps(made, count):
        out = np.empty(2, np.float32)
        for _ in range(count):
            made.pushpull("w", np.ones(2, np.float32), out)
        return out.tolist()

    sgd = ringpull.SGD(learning_rate=0.5, momentum=0.5)
    store.init("w", np.zeros(2, np.float32))
    store.set_optimizer(sgd)
    value = steps(store, 2)
    assert value == [-1.25, -1.25]
    store.save_optimizer_states(tmp_path / "states")
    with ringpull.create("local") as other:
        other.init("w", np.array(value, np.float32))
        other.set_optimizer(sgd)
        other.load_optimizer_states(tmp_path / "states")
        assert steps(other, 1) == steps(store, 1)
    sgd.learning_rate = 0.0
    store.set_optimizer(sgd)
    before = steps(store, 0), np.empty(2, np.float32)
    store.pull("w", before[1])
    assert store.is_capable("optimizer")


def test_a_key_has_a_rate_and_a_decay_of_its_own(store):
    sgd = ringpull.SGD(learning_rate=0.5, wd=0.5, lr_mult={"slow": 0.25}, wd_mult={"bias": 0})
    moved = {"weight": 8 - 0.5 * (1 + 4), "slow": 8 - 0.125 * (1 + 4), "bias": 8 - 0.5}
    store.init(list(moved), [np.full(2, 8, np.float32)] * 3)
    store.set_optimizer(sgd)
    for key, value in moved.items():
        out = np.empty(2, np.float32)
        store.pushpull(key, np.ones(2, np.float32), out)
        assert out.tolist() == [value] * 2, key
    sgd.lr_mult = {"slow": float("nan")}
    with pytest.raises(ringpull.ArgumentError, match='lr_mult of key "slow" is NaN'):
        store.set_optimizer(sgd)


@pytest.mark.parametrize("optimizer", [ringpull.AdaGrad(0.5, eps=1e-30), ringpull.RMSProp(0.5, gamma1=0.0, epsilon=1e-30)])
def test_the_root_of_squares_divides_the_step(store, optimizer):
    store.init("w", np.zeros(2, np.float32))
    store.set_optimizer(optimizer)
    out = np.empty(2, np.float32)
    store.pushpull("w", np.array([3, -4], np.float32), out)
    assert out.tolist() == [-0.5, 0.5]


def test_an_updater_changes_the_stored_value(store):
    seen = []

    def update(key, received, stored):
        seen.append((key, received.tolist()))
        with pytest.raises(ValueError):
            received[0] = 1
        stored += 2 * received

    store.init("k", np.ones(2))
    store.set_updater(update)
    out = np.empty(2)
    store.pushpull("k", np.ones(2), out)
    assert out.tolist() == [3, 3]
    assert seen == [("k", [1, 1])]


def test_what_an_updater_raises_is_an_error_that_names_the_key(store, capfd):
    store.init("k", np.ones(2))
    store.set_updater(lambda key, received, stored: stored["no such index"])
    with pytest.raises(ringpull.UpdaterError, match="the updater of key \"k\" on rank 0 raised "):
        store.pushpull("k", np.ones(2))
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: s.pull("b", np.empty(2)), ringpull.UnknownKeyError, "has not been initialised"),
        (lambda s: s.push("b", np.empty(2)), ringpull.UnknownKeyError, "has not been initialised"),
        (lambda s: s.init("a", np.empty(2)), ringpull.DuplicateKeyError, "duplicate init"),
        (lambda s: s.push(3, np.empty(2)), ringpull.MixedKeyTypesError, "mixed key types"),
        (lambda s: s.push("a", np.empty(3)), ringpull.ShapeMismatchError, r"\[3\], but init gave \[2\]"),
        (lambda s: s.push("a", np.empty((2, 1))), ringpull.ShapeMismatchError, r"\[2, 1\]"),
        (lambda s: s.push("a", np.empty(2, np.float32)), ringpull.DtypeMismatchError, "f32, but init gave f64"),
        (lambda s: s.push(["a"], [np.empty(2), np.empty(2)]), ringpull.ArgumentError, "1 keys with 2 values"),
        (lambda s: s.push("a", "text"), ringpull.ArgumentError, "str is not a tensor type"),
        (lambda s: s.push(1.5, np.empty(2)), ringpull.ArgumentError, "unexpected type for keys"),
        (lambda s: s.push("a", np.zeros(2, bool)), ringpull.ArgumentError, "a store holds no values of bool"),
        (lambda s: s.push("a", np.zeros(4)[::2]), ringpull.ArgumentError, "ascontiguousarray"),
        (lambda s: s.pull("a", b"12345678"), ringpull.ArgumentError, "writable"),
        (lambda s: s.pull("a"), ringpull.ArgumentError, "without an output"),
        (lambda s: s.set_optimizer("sdg"), ringpull.ArgumentError, "sdg"),
        (lambda s: s.set_optimizer(ringpull.SGD), ringpull.ArgumentError, r"ringpull\.SGD\(learning_rate=0\.1\)"),
        (lambda s: s.row_sparse_pull("a", np.empty(1), row_ids=[7]), ringpull.ArgumentError, "row id 7"),
        (lambda s: s.load_optimizer_states("/absent/states"), ringpull.FileError, "/absent/states"),
        (lambda s: ringpull.create("dist_snyc"), ringpull.UnknownKindError, "dist_sync_mpi"),
        (lambda s: ringpull.create("dist_sync"), ringpull.UnavailableError, "ringpull launch"),
        (lambda s: ringpull.create("device"), ringpull.UnavailableError, "CUDA"),
        (lambda s: type(s).is_capable("flying"), ValueError, "flying"),
        (lambda s: s.push(["a", ("b", "c")], [np.ones(2), np.ones(2)]), ringpull.ArgumentError, "list of keys in a list"),
        (lambda s: s.push(["a", {}], [np.ones(2), np.ones(2)]), ringpull.ArgumentError, "an item that is no key"),
        (lambda s: s.pushpull(["a", 1.5], [np.ones(2), np.ones(2)]), ringpull.ArgumentError, "type for keys"),
    ],
)
def test_a_wrong_call_is_an_error_and_changes_nothing(store, call, error, words):
    store.init("a", np.full(2, 5.0))
    with pytest.raises(error, match=words) as caught:
        call(store)
    if error is not ValueError:
        assert isinstance(caught.value, ringpull.KVStoreError)
    out = np.empty(2)
    store.pull("a", out)
    assert out.tolist() == [5, 5]


@pytest.mark.parametrize("given", ["2bit:0.5", "2bit", {"type": "2bit", "threshold": 0.5}, "topk:0.01:0.9", "fp16"])
def test_compression_is_a_word_or_mxnets_parameters(given):
    # The name is valid, but this kind of store does not have it.
    with ringpull.create("local") as store, pytest.raises(ringpull.UnsupportedError):
        store.set_gradient_compression(given)


@pytest.mark.parametrize("given", ["none", {"type": "none"}])
def test_no_compression_is_what_every_kind_has(store, given):
    store.set_gradient_compression(given)
    store.init("a", np.zeros(2))
    store.push("a", np.full(2, 0.25))
    out = np.empty(2)
    store.pull("a", out)
    assert out.tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("3bit", "the types are fp16"),
        ("2bit:0", "greater than 0"),
        ("2bit:0.5:1", "more parameters"),
        ({"type": "3bit"}, "the types are fp16"),
        ({"type": "none", "threshold": 0.5}, "the types are fp16"),
        ({"threshold": 0.5}, "type"),
        (None, "by a NoneType"),
        (["2bit"], "by a list"),
    ],
)
def test_a_wrong_compression_is_an_error_that_says_what_is_right(store, given, words):
    with pytest.raises(ringpull.ArgumentError, match=words):
        store.set_gradient_compression(given)


def test_errors_carry_rank_and_key(store):
    with pytest.raises(ringpull.UnknownKeyError) as caught:
        store.pull("b", np.empty(2))
    assert (caught.value.rank, caught.value.key, caught.value.operation) == (0, "b", "pull")


def test_a_closed_store_says_so(store):
    store.close()
    with pytest.raises(ringpull.ArgumentError, match="closed"):
        store.rank  # noqa: B018


def test_what_is_no_tensor_is_found_before_the_first_key_is_pushed(store):
    store.init(["a", "b"], [np.zeros(3), np.zeros(3)])
    for values, outs in ([np.ones(3), "b"], None), ([np.ones(3), np.ones(3)], [np.ones(3), np.ones((3, 3))[:, 0]]):
        with pytest.raises(ringpull.ArgumentError):
            store.pushpull(["a", "b"], values, outs)
    assert store.stats()["pushes"] == 0


def test_memory_is_given_back_when_the_operation_is_done(store):
    import weakref

    store.init("k", np.zeros(3))
    value = np.ones(3)
    gone = weakref.ref(value)
    store.pushpull("k", value)
    del value
    assert gone() is None


def test_other_threads_run_while_one_waits():
    from ranks import job

    assert job(2, "threads").ranks[0].out == "ran while waiting\n"


def undocumented(owner, names):
    """The public names among `names` that have no documentation. Methods and properties of classes count too."""
    for name in names:
        member = inspect.getattr_static(owner, name)
        member = getattr(owner, name) if isinstance(member, (staticmethod, classmethod)) else member
        if name.startswith("_") or not (inspect.isclass(member) or inspect.isroutine(member) or isinstance(member, property)):
            continue
        if not inspect.getdoc(member):
            yield f"{owner.__name__}.{name}"
        if inspect.isclass(member) and member.__module__.startswith("ringpull"):
            yield from undocumented(member, vars(member))


@pytest.mark.parametrize("module", ["ringpull", "ringpull.errors", "ringpull.mxnet", "ringpull.torch", "ringpull.bench"])
def test_help_is_complete(module):
    if module.endswith(("mxnet", "torch")):
        pytest.importorskip(module.split(".")[1])
    module = importlib.import_module(module)
    names = getattr(module, "__all__", ["main"])
    assert module.__doc__ and not list(undocumented(module, names))
    said = pydoc.plain(pydoc.render_doc(module))
    assert [name for name in names if name not in said and name not in ("__version__", "errors")] == []


def test_every_native_error_has_a_class():
    source = (ROOT / "crates/base/src/error.rs").read_text()
    variants = re.findall(r"^    (\w+) \{", source.split("pub enum Error {")[1].split("\n}\n")[0], re.MULTILINE)
    assert sorted(ringpull.errors._CLASSES) == sorted(variants)


def test_every_native_optimizer_has_a_class(store):
    with pytest.raises(ringpull.errors.ArgumentError) as caught:
        store.set_optimizer("none")
    names = re.search(r"the optimizers are ([^;]*);", str(caught.value)).group(1).split(", ")
    assert sorted(names) == sorted(name.lower() for name in ringpull.optimizers.__all__ if name != "Optimizer")


def test_the_kinds_are_those_of_the_library():
    assert "dist_sync_mpi" in ringpull.kinds() and "local" in ringpull.kinds()


def test_optimizers_are_values():
    adam = ringpull.Adam(learning_rate=0.1, clip_gradient=5)
    assert pickle.loads(pickle.dumps(adam)) == adam
    assert "clip_gradient=5.0" in adam.spec() and threading.current_thread() is threading.main_thread()


def test_a_batch_is_split_by_weights():
    assert ringpull.split(10, [3, 3, 3, 1]) == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 10)]
    parts = ringpull.split(np.arange(8), [1, 0, 3])
    assert [part.tolist() for part in parts] == [[0, 1], [], [2, 3, 4, 5, 6, 7]]
    for batch, weights in (3, [1, 1, 1, 1]), (3, [1, -1]), (3, []), (3, [0, 0]):
        with pytest.raises(ringpull.ArgumentError):
            ringpull.split(batch, weights)


def test_what_is_pushed_is_weighted_and_a_wrong_list_is_an_error():
    store = ringpull.create("local")
    store.init("w", np.zeros(2, np.float32))
    store.set_shares([7])
    for weights in ([1, 1], [0], [-1], ["a"]):
        with pytest.raises((ringpull.ArgumentError, ValueError)):
            store.set_shares(weights)
    value = np.ones(2, np.float32)
    store.pushpull("w", value)
    assert value.tolist() == [1, 1]
