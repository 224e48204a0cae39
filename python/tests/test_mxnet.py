"""Tests MXNet on our stores: the promises of MXNet's own tests of its KVStore, and the plug-in's own promises."""

import re
import sys

import numpy as np
import pytest
from ranks import FOUR, HAS_IMAGES, HERE, ROOT, all_done, job, launched, mpi, run, well

mx = pytest.importorskip("mxnet")

import ringpull  # noqa: E402
import ringpull.mxnet  # noqa: E402
from ringpull.mxnet import MXNetKVStore  # noqa: E402

SHAPE = (4, 4)
KEYS = [5, 7, 11]
NAMES = ["b", "c", "d"]


@pytest.fixture(params=["int", "str"])
def keyed(request):
    """A store with a single key and a list of keys."""
    store = mx.kv.create("ringpull_local")
    single, keys = (3, KEYS) if request.param == "int" else ("a", NAMES)
    store.init(single, mx.nd.zeros(SHAPE))
    store.init(keys, [mx.nd.zeros(SHAPE)] * len(keys))
    return store, single, keys


def devices(value=1.0, count=4):
    return [mx.nd.ones(SHAPE, mx.cpu(i)) * value for i in range(count)]


def holds(array, value):
    return bool((array.asnumpy() == value).all())


def on_servers(workers, name, *words):
    return launched(workers, 2, HERE / "jobs" / f"{name}.py", *words)


def test_a_store_is_found_by_its_name():
    store = mx.kv.create("ringpull_local")
    assert isinstance(store, MXNetKVStore) and isinstance(store, mx.kvstore.KVStore)
    assert store.type == "ringpull_local"
    assert type(mx.kv.create("local")) is mx.kvstore.KVStore


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("dist_snyc_mpi", "dist_sync_mpi"),
        ("dist_sync_mpl", "dist_sync_mpi"),
        ("ringpull_dist_snyc", "ringpull_dist_sync"),
        ("dist_snyc", "dist_sync"),
        ("Locl", "local"),
    ],
)
def test_a_name_that_nobody_knows_is_an_error_that_says_what_may_be_meant(wrong, meant):
    with pytest.raises(ringpull.UnknownKindError, match=f"did you mean '{meant}'") as caught:
        mx.kv.create(wrong)
    assert isinstance(caught.value, mx.MXNetError) and "dist_sync_mpi" in str(caught.value)


@pytest.mark.parametrize("wrong", ["", "horovod", "byteps"])
def test_a_name_that_mxnet_would_take_for_a_local_store_is_an_error(wrong):
    with pytest.raises(ringpull.UnknownKindError, match="MXNet's own are local"):
        mx.kv.create(wrong)


@pytest.mark.parametrize("native", ["local", "LOCAL", "device", "local_allreduce_cpu"])
def test_mxnets_own_names_are_mxnets(native):
    assert type(mx.kv.create(native)) is mx.kvstore.KVStore


@pytest.mark.parametrize("native", ["dist_sync", "dist", "dist_async"])
def test_a_kind_with_servers_says_that_the_job_has_none(native):
    with pytest.raises(ringpull.UnavailableError, match="needs servers, and this job has none") as caught:
        mx.kv.create(native)
    assert "dist_sync_mpi" in str(caught.value) and "ringpull launch -n 4 -s 4" in str(caught.value)


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_a_single_pair_is_pushed_and_pulled(keyed, stype):
    store, single, _ = keyed
    store.push(single, mx.nd.ones(SHAPE).tostype(stype))
    out = mx.nd.empty(SHAPE)
    store.pull(single, out=out)
    assert holds(out, 1)


def test_lists_of_pairs_are_pushed_and_pulled(keyed):
    store, _, keys = keyed
    store.push(keys, [mx.nd.ones(SHAPE) * 4] * len(keys))
    outs = [mx.nd.empty(SHAPE)] * len(keys)
    store.pull(keys, out=outs)
    assert all(holds(out, 4) for out in outs)


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_values_of_several_devices_are_summed(keyed, stype):
    store, single, keys = keyed
    values = devices()
    store.push(single, [value.tostype(stype) for value in values])
    store.pull(single, out=values)
    assert all(holds(value, 4) for value in values)
    lists = [devices(2.0)] * len(keys)
    store.push(keys, lists)
    store.pull(keys, out=lists)
    assert all(holds(value, 8) for some in lists for value in some)


def test_pushpull_writes_outputs_or_the_values_themselves(keyed):
    store, single, keys = keyed
    values, outs = devices(), devices(0.0)
    store.pushpull(single, values, out=outs)
    assert all(holds(out, 4) for out in outs) and holds(values[0], 1)
    store.pushpull(single, values)
    assert all(holds(value, 4) for value in values)
    # All keys have the same arrays as values, so each key's sum is of the arrays' values before the call.
    lists = [devices(2.0)] * len(keys)
    store.pushpull(keys, lists)
    assert all(holds(value, 8) for some in lists for value in some)


def test_broadcast_writes_every_output():
    store = mx.kv.create("ringpull_local")
    out, outs = mx.nd.empty(SHAPE), [mx.nd.empty(SHAPE)] * 3
    store.broadcast(3, mx.nd.ones(SHAPE), out)
    store.broadcast(6, [mx.nd.ones(SHAPE) * 2], outs)
    store.broadcast([7, 8], [mx.nd.ones(SHAPE)] * 2, [[mx.nd.empty(SHAPE)] * 2, outs])
    assert holds(out, 1) and holds(outs[0], 1)


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_an_updater_changes_the_stored_value(keyed, stype):
    store, single, keys = keyed
    seen = set()

    def update(key, received, stored):
        seen.add(key)
        stored += received

    store._set_updater(update)
    values = devices()
    store.push(single, values)
    store.pull(single, out=values)
    assert all(holds(value, 4) for value in values)
    lists = [devices() for _ in keys]
    for _ in range(4):
        store.push(keys, [[value.tostype(stype) for value in some] for some in lists])
    store.pull(keys, out=lists)
    assert all(holds(value, 16) for some in lists for value in some)
    assert seen == {single, *keys}


def test_a_kind_of_one_process_has_all_states_also_if_they_are_to_be_divided():
    outs = []
    for sharded in None, True:
        store = mx.kv.create("ringpull_local")
        store.set_optimizer(mx.optimizer.LAMB(learning_rate=0.1), sharded=sharded)
        store.init("w", mx.nd.ones(SHAPE))
        for step in range(3):
            store.push("w", mx.nd.ones(SHAPE) * step)
        outs.append(mx.nd.empty(SHAPE))
        store.pull("w", out=outs[-1])
    whole, divided = (out.asnumpy() for out in outs)
    assert np.array_equal(whole, divided) and not np.array_equal(whole, np.ones(SHAPE))


def test_row_sparse_values_are_summed_and_their_rows_pulled():
    store = mx.kv.create("ringpull_local")
    store.init("a", mx.nd.zeros(SHAPE).tostype("row_sparse"))
    random = np.random.RandomState(1)
    dense = [np.where(random.rand(4, 1) < 0.5, random.randint(1, 9, SHAPE), 0).astype("float32") for _ in range(4)]
    values = [mx.nd.array(value).tostype("row_sparse") for value in dense]
    store.push("a", values)
    every = mx.nd.arange(0, 4, dtype="int64")
    store.row_sparse_pull("a", out=values, row_ids=[every] * 4)
    assert all((value.asnumpy() == sum(dense)).all() for value in values)


@pytest.mark.parametrize("count", [1, 4])
def test_only_the_rows_asked_for_are_pulled(count):
    store = mx.kv.create("ringpull_local")
    store.init("e", mx.nd.ones(SHAPE).tostype("row_sparse"))
    outs = [mx.nd.zeros(SHAPE).tostype("row_sparse") for _ in range(count)]
    ids = [np.random.RandomState(i).randint(4, size=(2, 2)) for i in range(count)]
    arrays = [mx.nd.array(some, dtype="int64") for some in ids]
    store.row_sparse_pull("e", out=outs if count > 1 else outs[0], row_ids=arrays if count > 1 else arrays[0])
    for out, some in zip(outs, ids):
        expected = np.isin(np.arange(4), some)[:, None] * np.ones(SHAPE)
        assert (out.asnumpy() == expected).all()
    store.row_sparse_pull("e", out=outs[0], row_ids=mx.nd.array([]))
    assert holds(outs[0], 0)


def test_the_rows_of_several_keys_are_pulled_each_with_its_own_ids_or_all_with_one(keyed):
    store, _, keys = keyed
    store.push(keys, [mx.nd.ones(SHAPE) * 3] * len(keys))
    outs = [mx.nd.zeros(SHAPE).tostype("row_sparse") for _ in keys]
    store.row_sparse_pull(keys, out=outs, row_ids=[mx.nd.array([number]) for number in range(len(keys))])
    assert [np.flatnonzero(out.asnumpy()[:, 0]).tolist() for out in outs] == [[0], [1], [2]]
    store.row_sparse_pull(keys, out=outs, row_ids=mx.nd.array([[1], [2]]))
    assert all(np.flatnonzero(out.asnumpy()[:, 0]).tolist() == [1, 2] for out in outs)
    with pytest.raises(mx.MXNetError):
        store.row_sparse_pull(keys, out=[mx.nd.ones(SHAPE)] * len(keys), row_ids=[mx.nd.array([1])] * len(keys))


def test_a_row_sparse_output_is_ignored_by_pull_by_default():
    store = mx.kv.create("ringpull_local")
    store.init("e", mx.nd.ones(SHAPE))
    out = (mx.nd.ones(SHAPE) * 3).tostype("row_sparse")
    store.pull("e", out=out)
    assert holds(out, 3)
    store.pull("e", out=out, ignore_sparse=False)
    assert holds(out, 1)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.pull("none", out=mx.nd.ones(SHAPE)), ringpull.UnknownKeyError),
        (lambda s: s.push("none", mx.nd.ones(SHAPE)), ringpull.UnknownKeyError),
        (lambda s: s.push("none", []), None),
        (lambda s: s.init("a", mx.nd.ones(SHAPE)), ringpull.DuplicateKeyError),
        (lambda s: s.broadcast("a", mx.nd.ones(SHAPE), mx.nd.ones(SHAPE)), ringpull.DuplicateKeyError),
        (lambda s: s.init(3, mx.nd.ones(SHAPE)), ringpull.MixedKeyTypesError),
        (lambda s: s.push(3, mx.nd.ones(SHAPE)), ringpull.MixedKeyTypesError),
        (lambda s: s.pull(3, out=mx.nd.ones(SHAPE)), ringpull.MixedKeyTypesError),
        (lambda s: s.push("a", mx.nd.ones((4, 5))), ringpull.ShapeMismatchError),
        (lambda s: s.pushpull("a", mx.nd.ones(SHAPE), out=mx.nd.ones((16,))), ringpull.ShapeMismatchError),
        (lambda s: s.push("a", mx.nd.ones(SHAPE, dtype="float16")), ringpull.DtypeMismatchError),
        (lambda s: s.push(["a"], [mx.nd.ones(SHAPE)] * 2), ringpull.ArgumentError),
        (lambda s: s.push("a", np.ones(SHAPE)), ringpull.ArgumentError),
        (lambda s: s.push(1.5, mx.nd.ones(SHAPE)), ringpull.ArgumentError),
        (lambda s: s.row_sparse_pull("a", out=mx.nd.ones(SHAPE), row_ids=mx.nd.array([1])), ringpull.ArgumentError),
        (
            lambda s: s.row_sparse_pull("a", out=mx.nd.ones(SHAPE).tostype("row_sparse"), row_ids=mx.nd.array([4])),
            ringpull.ArgumentError,
        ),
        (lambda s: s.set_optimizer("sgd"), ringpull.ArgumentError),
        (lambda s: s.save_optimizer_states("/absent/file"), ringpull.ArgumentError),
    ],
)
def test_what_is_wrong_is_an_error_of_ours_and_of_mxnets(call, error):
    store = mx.kv.create("ringpull_local")
    store.init("a", mx.nd.ones(SHAPE) * 5)
    if error is None:
        call(store)
    else:
        with pytest.raises(error) as caught:
            call(store)
        assert isinstance(caught.value, mx.MXNetError)
    out = mx.nd.empty(SHAPE)
    store.pull("a", out=out)
    assert holds(out, 5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int32", "int64"])
def test_every_dtype_of_local_stores_is_summed(dtype):
    store = mx.kv.create("ringpull_local")
    store.init(1, mx.nd.zeros(SHAPE, dtype=dtype))
    value = mx.nd.ones(SHAPE, dtype=dtype)
    store.pushpull(1, [value, value])
    assert holds(value, 2)
    other = mx.nd.empty(SHAPE, dtype="float32")
    store.pull(1, out=other)
    assert holds(other, 2)


def test_an_array_in_a_layout_of_its_own_is_pushed_right():
    # The output of a convolution may have a layout that is blocked by channels.
    store = mx.kv.create("ringpull_local")
    image, weight = mx.nd.random.uniform(shape=(2, 16, 8, 8)), mx.nd.random.uniform(shape=(32, 16, 3, 3))
    made = [mx.nd.Convolution(image, weight, no_bias=True, kernel=(3, 3), num_filter=32) for _ in range(3)]
    expected = made[0].asnumpy()
    store.init("c", made[0])
    store.pushpull("c", made[1:], out=made[1:])
    assert np.allclose(made[1].asnumpy(), 2 * expected)


def test_writes_after_a_push_come_after_it():
    store = mx.kv.create("ringpull_local")
    store.init(1, mx.nd.zeros((100_000,)))
    value, out = mx.nd.ones((100_000,)), mx.nd.empty((100_000,))
    for step in range(20):
        value[:] = step
        store.push(1, value)
        value[:] = -1
        store.pull(1, out=out)
        assert holds(out, step)


@pytest.mark.parametrize("wrong", [{"type": "3bit"}, {"threshold": 0.5}, {"type": "2bit", "threshold": 0}, "3bit", "2bit:0", None, 2])
def test_a_wrong_compression_is_an_error(wrong):
    with pytest.raises(mx.MXNetError):
        mx.kv.create("ringpull_local").set_gradient_compression(wrong)


@pytest.mark.long
def test_the_naive_engine_works_too():
    status, output = run([sys.executable, HERE / "jobs/mxnet_values.py", "ringpull_local"], MXNET_ENGINE_TYPE="NaiveEngine")
    assert status == 0, output


@pytest.mark.parametrize("ranks", [2, FOUR])
def test_the_promises_of_dist_sync_hold(ranks):
    all_done(job(ranks, "mxnet_values", "dist_sync_mpi"))


@pytest.mark.parametrize(("start", "words"), [(job, ["dist_sync_mpi", "names", "sharded"]), (on_servers, ["ringpull_dist_sync", "names"])])
def test_an_optimizer_that_the_store_runs_ends_with_the_bits_of_mxnets_code(start, words):
    all_done(start(2, "mxnet_optimizers", *words))


def test_the_keys_of_gluon_have_their_factors_on_servers_that_sum_values_of_devices_first():
    all_done(on_servers(2, "mxnet_optimizers", "ringpull_dist_sync_device", "numbers"))


def test_the_promises_of_dist_sync_hold_with_our_servers():
    all_done(launched(2, 2, HERE / "jobs/mxnet_values.py", "ringpull_dist_sync"))


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("sizes", "MXNetError .*?disagree"),
        pytest.param("stalled", "MXNetError .*?have not called", marks=pytest.mark.long),
        pytest.param("gone", "MXNetError .*?is lost", marks=pytest.mark.long),
    ],
)
def test_a_fault_reaches_who_reads_the_output(case, expected, ranks):
    done = mpi(ranks, HERE / "jobs/mxnet_faults.py", case, RINGPULL_TIMEOUT=2)
    for rank, printed in enumerate(done.ranks[: ranks - (case == "gone")]):
        assert re.search(rf"^rank {rank}: {expected}", printed.out, re.MULTILINE), f"{done}"
        assert printed.out.count(f"rank {rank}: and then KVStoreError") == 1, f"{done}"


def test_an_uncaught_fault_is_reported_once_in_a_few_lines_with_mxnets_name_of_the_key():
    done = mpi(2, HERE / "jobs/mxnet_uncaught.py", RINGPULL_TIMEOUT=2)
    lines = done.ranks[0].err.splitlines()
    assert done.status and len(lines) <= 6 and lines[0].startswith("Traceback"), f"{done}"
    assert re.fullmatch(r"rank 0: failed: StalledError: push of key \d \('head_(weight|bias)'\) .*rank\(s\) \[1\] have not called it", lines[-2]), f"{done}"
    assert lines[-1].startswith("  hint: ") and "join" not in lines[-1] and done.ranks[0].err.count("have not called it") == 1, f"{done}"


DROPPED = """
import mxnet as mx
import ringpull.mxnet
store = mx.kv.create("dist_sync_mpi")
store.init("w", mx.nd.zeros(3))
slow, out = mx.nd.zeros((600, 600)), mx.nd.zeros(3)
for _ in range(30):
    slow = mx.nd.dot(slow, slow)
store.push("w", slow[0, :3] + 1)
store.pull("w", out)
if store.rank == 0:
    print(out.asnumpy().tolist())
# Here MXNet has not begun the other rank's push.
del store
"""


def test_a_store_that_is_dropped_does_first_what_was_called():
    done = well(mpi(2, "-c", DROPPED))
    assert done.ranks[0].out == "[2.0, 2.0, 2.0]\n", f"{done}"


EXAMPLE = ROOT / "examples/mxnet/train.py"
SHORT = ["--steps", 4, "--epochs", 1, "--limit-train", 512, "--limit-test", 200]


@pytest.mark.skipif(not HAS_IMAGES, reason="Fashion-MNIST is not installed: scripts/setup")
@pytest.mark.parametrize("more", [[], pytest.param(["--update-on-worker", "--optimizer", "adam", "--lr", 0.001], marks=pytest.mark.long)])
def test_the_example_that_never_heard_of_us_ends_with_equal_weights(more):
    done = mpi(2, "-m", "ringpull.mxnet", EXAMPLE, "--kv-store", "dist_sync_mpi", *SHORT, *more)
    hashes = [re.findall(rf"^rank {rank} of 2 weights (\w+)$", printed.out, re.MULTILINE) for rank, printed in enumerate(done.ranks)]
    assert done.status == 0 and len(hashes[0]) == 1 and hashes[0] == hashes[1], f"{done}"
