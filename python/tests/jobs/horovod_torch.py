"""Tests Horovod's promises for `horovod.torch`, from its documentation, on any number of ranks."""

import itertools
import json
import os
import tempfile
import warnings

import numpy
import torch
import torch.nn.functional as F
from torch import nn

import ringpull
import ringpull.horovod.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()

FLOATS = [torch.float32, torch.float64, torch.float16]
NUMBERS = [torch.int32, torch.int64, *FLOATS]
EVERY = [torch.uint8, torch.int8, torch.int16, *NUMBERS]
DIMS = [1, 2, 3]


def raises(kinds, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except kinds as error:
        return error
    raise AssertionError(f"{call} raised nothing")


def whole(dim, dtype, low=-50, high=50):
    torch.manual_seed(7)
    return torch.randint(low, high, (9,) * dim).to(dtype)


def the_job_is_as_the_launcher_says():
    assert hvd.is_initialized() and 0 <= rank < size and hvd.local_size() == size and hvd.local_rank() == rank
    assert hvd.cross_rank() == 0 and hvd.cross_size() == 1 and hvd.is_homogeneous()
    assert hvd.mpi_built() and hvd.mpi_enabled() and hvd.mpi_threads_supported()
    assert not (hvd.gloo_built() or hvd.gloo_enabled() or hvd.nccl_built() or hvd.cuda_built() or hvd.ccl_built())
    assert str(hvd.global_process_set) == f"ProcessSet(process_set_id=0, ranks={list(range(size))}, mpi_comm=None)"
    hvd.init()
    hvd.barrier()


def sums_and_averages_of_every_type():
    for dtype, dim in itertools.product(NUMBERS, DIMS):
        tensor = whole(dim, dtype)
        # Sums of small integers are exact in every type.
        assert torch.equal(hvd.allreduce(tensor, op=hvd.Sum), tensor * size), dtype
        assert torch.equal(hvd.allreduce(tensor, average=False), tensor * size)
        assert torch.equal(hvd.allreduce(tensor), tensor), dtype
        mine = tensor.clone()
        assert hvd.allreduce_(mine, op=hvd.Sum) is mine and torch.equal(mine, tensor * size)
        assert torch.equal(hvd.allreduce(tensor + rank, op=hvd.Min), tensor)
        assert torch.equal(hvd.allreduce(tensor + rank, op=hvd.Max), tensor + size - 1)
    two = torch.full((3,), 2.0)
    assert hvd.allreduce(two, op=hvd.Product).tolist() == [2.0**size] * 3
    assert hvd.allreduce(torch.tensor(3.0)).shape == ()
    # A view that is not contiguous is reduced in place.
    table = torch.zeros(4, 4)
    hvd.allreduce_(table.t()[1:3].add_(1), op=hvd.Sum)
    assert torch.equal(table, torch.tensor([[0, size, size, 0]] * 4).float())


def factors_before_and_after():
    for dtype, dim in itertools.product(NUMBERS, DIMS):
        tensor, wide = whole(dim, dtype), torch.float64 if not dtype.is_floating_point else torch.float32 if dtype == torch.float16 else dtype
        expected = (tensor.to(wide) * 0.7).to(dtype) * size
        got = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.7)
        tolerance = 0 if not dtype.is_floating_point else 2e-3 if dtype == torch.float16 else 1e-6
        assert torch.allclose(got.double(), expected.double(), tolerance), (dtype, got, expected)
        got = hvd.allreduce(tensor, op=hvd.Sum, postscale_factor=0.7)
        expected = ((tensor * size).to(wide) * 0.7).to(dtype)
        assert torch.allclose(got.double(), expected.double(), tolerance), (dtype, got, expected)


def quotients_are_rounded_towards_zero():
    minus = torch.tensor([-1, 1], dtype=torch.int32) * (rank == 0)
    if size > 1:
        assert hvd.allreduce(minus).tolist() == [0, 0], hvd.allreduce(minus)
        assert hvd.reducescatter(minus.repeat_interleave(size), op=hvd.Average).tolist() == [0, 0]
    assert hvd.allreduce(torch.tensor([-3]), op=hvd.Sum, prescale_factor=0.5).tolist() == [-size]


def factors_are_of_the_tensors_type():
    tensor = torch.arange(-50.0, 50.0)
    for dtype in FLOATS:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        expected = (tensor.to(dtype).to(wide) * torch.tensor(0.1915194503788923, dtype=torch.float64).to(wide)).to(dtype)
        assert torch.equal(hvd.allreduce(tensor.to(dtype), op=hvd.Max, prescale_factor=0.1915194503788923), expected), dtype


def several_at_once():
    handles = []
    for dtype, dim in itertools.product(NUMBERS, DIMS):
        tensor = whole(dim, dtype)
        handles.append((tensor * size, hvd.allreduce_async(tensor, op=hvd.Sum)))
    for expected, handle in handles:
        assert torch.equal(hvd.synchronize(handle), expected) and hvd.poll(handle)
    tensors = [whole(dim, torch.float32) + dim for dim in DIMS]
    for got, tensor in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), tensors):
        assert torch.equal(got, tensor * size)
    mine = [tensor.clone() for tensor in tensors]
    hvd.grouped_allreduce_(mine, op=hvd.Average)
    assert all(torch.equal(one, tensor) for one, tensor in zip(mine, tensors))
    # With names, ranks may call in any order.
    order = [0, 1, 2] if rank == 0 else [2, 0, 1]
    named = {at: hvd.allreduce_async(torch.full((2,), float(at)), name=f"free.{at}", op=hvd.Sum) for at in order}
    assert all(hvd.synchronize(named[at]).tolist() == [at * size] * 2 for at in range(3))


def parts_of_different_lengths_are_gathered():
    lengths = [(17 * r) % 5 + r % 2 for r in range(size)]
    for dtype, dim in itertools.product([*EVERY, torch.bool], DIMS):
        tensor = torch.full((lengths[rank], *(3,) * (dim - 1)), rank % 2).to(dtype)
        gathered = hvd.allgather(tensor)
        assert gathered.dtype == dtype and gathered.shape == (sum(lengths), *(3,) * (dim - 1)), (dtype, gathered.shape)
        parts = torch.split(gathered, lengths)
        assert all((part == torch.tensor(r % 2).to(dtype)).all() for r, part in enumerate(parts))
    one, two = hvd.grouped_allgather([torch.full((1, 2), rank), torch.full((rank,), rank)])
    assert one[:, 0].tolist() == list(range(size)) and two.tolist() == [r for r in range(size) for _ in range(r)]


def everybody_has_the_roots_value():
    for dtype, dim, root in itertools.product([*EVERY, torch.bool], DIMS, range(size)):
        tensor = (torch.ones((3,) * dim) * (rank % 2)).to(dtype)
        kept = tensor.clone()
        got = hvd.broadcast(tensor, root)
        assert (got == torch.tensor(root % 2).to(dtype)).all() and got.dtype == dtype and torch.equal(tensor, kept)
        hvd.broadcast_(tensor, root)
        assert torch.equal(tensor, got)


def rows_go_to_their_ranks():
    for dtype, dim in itertools.product(EVERY, DIMS):
        tensor = torch.arange(size).repeat_interleave(rank + 1).reshape(-1, *(1,) * (dim - 1)).expand(-1, *(2,) * (dim - 1)).to(dtype)
        collected, received = hvd.alltoall(tensor, torch.tensor([rank + 1] * size, dtype=torch.int32))
        assert (collected == torch.tensor(rank).to(dtype)).all() and collected.shape[0] == size * (size + 1) // 2
        assert received.tolist() == [r + 1 for r in range(size)] and received.dtype == torch.int32
        assert torch.equal(hvd.alltoall(tensor), collected)
    none, received = hvd.alltoall(torch.empty(0), torch.zeros(size, dtype=torch.int32))
    assert none.numel() == 0 and received.tolist() == [0] * size


def rows_go_back_to_where_they_came_from():
    # The splits are equal, and each rank has a different number of rows.
    tensor = torch.ones(size * (rank + 1), 2).requires_grad_()
    hvd.alltoall(tensor).sum().backward()
    assert torch.equal(tensor.grad, torch.ones_like(tensor))


def the_reduction_is_divided():
    for dtype, dim in itertools.product(NUMBERS, DIMS):
        torch.manual_seed(7)
        tensor = torch.randint(-9, 9, (size * 4,) * dim).to(dtype)
        own = tensor[rank * 4 : rank * 4 + 4]
        assert torch.equal(hvd.reducescatter(tensor, op=hvd.Sum), own * size) and torch.equal(hvd.reducescatter(tensor), own)
        for part in hvd.grouped_reducescatter([tensor, tensor], op=hvd.Sum):
            assert torch.equal(part, own * size)
    # The first ranks have one row more than the others.
    uneven = hvd.reducescatter(torch.arange(size + 1.0), op=hvd.Sum)
    assert uneven.tolist() == ([0.0, float(size)] if rank == 0 else [float(size * (rank + 1))])
    raises((RuntimeError, ValueError), hvd.reducescatter, torch.tensor(1.0))
    raises(RuntimeError, hvd.reducescatter, torch.ones(size), op=hvd.Adasum)


def gradient(call, tensor, seed):
    tensor = tensor.clone().requires_grad_()
    result = call(tensor)
    result.backward(seed(result))
    return tensor.grad


def operations_have_gradients():
    ones = torch.ones_like
    for dtype in FLOATS:
        tensor = torch.ones(size * 2, 3).to(dtype)
        assert (gradient(lambda t: hvd.allreduce(t, op=hvd.Sum), tensor, ones) == size).all()
        assert (gradient(hvd.allreduce, tensor, ones) == 1).all()
        assert (gradient(lambda t: hvd.reducescatter(t, op=hvd.Sum), tensor, ones) == size).all()
        assert (gradient(hvd.reducescatter, tensor, ones) == 1).all()
        assert (gradient(hvd.alltoall, tensor, ones) == 1).all()
        assert (gradient(lambda t: hvd.broadcast(t, size - 1), tensor, ones) == float(rank == size - 1)).all()
        lengths = [r + 1 for r in range(size)]
        seeds = torch.arange(size).repeat_interleave(torch.tensor(lengths)).to(dtype).reshape(-1, 1)
        assert (gradient(hvd.allgather, torch.ones(rank + 1, 1).to(dtype), lambda _: seeds) == rank).all()
        group = [torch.ones(2).to(dtype).requires_grad_() for _ in range(3)]
        for result in hvd.grouped_allreduce(group, op=hvd.Sum):
            result.backward(torch.ones_like(result))
        assert all((one.grad == size).all() for one in group)


def mistakes_are_errors_everywhere_and_the_job_goes_on():
    ours = (hvd.HorovodInternalError, RuntimeError)
    if size > 1:
        for call in (
            lambda: hvd.allreduce(torch.ones(3 + rank)),
            lambda: hvd.allreduce(torch.ones(3, dtype=torch.float32 if rank else torch.float64)),
            lambda: hvd.allgather(torch.ones(2, 3 + rank)),
            lambda: hvd.broadcast(torch.ones(3), rank),
            lambda: hvd.broadcast(torch.ones(3 + rank), 0),
        ):
            error = raises(ours, call)
            assert isinstance(error, hvd.HorovodInternalError) and isinstance(error, RuntimeError), error
    raises(ValueError, hvd.allreduce, torch.ones(1), average=True, op=hvd.Sum)
    raises(ValueError, hvd.alltoall, torch.ones(size + 1), [1] * size)
    handle = hvd.allreduce_async(torch.ones(1), name="twice")
    assert "twice" in str(raises(ValueError, hvd.allreduce_async, torch.ones(1), name="twice"))
    assert hvd.synchronize(handle).tolist() == [1.0]
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [size]


def process_sets_work_beside_each_other():
    if size == 1:
        return
    even, odd = hvd.add_process_set(range(0, size, 2)), hvd.add_process_set(hvd.ProcessSet(range(1, size, 2)))
    own = even if rank % 2 == 0 else odd
    other = odd if own is even else even
    assert own.included() and not other.included() and own.ranks[own.rank()] == rank and own.size() == len(own.ranks)
    assert hvd.get_process_sets() == {0: list(range(size)), 1: even.ranks, 2: odd.ranks}
    assert hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum, process_set=own).item() == sum(own.ranks)
    assert hvd.allgather(torch.tensor([rank]), process_set=own).tolist() == own.ranks
    assert hvd.broadcast(torch.tensor([rank]), own.ranks[-1], process_set=own).item() == own.ranks[-1]
    assert hvd.alltoall(torch.tensor([rank] * own.size()), process_set=own).tolist() == own.ranks
    assert hvd.reducescatter(torch.ones(own.size()), op=hvd.Sum, process_set=own).tolist() == [own.size()]
    assert hvd.broadcast_object({"a": rank}, own.ranks[0], process_set=own) == {"a": own.ranks[0]}
    raises((RuntimeError, ValueError), hvd.allreduce, torch.ones(1), process_set=other)
    raises(ValueError, hvd.broadcast, torch.ones(1), other.ranks[0], process_set=own)
    raises(ValueError, hvd.add_process_set, even.ranks)
    net = nn.Linear(1, 1)
    hvd.broadcast_parameters(net.state_dict(), own.ranks[0], process_set=own)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), process_set=even)
    before = net.weight.detach().clone()
    (net.weight * float(rank)).sum().backward()
    optimizer.step()
    step = (before - net.weight).item()
    assert abs(step - (sum(even.ranks) / even.size() if own is even else rank)) < 1e-6, step
    hvd.barrier(own)
    assert hvd.remove_process_set(odd) and hvd.remove_process_set(even) and not hvd.remove_process_set(even)
    assert not hvd.remove_process_set(hvd.global_process_set)
    raises(ValueError, hvd.allreduce, torch.ones(1), process_set=own)
    # A new set takes a number that is free again.
    again = hvd.add_process_set([0])
    assert again.process_set_id == 1
    # Known sets may be given to init again, each once.
    same = hvd.ProcessSet([0])
    hvd.init(process_sets=[same])
    assert same.process_set_id == 1 and same.included() == (rank == 0)
    raises(ValueError, hvd.init, process_sets=[[0], [0]])
    raises(ValueError, hvd.init, process_sets=[range(size)])
    raises(ValueError, hvd.init, process_sets=[[size - 1]])
    hvd.remove_process_set(again)


def objects_travel():
    assert hvd.broadcast_object({"hello": [1, rank]}, 0) == {"hello": [1, 0]}
    assert hvd.allgather_object({"of": rank}) == [{"of": r} for r in range(size)]


def compression_keeps_the_type():
    for dtype in (torch.float32, torch.float64, torch.int32):
        small, context = hvd.Compression.fp16.compress(torch.ones(3, dtype=dtype))
        assert small.dtype == (torch.float16 if dtype.is_floating_point else dtype)
        assert hvd.Compression.fp16.decompress(small, context).dtype == dtype
    assert hvd.allreduce(torch.ones(4), compression=hvd.Compression.fp16).dtype == torch.float32


def sparse_tensors_are_gathered():
    at = torch.tensor([[0, rank + 1], [0, 1]])
    tensor = torch.sparse_coo_tensor(at, torch.tensor([1.0, 2.0]), (size + 1, 2))
    handle = hvd.sparse_allreduce_async(tensor, name="sparse", op=hvd.Sum)
    # Both ways of waiting work.
    summed = hvd.synchronize(handle).to_dense()
    assert torch.equal(handle().to_dense(), summed)
    expected = torch.zeros(size + 1, 2)
    expected[0, 0], expected[1:, 1] = size, 2.0
    assert torch.equal(summed, expected)


def model_of(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


inputs = torch.arange(4.0 * 8 * size).reshape(-1, 4) / (32 * size)
labels = torch.arange(8 * size) % 2


def loss_of(net, part=slice(None)):
    return F.cross_entropy(net(inputs[part]), labels[part])


def alone(steps, scale=1.0):
    net = model_of(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        (loss_of(net) * scale).backward()
        optimizer.step()
    return net


def near(net, other, tolerance=1e-5):
    for own, theirs in zip(net.parameters(), other.parameters()):
        assert torch.allclose(own, theirs, atol=tolerance), (own, theirs)


def training_ends_where_one_process_ends():
    part = slice(rank, None, size)
    for options, passes, tolerance in (
        ({}, 1, 1e-5),
        ({"compression": hvd.Compression.fp16}, 1, 1e-2),
        ({"gradient_predivide_factor": float(size)}, 1, 1e-5),
        ({"groups": 2}, 1, 1e-5),
        ({"num_groups": 1}, 1, 1e-5),
        ({"backward_passes_per_step": 2}, 2, 1e-5),
        ({"backward_passes_per_step": 2, "groups": 2}, 2, 1e-5),
        ({"op": hvd.Sum}, 1, 1e-5),
    ):
        net = model_of(rank)
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        if "groups" in options and passes == 1:
            options = {"groups": [list(net[0].parameters()), list(net[2].parameters())]}
        inner = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = hvd.DistributedOptimizer(inner, named_parameters=net.named_parameters(), **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        divisor = size if options.get("op") == hvd.Sum else passes
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(passes):
                (loss_of(net, part) / divisor).backward()
            optimizer.step()
            schedule.step()
        near(net, alone(3), tolerance)


def clipping_and_its_ways_of_synchronizing():
    net = nn.Linear(1, 1)
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    for skips in True, False:
        optimizer.zero_grad()
        F.mse_loss(net(torch.ones(1, 1) * (rank + 1)), torch.full((1, 1), 50.0)).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        clipped, before = net.weight.grad.clone(), net.weight.detach().clone()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            if skips:
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
        assert [str(one.message).startswith("optimizer.step() called without optimizer.skip_synchronize()") for one in heard] == [True] * (not skips)
        assert torch.allclose(before - net.weight, 0.1 * clipped)
    same = hvd.allgather(net.weight.detach())
    assert (same == same[0]).all()


def gradients_exist_before_they_are_computed_and_may_be_switched():
    one, two = nn.Conv2d(1, 3, 1), nn.Conv2d(3, 1, 1)
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(prefix)) for net, prefix in ((one, "one"), (two, "two"))]
    for trains in (True, False, True):
        for net, on in ((one, trains), (two, not trains)):
            net.requires_grad_(on)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)
        two(one(torch.rand(1, 1, 4, 4))).sum().backward()
        for net, on in ((one, trains), (two, not trains)):
            assert all((parameter.grad.abs().max() > 0) == on for parameter in net.parameters())
        optimizers[0 if trains else 1].step()


def names_are_checked():
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
    raises(ValueError, hvd.DistributedOptimizer, optimizer, named_parameters=[*one.named_parameters(), *two.named_parameters()])
    raises(ValueError, hvd.DistributedOptimizer, optimizer, named_parameters=one.named_parameters())
    raises(ValueError, hvd.DistributedOptimizer, optimizer, op=hvd.Sum, gradient_predivide_factor=2.0)
    # Horovod's own tests read these names.
    assert len(set(hvd.DistributedOptimizer(optimizer)._parameter_names.values())) == 4


def a_part_that_some_ranks_do_not_reach_is_trained_alike():
    net = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)])
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        net[1 if rank == 0 else 2](net[0](torch.ones(1, 2))).sum().backward()
        optimizer.step()
    for parameter in net.parameters():
        values = hvd.allgather(parameter.detach().unsqueeze(0))
        assert (values == values[0]).all()


def states_are_broadcast():
    for kind, options in (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}), (torch.optim.Adam, {"betas": (0.8, 0.9)}), (torch.optim.SGD, {}):
        net = model_of(rank)
        optimizer = kind(net.parameters(), lr=0.1 if rank == 0 else 0.7, **(options if rank == 0 else {}))
        if rank == 0:
            loss_of(net).backward()
            optimizer.step()
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
        hvd.broadcast_parameters(net.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        states = hvd.allgather_object(optimizer.state_dict())
        for own in states[1:]:
            assert str(own) == str(states[0]), (own, states[0])
        assert optimizer.param_groups[0]["lr"] == 0.1 and type(optimizer.param_groups[0]["lr"]) is float
        loss_of(net).backward()
        optimizer.step()
    raises(ValueError, hvd.broadcast_optimizer_state, torch.optim.LBFGS(net.parameters()), 0)


def sparse_gradients_are_trained():
    for as_dense in False, True:
        table = nn.Embedding(4 + size, 2, sparse=True)
        with torch.no_grad():
            table.weight.fill_(1.0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=as_dense)
        table(torch.tensor([0, rank + 1])).sum().backward()
        optimizer.step()
        expected = torch.ones(4 + size, 2)
        expected[0] -= 1
        expected[1 : size + 1] -= 1 / size
        assert torch.allclose(table.weight, expected), (as_dense, table.weight)


def an_optimizer_that_takes_sparse_gradients_alone_gets_them():
    for as_dense in False, True:
        table, other = nn.Embedding(4 + size, 2, sparse=True), nn.Embedding(3, 2, sparse=True)
        for module in table, other:
            hvd.broadcast_parameters(module.state_dict(), 0)
        parameters = [*table.parameters(), *other.parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(parameters, lr=0.1), sparse_as_dense=as_dense)
        before = table.weight.detach().clone()
        for _ in range(2):
            optimizer.zero_grad()
            # No rank reaches the other table.
            table(torch.tensor([0, rank + 1])).sum().backward()
            assert table.weight.grad.is_sparse and other.weight.grad.is_sparse
            optimizer.step()
        moved = (table.weight != before).all(1)
        assert moved.tolist() == [True] * (size + 1) + [False] * 3, moved


def batches_of_all_ranks_are_normalised_together():
    torch.manual_seed(3)
    for shape, kind in ((3, 4), nn.BatchNorm1d), ((2, 4, 3, 3), nn.BatchNorm2d):
        batches = [torch.randn(shape[0] + r, *shape[1:]) * 3 + 100 for r in range(size)]
        ours, theirs = hvd.SyncBatchNorm(4), kind(4)
        mine, every = batches[rank].clone().requires_grad_(), torch.cat(batches).requires_grad_()
        weights = torch.randn(4).reshape(1, 4, *(1,) * (len(shape) - 2))
        start = sum(len(batch) for batch in batches[:rank])
        out, expected = ours(mine), theirs(every)
        assert torch.allclose(out, expected[start : start + len(mine)], atol=1e-4)
        assert torch.allclose(ours.running_mean, theirs.running_mean) and torch.allclose(ours.running_var, theirs.running_var, rtol=1e-4)
        (out.square() * weights).sum().backward()
        (expected.square() * weights).sum().backward()
        assert torch.allclose(mine.grad, every.grad[start : start + len(mine)], atol=1e-4)
        assert torch.allclose(hvd.allreduce(ours.weight.grad, op=hvd.Sum), theirs.weight.grad, rtol=1e-3, atol=1e-3)
        ours.eval(), theirs.eval()
        assert torch.allclose(ours(mine), theirs(batches[rank]), atol=1e-4)


def adasum_of(values):
    if len(values) == 1:
        return values[0]
    a, b = adasum_of(values[: len(values) // 2]), adasum_of(values[len(values) // 2 :])
    return (1 - a @ b / (2 * (a @ a))) * a + (1 - a @ b / (2 * (b @ b))) * b


def adasum_adds_what_is_orthogonal():
    if size & (size - 1):
        raises(NotImplementedError, hvd.allreduce, torch.ones(1), op=hvd.Adasum)
        return
    generator = numpy.random.RandomState(1)
    values = [generator.normal(size=20) for _ in range(size)]
    got = hvd.allreduce(torch.from_numpy(values[rank]), op=hvd.Adasum)
    assert numpy.allclose(got.numpy(), adasum_of(values))
    assert torch.allclose(hvd.allreduce(torch.ones(3), op=hvd.Adasum), torch.ones(3))
    net = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.zero_()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), op=hvd.Adasum)
    (net.weight * torch.eye(2)[rank % 2]).sum().backward()
    optimizer.step()
    assert torch.allclose(net.weight, torch.tensor([[-1.0, -1.0 if size > 1 else 0.0]])), net.weight


def a_timeline_is_started_and_stopped():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        hvd.start_timeline(path)
        hvd.allreduce(torch.ones(3), name="in_the_timeline")
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(3), name="behind_it")
        with open(os.path.join(folder, f"trace.{rank}.json")) as file:
            text = file.read()
        assert json.loads(text)["traceEvents"] and "in_the_timeline" in text and "behind_it" not in text, text
        raises(ValueError, hvd.start_timeline, path + "2")


def all_ranks_stop_at_the_same_step():
    layer = nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), named_parameters=layer.named_parameters())
    for step in range(1000):
        layer(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if ringpull.should_stop(rank == size - 1 and step >= 10):
            break
    steps = hvd.allgather(torch.tensor([step]))
    assert 10 <= step <= 20 and (steps == step).all(), steps


def joined_ranks_add_zeros():
    for first in range(min(size, 2)):
        if rank != first:
            for value in hvd.allreduce(torch.full((3,), float(size))), hvd.allreduce(torch.full((3,), float(size)), name="joined"):
                assert value.tolist() == [size - 1.0] * 3
        last = hvd.join()
        assert 0 <= last < size and (size == 1 or last != first)


for check in [value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == "__main__"]:
    if check.__code__.co_argcount == 0:
        check()
hvd.shutdown()
assert not hvd.is_initialized()
raises(ValueError, hvd.rank)
print(f"rank {rank} is done", flush=True)
