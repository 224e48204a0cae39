"""Tests the contract of a communicator, on any number of ranks. Every rank checks it."""

import sys

import numpy as np

import ringpull

comm = ringpull.communicator()
rank, size = comm.rank, comm.size
assert comm.ranks == list(range(size)) and f"{rank} of {size}" in repr(comm)
assert (comm.local_rank, comm.local_size, comm.cross_rank, comm.cross_size) == (rank, size, 0, 1)
ones = np.ones((3, 2), np.float32)

# Every reduction is tried with a new array as its result, and in place.
for op, expected in {"sum": size * (size + 1) / 2, "average": (size + 1) / 2, "min": 1, "max": size}.items():
    mine = ones * (rank + 1)
    called = comm.allreduce(mine, op)
    found = called.wait()
    assert (found == np.float32(expected)).all() and found.shape == (3, 2) and found.dtype == np.float32, (op, found)
    assert called.done() and called.wait() is found and (mine == rank + 1).all()
    assert comm.allreduce(mine, op, out=mine).wait() is mine and (mine == np.float32(expected)).all()
assert (comm.allreduce(np.full(2, 2, np.int64), "product").wait() == 2**size).all()
assert (comm.allreduce(ones, prescale=2, postscale=0.5).wait() == size).all()

# Calls with names are made in any order, and as a group.
names = [f"key {at}" for at in range(5)]
by_name = {name: comm.allreduce(np.full(at + 1, at), name=name) for at, name in sorted(enumerate(names), key=lambda pair: (pair[0] + rank) % 5)}
assert all((by_name[name].wait() == at * size).all() for at, name in enumerate(names))
found = comm.grouped_allreduce([ones, np.arange(4)], name="group").wait()
assert (found[0] == size).all() and (found[1] == size * np.arange(4)).all()

# Rows are divided over the ranks (reduce_scatter), and concatenated (allgather).
rows = np.arange(2 * size + 1, dtype=np.int32)[:, None] * np.ones((1, 3), np.int32)
part = comm.reduce_scatter(rows).wait()
start = 2 * rank + min(rank, 1)
assert (part == size * rows[start : start + 2 + (rank == 0)]).all() and part.dtype == np.int32, part
lengths = [2 * size + 1] + [0] * (size - 1)
assert comm.reduce_scatter(rows, lengths=lengths).wait().shape == (lengths[rank], 3)
own = np.full((rank, 2), rank, np.float64)
joined = np.concatenate([np.full((other, 2), other, np.float64) for other in range(size)])
assert (comm.allgather(own).wait() == joined).all()
out = np.empty_like(joined)
assert comm.allgather(own, lengths=list(range(size)), out=out).wait() is out and (out == joined).all()
assert (comm.allgather(np.float32(rank)).wait() == np.arange(size)).all()
assert (comm.allgather(np.array([rank % 2 == 0])).wait() == [other % 2 == 0 for other in range(size)]).all()

# Each rank gets other elements (alltoall).
found, taken = comm.alltoall(np.arange(size) + 100 * rank).wait()
assert (found == 100 * np.arange(size) + rank).all() and taken == [1] * size
splits = [(rank + to) % 3 for to in range(size)]
blocks = np.concatenate([np.full(rows, 10 * rank + to) for to, rows in enumerate(splits)])
comes = [(other + rank) % 3 for other in range(size)]
arrived = np.concatenate([np.full(rows, 10 * other + rank) for other, rows in enumerate(comes)])
for known in (None, comes):
    found, taken = comm.alltoall(blocks, splits, received_splits=known).wait()
    assert (found == arrived).all() and taken == comes, (found, arrived, taken)

# From one rank to all (broadcast), and between two ranks (send and recv).
last = size - 1
assert (comm.broadcast(ones * rank, last).wait() == last).all()
mine = ones * rank
assert comm.broadcast(mine, 0, out=mine).wait() is mine and not mine.any()
sent = comm.send(np.full(7, rank), (rank + 1) % size, 3) if size > 1 else None
if sent is not None:
    got = np.zeros(7, int)
    assert comm.recv(got, (rank - 1) % size, 3).wait() is got and (got == (rank - 1) % size).all()
    assert sent.wait() is None
# Messages are received from any rank, and the receiver learns which one sent. Messages of one rank are received in their order.
if size > 1:
    turned = comm.split(list(reversed(range(size))))
    assert turned is not None
    for place, comm_of in enumerate((comm, turned)):
        if comm_of.rank == place:
            got, counts = np.zeros(3, int), [0] * size
            for _ in range(2 * (size - 1)):
                received = comm_of.recv(got, tag=5)
                assert received.wait() is got and received.done()
                assert (got == 10 * received.source() + counts[received.source()]).all(), (got, received.source())
                counts[received.source()] += 1
            assert sorted(counts) == [0] + [2] * (size - 1) and counts[place] == 0
        else:
            sends = [comm_of.send(np.full(3, 10 * comm_of.rank + at), place, 5) for at in range(2)]
            assert [send.wait() for send in sends] == [None, None]
    # While sums repeat, one rank sends a message before a sum, and the other rank receives the message before this sum.
    for step in range(40):
        got = np.zeros(1, int)
        sent = comm.send(np.full(1, step), 1, 6) if rank == 0 and step % 9 == 8 else None
        if rank == 1 and step % 9 == 8:
            assert comm.recv(got, tag=6).wait()[0] == step
        assert (comm.allreduce(ones * step, name="beside").wait() == size * step).all()
        assert sent is None or sent.wait() is None
comm.barrier()

# The same steps repeat, and so run without control messages.
for step in range(30):
    steps = [comm.allreduce(ones * step, name="sum"), comm.allgather(np.full((rank + step) % 3, rank), name="rows")]
    found, taken = comm.alltoall(np.full(size, step), name="blocks").wait()
    assert (comm.reduce_scatter(np.full(size, step), "max", name="part").wait() == step).all()
    assert (found == step).all() and (steps[0].wait() == size * step).all()
    assert (steps[1].wait() == np.repeat(np.arange(size), [(other + step) % 3 for other in range(size)])).all()

# Process sets work at the same time as each other and as the job.
evens, odds = list(range(0, size, 2)), list(range(1, size, 2))
sets = [comm.split(ranks) for ranks in (evens, odds) if ranks]
(own_set,) = [found for found in sets if found is not None]
assert own_set.ranks == (odds if rank % 2 else evens) and own_set.rank == rank // 2
for step in range(20):
    whole = comm.allreduce(ones * step, name="whole")
    for _ in range(1 + 2 * (rank % 2)):
        assert (own_set.allreduce(np.full(5, rank), "max").wait() == own_set.ranks[-1]).all()
        assert (own_set.allgather(np.array([rank])).wait() == own_set.ranks).all()
    assert (whole.wait() == step * size).all()
own_set.barrier()
# Only its ranks make this set.
again = comm.subset(own_set.ranks)
passed = again.barrier_async()
assert (
    again.ranks == own_set.ranks
    and (again.allgather(np.array([rank])).wait() == again.ranks).all()
    and passed.wait() is None
)

# Calls that do not fit together fail on every rank, and the job goes on.
if size > 1:
    for _ in range(2):
        for call in (
            lambda: comm.allreduce(np.ones(2 + (rank == 1)), name="unlike"),
            lambda: comm.allreduce(np.ones(2, np.float32 if rank else np.float64)),
            lambda: comm.broadcast(ones, rank),
            lambda: comm.allgather(ones) if rank else comm.alltoall(np.ones(size)),
        ):
            called = call()
            for _ in range(2):
                try:
                    called.wait()
                    raise AssertionError("it fits")
                except ringpull.DisagreementError as error:
                    assert "rank 0 has" in str(error) and "hint:" in str(error), error
        assert (comm.allreduce(ones).wait() == size).all()
    late = comm.allreduce(ones, name="late") if rank == 0 else None
    if late is not None:
        try:
            late.wait(timeout=0.2)
            raise AssertionError("nobody else has called it")
        except TimeoutError as error:
            assert "0.2 s" in str(error) and not isinstance(error, ringpull.KVStoreError) and not late.done()
    comm.barrier()
    assert ((late or comm.allreduce(ones, name="late")).wait() == size).all()
for wrong in (lambda: comm.allreduce(ones, "summ"), lambda: comm.broadcast(ones, size), lambda: comm.allreduce(ones, out=np.ones(1)), lambda: comm.allreduce([1])):
    try:
        wrong()
        raise AssertionError("nothing is wrong")
    except ringpull.ArgumentError as error:
        assert "hint:" in str(error), error

# Long arrays travel in pieces or through shared memory.
long = np.arange(300_000, dtype=np.float32) % 1000
assert (comm.allreduce(long).wait() == size * long).all()
assert (comm.reduce_scatter(long[: 299_990 // size * size]).wait() == size * long[rank * (299_990 // size) : (rank + 1) * (299_990 // size)]).all()
assert (comm.allgather(long + rank).wait().reshape(size, -1) == long + np.arange(size)[:, None]).all()
square = (np.arange(size * 100_000) // 100_000 + size * rank).astype(np.float32)
assert (comm.alltoall(square).wait()[0].reshape(size, -1) == (size * np.arange(size) + rank)[:, None]).all()

if "torch" in sys.argv:
    import torch

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64):
        tensor = torch.full((3, 2), rank + 1, dtype=dtype)
        found = comm.allreduce(tensor).wait()
        assert found.dtype == dtype and found.shape == (3, 2) and (found == size * (size + 1) // 2).all(), found
        assert comm.allgather(tensor).wait().shape == (3 * size, 2)
    weights = torch.ones(2, requires_grad=True)
    assert not comm.allreduce(weights).wait().requires_grad
    assert (comm.broadcast(torch.tensor([rank == 0, False]), 0).wait() == torch.tensor([True, False])).all()
print(f"rank {rank} of {size} is done")
