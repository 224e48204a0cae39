"""Tests the contract of the backend `ringpull` of torch.distributed, on any number of ranks."""

import gc
import os
import tempfile
import threading
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ringpull
import ringpull.torch
import ringpull.torch_distributed

dist.init_process_group("ringpull")
rank, size = dist.get_rank(), dist.get_world_size()
others = [other for other in range(size) if other != rank]

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
NEW = int(torch.__version__.split(".")[0]) >= 2
EVERY = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]


def value(dtype, of=rank, shape=(3, 2)):
    return torch.full(shape, of + 1).to(dtype)


def raises(kind, call, *arguments, **keywords):
    try:
        found = call(*arguments, **keywords)
        if hasattr(found, "wait"):
            found.wait()
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} raised nothing")


def the_group_is_the_job():
    assert dist.get_backend() == "ringpull" and 0 <= rank < size
    comm = ringpull.communicator()
    assert (comm.rank, comm.size) == (rank, size)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"of {rank}", str(rank))
    assert [int(store.get(f"of {other}")) for other in range(size)] == list(range(size))


def reductions_of_every_type():
    for dtype in FLOATS + INTEGERS + [torch.complex64]:
        total = value(dtype)
        dist.all_reduce(total)
        assert torch.equal(total, torch.full((3, 2), size * (size + 1) // 2).to(dtype)), (dtype, total)
    for dtype in FLOATS + INTEGERS:
        for op, expected in (dist.ReduceOp.MIN, 1), (dist.ReduceOp.MAX, size):
            found = value(dtype)
            dist.all_reduce(found, op)
            assert torch.equal(found, torch.full((3, 2), expected).to(dtype)), (dtype, op, found)
        two = torch.full((2,), 2).to(dtype)
        dist.all_reduce(two, dist.ReduceOp.PRODUCT)
        assert torch.equal(two, torch.full((2,), 2**size).to(dtype))
    for dtype in FLOATS:
        mean = value(dtype)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        assert torch.equal(mean, torch.full((3, 2), (size + 1) / 2).to(dtype)), (dtype, mean)
    for dtype in INTEGERS:
        bits = {
            dist.ReduceOp.BAND: 1 if size == 1 else 0,
            dist.ReduceOp.BOR: (1 << size) - 1,
            dist.ReduceOp.BXOR: (1 << size) - 1,
        }
        for op, expected in bits.items():
            found = torch.full((2, 2), 1 << rank).to(dtype)
            dist.all_reduce(found, op)
            assert torch.equal(found, torch.full((2, 2), expected).to(dtype)), (dtype, op, found)
    truth = {dist.ReduceOp.SUM: True, dist.ReduceOp.MIN: size == 1, dist.ReduceOp.BXOR: True}
    for op, expected in truth.items():
        found = torch.tensor([rank == 0, False, True])
        dist.all_reduce(found, op)
        always = {dist.ReduceOp.BXOR: size % 2 == 1}.get(op, True)
        assert found.tolist() == [expected, False, always], (op, found)
    if hasattr(dist.distributed_c10d, "_make_nccl_premul_sum"):
        scaled = value(torch.float32)
        dist.all_reduce(scaled, dist.distributed_c10d._make_nccl_premul_sum(0.5))
        assert torch.equal(scaled, torch.full((3, 2), size * (size + 1) / 4))
    assert "torch.float32 by BAND" in raises(NotImplementedError, dist.all_reduce, torch.ones(2), dist.ReduceOp.BAND)
    assert "torch.bool by AVG" in raises(NotImplementedError, dist.all_reduce, torch.ones(2).bool(), dist.ReduceOp.AVG)


def tensors_of_every_type_and_layout_travel():
    for dtype in EVERY:
        mine = value(dtype)
        gathered = [torch.zeros_like(mine) for _ in range(size)]
        dist.all_gather(gathered, mine)
        assert all(torch.equal(found, value(dtype, other)) for other, found in enumerate(gathered)), (dtype, gathered)
        mine = value(dtype)
        dist.broadcast(mine, size - 1)
        assert torch.equal(mine, value(dtype, size - 1)), dtype
        if others:
            sent = dist.isend(value(dtype), (rank + 1) % size, tag=7)
            got = torch.zeros(3, 2).to(dtype)
            assert dist.recv(got, (rank - 1) % size, tag=7) == (rank - 1) % size
            sent.wait()
            assert torch.equal(got, value(dtype, (rank - 1) % size)), (dtype, got)
            sent = [dist.isend(value(dtype), other, tag=8) for other in range(size) if other != rank]
            sources = []
            for _ in range(size - 1):
                got = torch.zeros(3, 2).to(dtype)
                sources.append(dist.recv(got, tag=8))
                assert torch.equal(got, value(dtype, sources[-1])), (dtype, got)
            assert sorted([*sources, rank]) == list(range(size))
            for work in sent:
                work.wait()
    # Columns, which are not contiguous, scalars, and empty tensors.
    table = torch.zeros(4, 3)
    table[:, 1] = rank + 1.0
    dist.all_reduce(table[:, 1])
    assert torch.equal(table, torch.tensor([[0.0, size * (size + 1) / 2, 0.0]]).expand(4, 3))
    parts = torch.zeros(size, 2, 3).transpose(1, 2)
    dist.all_gather(list(parts), torch.full((2, 3), rank + 1.0).t())
    assert torch.equal(parts, torch.arange(1.0, size + 1)[:, None, None].expand(size, 3, 2))
    got = torch.zeros(2, 3).t()
    dist.broadcast(got if rank else torch.ones(3, 2), 0)
    assert not rank or torch.equal(got, torch.ones(3, 2))
    scalar = torch.tensor(rank + 1.0, requires_grad=True)
    dist.all_reduce(scalar)
    assert scalar.item() == size * (size + 1) / 2
    for empty in torch.zeros(0), torch.zeros(0, dtype=torch.bool), torch.zeros(2, 0, 3):
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        dist.all_gather([torch.empty_like(empty) for _ in range(size)], empty)
    sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,))
    dist.all_reduce(sparse)
    assert torch.equal(sparse.to_dense(), torch.tensor([1.0] * size + [2.0 * size]))


def collectives_of_parts():
    rows = torch.arange(2.0 * size).reshape(size, 2)
    part = torch.zeros(2)
    dist.reduce_scatter(part, [row.clone() for row in rows])
    assert torch.equal(part, size * rows[rank])
    part = torch.zeros(2, dtype=torch.int16)
    dist.reduce_scatter_tensor(part, rows.flatten().short(), op=dist.ReduceOp.MAX)
    assert torch.equal(part, rows[rank].short())
    # Parts of unequal length, and an output that is a part of the input.
    parts = [torch.ones(other + 1) for other in range(size)]
    mine = torch.zeros(rank + 1)
    dist.reduce_scatter(mine, parts)
    assert torch.equal(mine, torch.full((rank + 1,), float(size)))
    outputs = [torch.zeros(other + 1) for other in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), rank + 1.0))
    assert all(torch.equal(found, torch.full((other + 1,), other + 1.0)) for other, found in enumerate(outputs))
    whole = torch.zeros(size, 3)
    whole[rank] = rank
    dist.all_gather_into_tensor(whole, whole[rank])
    assert torch.equal(whole, torch.arange(float(size))[:, None].expand(size, 3))
    for root in range(size):
        lists = [torch.zeros(2) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((2,), float(rank)), lists, root)
        assert lists is None or [found[0].item() for found in lists] == list(range(size))
        got = torch.zeros(2)
        dist.scatter(got, [torch.full((2,), float(other)) for other in range(size)] if rank == root else None, root)
        assert torch.equal(got, torch.full((2,), float(rank)))
        mine = torch.full((2,), rank + 1.0)
        dist.reduce(mine, root)
        assert torch.equal(mine, torch.full((2,), size * (size + 1) / 2 if rank == root else rank + 1.0))
    given, taken = [(rank + other) % 3 for other in range(size)], [(other + rank) % 3 for other in range(size)]
    out = torch.zeros(sum(taken), 2, dtype=torch.int64)
    dist.all_to_all_single(out, torch.full((sum(given), 2), rank), taken, given)
    assert torch.equal(out, torch.repeat_interleave(torch.arange(size), torch.tensor(taken))[:, None].expand(-1, 2))
    outs = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(outs, [torch.full((2,), 10.0 * rank + other) for other in range(size)])
    assert [found[0].item() for found in outs] == [10.0 * other + rank for other in range(size)]
    assert (
        "3 rows" in raises(ValueError, dist.all_to_all_single, torch.zeros(3), torch.zeros(3), [1], [3])
        if size > 1
        else True
    )


def operations_go_on_by_themselves():
    tensors = [torch.full((1000,), float(step)) for step in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for step, (work, tensor) in enumerate(zip(works, tensors)):
        assert work.wait() and work.is_completed() and work.is_success()
        assert torch.equal(tensor, torch.full((1000,), float(step * size)))
    tensor = torch.ones(5)
    work = dist.all_reduce(tensor, async_op=True)
    (found,) = work.get_future().then(lambda future: future.value()).wait()
    assert torch.equal(found, torch.full((5,), float(size))) and torch.equal(work.result()[0], tensor)
    work = dist.barrier(async_op=True)
    assert work.wait(timedelta(seconds=20))
    group = dist.group.WORLD
    several = [torch.full((3,), float(at)) for at in range(3)]
    dist.all_reduce_coalesced(several)
    assert all(torch.equal(found, torch.full((3,), float(at * size))) for at, found in enumerate(several))
    if others:
        to, source = (rank + 1) % size, (rank - 1) % size
        got = torch.zeros(4)
        pair = [dist.P2POp(dist.isend, torch.full((4,), float(rank)), to), dist.P2POp(dist.irecv, got, source)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        assert torch.equal(got, torch.full((4,), float(source)))
    if NEW:
        several = [torch.ones(3), torch.ones(2)]
        with dist.distributed_c10d._coalescing_manager(group, torch.device("cpu"), async_ops=True) as together:
            for tensor in several:
                dist.broadcast(tensor, 0)
        together.wait()


def a_callback_may_wait_for_a_future():
    def again(done):
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()

    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(5)]
    for future in [work.get_future().then(again) for work in works]:
        (found,) = future.wait()
        assert torch.equal(found, torch.full((3,), float(size**2)))


def threads_may_wait_for_one_operation():
    tensor = torch.ones(2, 3).t()
    work = dist.all_reduce(tensor, async_op=True)
    waits = [work.wait, work.get_future().wait, work.result, work.exception]
    waiting = [threading.Thread(target=wait) for wait in waits]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert work.wait() and torch.equal(tensor, torch.full((3, 2), float(size)))


def an_error_is_that_of_its_operation_alone():
    assert "was expanded" in raises(ValueError, dist.all_reduce, torch.zeros(1).expand(4))
    with torch.inference_mode():
        columns = torch.ones(2, 3).t()
    for _ in range(2):
        work = dist.all_reduce(columns, async_op=True)
        assert "nference" in raises(RuntimeError, work.wait) and "nference" in raises(RuntimeError, work.wait)
        assert "nference" in raises(RuntimeError, dist.all_reduce(columns, async_op=True).get_future().wait)
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    group = dist.group.WORLD
    whole = [torch.ones(2, dtype=torch.complex64) for _ in range(size)]
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp.MAX
    found = torch.zeros(2, dtype=torch.complex64)
    assert "torch.complex64 by MAX" in raises(NotImplementedError, group.reduce_scatter, [found], [whole], options)
    mixed = [torch.ones(2, dtype=torch.float64), *[torch.ones(2)] * size][:size]
    assert "torch.float64 and torch.float32" in raises(ValueError, group.reduce_scatter, [torch.zeros(2)], [mixed])
    assert "torch.float64 and torch.float32" in raises(ValueError, group.alltoall, [torch.zeros(2)] * size, mixed)
    dist.reduce_scatter(found, [one * 1j for one in whole])
    assert torch.equal(found, torch.full((2,), size * 1j))
    conjugate = torch.zeros(2, dtype=torch.complex64).conj()
    group.allgather([[conjugate, *whole[1:]]], [torch.full((2,), 1 + 1j)]).wait()
    assert torch.equal(conjugate, torch.full((2,), 1 + 1j))


def results_are_held_by_who_has_a_use_for_them():
    first = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    unwaited = dist.all_reduce(torch.ones(2), async_op=True)
    gc.disable()
    tensors = []

    def sum_of(count):
        tensors.append(torch.ones(count))
        return dist.all_reduce(tensors[-1], async_op=True)

    for count in range(100):
        sum_of(count).wait()
        sum_of(count).get_future().wait()
    # Nobody waits for these sums, and on rank 0 none is done before all are called.
    if rank != 0:
        time.sleep(0.5)
    for count in range(300):
        sum_of(count)
    held = [weakref.ref(tensor) for tensor in tensors]
    tensors.clear()
    # Later calls release the works that are done.
    for _ in range(200):
        dist.barrier()
        dist.all_reduce(torch.ones(1), async_op=True)
    end = time.monotonic() + 20
    while any(tensor() is not None for tensor in held) and time.monotonic() < end:
        # The threads of futures release them a little later.
        time.sleep(0.01)
    gc.enable()
    left = [at for at, tensor in enumerate(held) if tensor() is not None]
    assert not left, left
    assert first.wait()[0].tolist() == unwaited.result()[0].tolist() == [size, size]


def groups_work_beside_each_other():
    evens, odds = dist.new_group(list(range(0, size, 2))), dist.new_group(list(range(1, size, 2)) or [0])
    own = evens if rank % 2 == 0 else odds
    for step in range(3 if rank % 2 else 9):
        mine = torch.full((4,), step + 1.0)
        dist.all_reduce(mine, group=own)
        assert torch.equal(mine, torch.full((4,), (step + 1.0) * dist.get_world_size(own)))
    whole = dist.new_group()
    total = torch.ones(1)
    works = [dist.all_reduce(total, group=whole, async_op=True), dist.all_reduce(torch.ones(1), async_op=True)]
    for work in reversed(works):
        work.wait()
    assert total.item() == size
    if rank % 2 == 0:
        dist.destroy_process_group(evens)
    whole.shutdown()
    assert "was shut down" in raises(ValueError, whole.barrier)


def objects_travel():
    found = [None] * size
    dist.all_gather_object(found, {"of": rank, "words": "x" * (100 * rank)})
    assert [one["of"] for one in found] == list(range(size))
    said = [{"from": rank}, rank]
    dist.broadcast_object_list(said, size - 1)
    assert said == [{"from": size - 1}, size - 1]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered)
    assert gathered is None or gathered == list(range(size))
    mine = [None]
    dist.scatter_object_list(mine, list(range(size)) if rank == 0 else None)
    assert mine == [rank]


def a_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 2))


def trained(model, batch, steps=4, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return model


def data_parallel_training_is_that_of_the_whole_batch():
    torch.manual_seed(1)
    batch = torch.randn(4 * size, 6)
    mine = batch[4 * rank : 4 * rank + 4]
    expected = list(trained(a_model(), batch).parameters())
    for words in (
        {},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
        {"find_unused_parameters": True},
        {"static_graph": True},
    ):
        # Each rank begins with other weights, and DistributedDataParallel starts with rank 0's.
        found = trained(DistributedDataParallel(a_model(rank if rank else 0), **words), mine)
        assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(found.parameters(), expected)), words
    # Some ranks have more batches than others. Then the reducer in C++ waits for works whose Python part nobody else holds.
    uneven = DistributedDataParallel(a_model())
    with uneven.join(throw_on_early_termination=False):
        trained(uneven, mine, steps=2 + rank)
    # These hooks have callbacks that wait for futures.
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks

    compressed = DistributedDataParallel(a_model())
    options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2, "min_compression_rate": 1}
    state = powerSGD_hook.PowerSGDState(None, **options)
    compressed.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    models = [compressed]
    if NEW:
        # The hook of PyTorch 1.13 needs a GPU.
        models.append(DistributedDataParallel(a_model()))
        models[-1].register_comm_hook(dist.group.WORLD, quantization_hooks.quantization_pertensor_hook)
    for model in models:
        trained(model, mine)
        for parameter in model.parameters():
            ranks = [torch.zeros_like(parameter) for _ in range(size)]
            dist.all_gather(ranks, parameter.detach())
            assert all(torch.allclose(one, ranks[0], atol=1e-6) for one in ranks)
    half = DistributedDataParallel(a_model().to(torch.bfloat16))
    trained(half, mine.to(torch.bfloat16))
    hashes = [torch.zeros(1, dtype=torch.float64) for _ in range(size)]
    dist.all_gather(hashes, sum(parameter.double().sum() for parameter in half.parameters()).detach().reshape(1))
    assert all(torch.equal(one, hashes[0]) for one in hashes)


def is_shared(tensor):
    """Returns True if the tensor is in memory that the ranks of a host share."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            if start <= tensor.data_ptr() < end:
                return "memfd:ringpull" in line
    return False


def buckets_are_in_memory_that_ranks_of_a_host_share():
    for dtype, group in ((torch.float32, None), (torch.bfloat16, None), (torch.float32, dist.new_group(backend="gloo"))):
        layer = nn.Linear(400, 400).to(dtype)
        model = DistributedDataParallel(layer, process_group=group, gradient_as_bucket_view=True)
        # The second step begins with new buckets.
        for step in range(3):
            model(torch.full((1, 400), float(rank + step), dtype=dtype)).sum().backward()
            gradients = [parameter.grad for parameter in layer.parameters()]
            assert gradients[0].eq((size - 1) / 2 + step).all() and gradients[1].eq(1).all()
            assert [is_shared(gradient) for gradient in gradients] == [group is None] * 2, (dtype, group, step)
            model.zero_grad(set_to_none=False)
    # A small bucket is not put into shared memory.
    small = nn.Linear(4, 4)
    model = DistributedDataParallel(small, gradient_as_bucket_view=True)
    model(torch.ones(1, 4)).sum().backward()
    assert not is_shared(small.weight.grad)


def gradients_are_combined_by_a_module_or_by_an_optimizer():
    for is_after in True, False:
        layer = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        if is_after:
            optimizer = ringpull.torch.DistributedOptimizer(optimizer, "dist_sync_mpi", f"beside{is_after}")
        model = DistributedDataParallel(layer)
        if not is_after:
            optimizer = ringpull.torch.DistributedOptimizer(optimizer, "dist_sync_mpi", f"beside{is_after}")
        error = raises(ringpull.ArgumentError, lambda: model(torch.ones(1, 4)).sum().backward())
        assert "is combined over ranks by DistributedDataParallel too" in str(error)
        del model
        layer.zero_grad()
        layer(torch.full((1, 4), float(rank))).sum().backward()
        assert (layer.weight.grad == (size - 1) / 2).all()
        optimizer.close()


def a_forked_child_has_the_gradients_of_the_time_of_the_fork():
    layer = nn.Linear(400, 400)
    model = DistributedDataParallel(layer, gradient_as_bucket_view=True)
    model(torch.ones(1, 400)).sum().backward()
    gradient = layer.weight.grad.numpy()
    assert is_shared(layer.weight.grad)
    waits, ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(waits, 1)
        is_kept = (gradient == 1).all()
        gradient[:] = 3
        os._exit(not is_kept)
    gradient[:] = 2
    os.write(ends, b".")
    assert os.waitpid(child, 0)[1] == 0, "the child has other gradients"
    assert (gradient == 2).all(), "the child writes the parent's gradients"


def divided_states_and_parameters():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(1)
    batch = torch.randn(4 * size, 6)
    mine = batch[4 * rank : 4 * rank + 4]
    plain = a_model()
    expected = list(trained(plain, batch, optimizer=torch.optim.Adam(plain.parameters())).parameters())
    model = DistributedDataParallel(a_model())
    divided = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    found = trained(model, mine, optimizer=divided).parameters()
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, expected))
    if not hasattr(dist, "fsdp") or not hasattr(dist.fsdp, "fully_shard"):
        return
    model = a_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            dist.fsdp.fully_shard(layer, mesh=dist.init_device_mesh("cpu", (size,)))
    dist.fsdp.fully_shard(model, mesh=dist.init_device_mesh("cpu", (size,)))
    trained(model, mine, optimizer=torch.optim.Adam(model.parameters()))
    found = [parameter.full_tensor() for parameter in model.parameters()]
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, expected))
    loaded = {name: parameter.full_tensor() for name, parameter in model.state_dict().items()}
    assert loaded.keys() == plain.state_dict().keys()


def a_group_is_left_and_made_again():
    dist.barrier()
    dist.destroy_process_group()
    # Here the program asks for a store of PyTorch.
    meet = os.path.join(tempfile.gettempdir(), f"meet-{os.environ.get('OMPI_COMM_WORLD_JOBID', os.getppid())}")
    dist.init_process_group("ringpull", init_method=f"file://{meet}", rank=rank, world_size=size)
    total = torch.ones(2)
    dist.all_reduce(total)
    assert total.tolist() == [size, size]
    dist.barrier()


for check in (
    the_group_is_the_job,
    reductions_of_every_type,
    tensors_of_every_type_and_layout_travel,
    collectives_of_parts,
    operations_go_on_by_themselves,
    a_callback_may_wait_for_a_future,
    threads_may_wait_for_one_operation,
    an_error_is_that_of_its_operation_alone,
    results_are_held_by_who_has_a_use_for_them,
    groups_work_beside_each_other,
    objects_travel,
    data_parallel_training_is_that_of_the_whole_batch,
    buckets_are_in_memory_that_ranks_of_a_host_share,
    gradients_are_combined_by_a_module_or_by_an_optimizer,
    a_forked_child_has_the_gradients_of_the_time_of_the_fork,
    divided_states_and_parameters,
    a_group_is_left_and_made_again,
):
    check()
print(f"rank {rank} is done")
