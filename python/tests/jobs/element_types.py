"""Tests every element type that can be sent, of NumPy and PyTorch, by a communicator, a store and Horovod's functions."""

import numpy as np

import ringpull

comm = ringpull.communicator()
rank, size = comm.rank, comm.size


def raises(kind, words, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except kind as error:
        assert isinstance(error, ringpull.KVStoreError) and all(word in str(error) for word in words), error
        return
    raise AssertionError(f"{words}: it was accepted")


def same(found, wanted):
    assert found.dtype == wanted.dtype and found.shape == wanted.shape and (found == wanted).all(), (found, wanted)


def travels(of, dtype):
    """Checks collectives that only send. `of` makes an array of the library and the type that are tried, from numbers."""
    for shape in (3,), (), (0, 2), (2, 1, 2):
        count = int(np.prod(shape))
        mine, first = of([rank + at for at in range(count)], shape), of(list(range(count)), shape)
        same(comm.broadcast(mine, 0).wait(), first)
        comm.broadcast(mine, 0, out=mine).wait()
        same(mine, first)
    rows = [of([one] * (one + 1), (one + 1,)) for one in range(size)]
    gathered = comm.allgather(rows[rank]).wait()
    same(gathered, of([one for one in range(size) for _ in range(one + 1)], (len(gathered),)))
    same(comm.allgather(of([rank], ())).wait(), of(list(range(size)), (size,)))
    found, taken = comm.alltoall(of([rank] * size, (size,)), [1] * size).wait()
    same(found, of(list(range(size)), (size,)))
    assert taken == [1] * size
    if size > 1:
        got = of([7], (1,))
        handles = [comm.send(of([rank], (1,)), (rank + 1) % size), comm.recv(got, (rank - 1) % size)]
        [handle.wait() for handle in handles]
        same(got, of([(rank - 1) % size], (1,)))


def sums(of, dtype):
    """Checks the reductions that the type has, and the error of a reduction that it does not have."""
    mine = of([rank + 1, 0], (2,))
    total = size * (size + 1) // 2
    if "complex" in dtype:
        mine = mine + of([0, 1], (2,)) * (1j)
        whole = of([total, 0], (2,)) + of([0, size], (2,)) * 1j
        same(comm.allreduce(mine).wait(), whole)
        same(comm.allreduce(mine, "average", out=mine).wait(), whole / size)
        same(comm.allreduce(of([2], ()), prescale=2.0).wait(), of([4 * size], ()))
        part = comm.reduce_scatter(of([1] * size, (size,))).wait()
        same(part, of([size], (1,)))
        raises(ringpull.ArgumentError, ["allreduce of w", "no max of " + dtype, "sum and average"], comm.allreduce, mine, "max", name="w")
    elif dtype == "bool":
        same(comm.allreduce(mine, "max").wait(), of([1, 0], (2,)))
        same(comm.allreduce(of([rank, 1], (2,)), "min").wait(), of([0, 1], (2,)))
        for op in "sum", "average":
            raises(ValueError, [f"no {op} of bool", "max for logical OR"], comm.allreduce, mine, op)
            raises(ValueError, [f"no {op} of bool"], comm.reduce_scatter, mine, op)
            raises(ValueError, [f"no {op} of bool"], comm.grouped_allreduce, [mine], op)
    elif dtype in ("uint32", "uint64"):
        # The sum of the greatest number and 1 is the least number.
        least = of([np.iinfo(dtype).max if rank == 0 else 1], (1,))
        same(comm.allreduce(least).wait(), of([size - 2 if size > 1 else np.iinfo(dtype).max], (1,)))
        raises(ValueError, ["no average of " + dtype], comm.allreduce, mine, "average")
        raises(ValueError, [dtype, "factor"], comm.allreduce, mine, postscale=0.5)
    else:
        raises(ValueError, [f"no sum of {dtype}", "can be sent but not reduced"], comm.allreduce, mine)


def with_numpy():
    for dtype in "bool", "int16", "uint16", "uint32", "uint64", "complex64", "complex128":
        make = lambda values, shape, dtype=dtype: np.array(values, dtype).reshape(shape)
        travels(make, dtype)
        sums(make, dtype)
    raises(ValueError, ["longdouble" if np.dtype("g").name == "longdouble" else "float128", "does not travel"], comm.broadcast, np.zeros(2, "g"), 0)
    raises(ValueError, ["output of float32", "input of complex64"], comm.broadcast, np.zeros(2, "F"), 0, out=np.zeros((2, 2), "f"))


def with_torch():
    try:
        import torch
    except ImportError:
        return
    import ringpull.horovod.torch as hvd

    names = ["bool", "int16", "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]
    for dtype in names:
        if not hasattr(torch, dtype):
            continue
        kind = getattr(torch, dtype)
        make = lambda values, shape, kind=kind: torch.tensor(values).to(kind).reshape(shape)
        if "float8" in dtype or "uint" in dtype:
            # Comparisons do not exist for these types everywhere.
            mine = make([rank + 1, 2], (2,))
            found = comm.broadcast(mine, 0).wait()
            assert found.dtype == kind and found.float().tolist() == [1, 2]
            if dtype in ("uint32", "uint64"):
                # The average is rounded towards zero.
                hvd.init()
                assert hvd.allreduce(mine).tolist() == [(size + 1) // 2, 2] and hvd.allreduce(mine[1]).tolist() == 2
        else:
            travels(make, dtype)
            sums(make, dtype)
    conjugate = torch.tensor([1 + 2j]).conj()
    same(comm.allreduce(conjugate).wait(), torch.tensor([(1 - 2j) * size]))
    hvd.init()
    mine = torch.ones(3, dtype=torch.cfloat) * (rank + 1)
    hvd.broadcast_parameters({"x": mine}, 0)
    same(mine, torch.ones(3, dtype=torch.cfloat))
    same(hvd.allreduce(mine * (rank + 1), op=hvd.Sum), mine * (size * (size + 1) // 2))
    same(hvd.allreduce(mine * 2), mine * 2)
    same(hvd.allgather(mine[:1]), torch.ones(size, dtype=torch.cfloat))
    raises(ValueError, ["of w", "no max of complex64"], hvd.allreduce, mine, op=hvd.Max, name="w")
    raises(ValueError, ["of flags", "bool"], hvd.allreduce, torch.tensor([True]), name="flags")
    with_optimizers(torch, hvd)
    quantised = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)
    try:
        hvd.broadcast_parameters({"q": quantised}, 0)
    except Exception as error:
        assert "parameter 'q'" in str(error) and "quint8" in str(error), error


def with_optimizers(torch, hvd):
    """Checks, for both wrappers, that complex weights are trained as by one process with the average gradient."""
    import ringpull.torch

    def trained(scale, wrap):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(4, dtype=torch.cfloat))
        optimizer = wrap(torch.optim.SGD([weight], lr=0.1), weight)
        for _ in range(3):
            optimizer.zero_grad()
            ((weight * scale).abs() ** 2).sum().backward()
            optimizer.step()
        return weight.detach()

    wanted = trained((sum((one + 1) ** 2 for one in range(size)) / size) ** 0.5, lambda optimizer, _: optimizer)
    for wrap in (
        lambda optimizer, _: ringpull.torch.DistributedOptimizer(optimizer, "dist_sync_mpi"),
        lambda optimizer, weight: hvd.DistributedOptimizer(optimizer, named_parameters=[("w", weight)]),
    ):
        found = trained(rank + 1, wrap)
        assert torch.allclose(found, wanted), (found, wanted)


def with_types_of_ml_dtypes():
    """Those that NumPy and JAX have by it, for which the buffer protocol has no format."""
    try:
        import ml_dtypes
    except ImportError:
        return
    kinds = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
    for name in kinds:
        kind = np.dtype(getattr(ml_dtypes, name))
        make = lambda values, shape, kind=kind: np.array(values, kind).reshape(shape)
        travels(make, name)
        if name != "bfloat16":
            sums(make, name)
    raises(ValueError, ["int4", "does not travel"], comm.broadcast, np.zeros(2, ml_dtypes.int4), 0)
    bfloat = np.dtype(ml_dtypes.bfloat16)
    libraries = [np]
    try:
        import jax.numpy

        libraries.append(jax.numpy)
        raises(ValueError, ["a JAX array as an output"], comm.broadcast, np.zeros(2, bfloat), 0, out=jax.numpy.zeros(2, bfloat))
    except ImportError:
        pass
    total = size * (size + 1) // 2
    store = ringpull.create("dist_sync_mpi")
    for library in libraries:
        mine = library.full((2, 3), rank + 1, bfloat)
        for found in comm.allreduce(mine).wait(), comm.grouped_allreduce([mine]).wait()[0]:
            same(np.asarray(found), np.full((2, 3), total, bfloat))
        key, out = library.__name__, np.zeros((2, 3), bfloat)
        store.init(key, library.zeros((2, 3), bfloat))
        store.push(key, mine)
        store.pull(key, out)
        same(out, np.full((2, 3), total, bfloat))
    out.flags.writeable = False
    raises(ValueError, ["read-only"], store.pull, "numpy", out)
    raises(ValueError, ["no values of float8_e5m2"], store.init, "e", np.zeros(2, ml_dtypes.float8_e5m2))


def in_a_store():
    for kind in "local", "dist_sync_mpi":
        store = ringpull.create(kind)
        workers = store.num_workers
        store.init("z", np.zeros(2, "F"))
        gradient = np.array([1 + 2j, rank], "F")
        store.pushpull("z", gradient)
        other = sum(range(size)) if workers > 1 else rank
        same(gradient, np.array([(1 + 2j) * workers, other], "F"))
        store.set_optimizer(ringpull.SGD(learning_rate=1.0))
        store.push("z", np.array([1j, 0], "F"))
        out = np.empty(2, "F")
        store.pull("z", out)
        same(out, np.array([(1 + 2j) * workers - 1j * workers, other], "F"))
        for dtype in "uint16", "bool", "int16":
            raises(ValueError, ["key \"odd\"", "no values of " + dtype, "communicator"], store.init, "odd", np.zeros(2, dtype))
        raises(ValueError, ["key \"z\""], store.push, "z", np.zeros(2, "uint32"))


with_numpy()
with_torch()
with_types_of_ml_dtypes()
in_a_store()
print(f"rank {rank} is done")
