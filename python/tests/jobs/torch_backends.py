"""Tests PyTorch's own machinery with a group that has our backend, on any number of ranks. A whole group in Python would not support it."""

import gc
import json
import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import ringpull.torch_distributed

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
OURS = ringpull.torch_distributed.Backend

dist.init_process_group("ringpull")
rank, size = dist.get_rank(), dist.get_world_size()
total = size * (size + 1) / 2


def a_sum(group=None):
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor, group=group)
    return tensor.tolist()


def each_device_has_the_backend_that_was_asked_for():
    for string, cpu, cuda in (
        ("ringpull", OURS, OURS),
        ("cpu:ringpull", OURS, None),
        ("cpu:ringpull,cuda:gloo", OURS, dist.ProcessGroupGloo),
        ("cpu:gloo,cuda:ringpull", dist.ProcessGroupGloo, OURS),
        ("cuda:gloo,cpu:ringpull", OURS, dist.ProcessGroupGloo),
    ):
        group = dist.new_group(backend=string)
        assert isinstance(group._get_backend(CPU), cpu), string
        assert CUDA in group._device_types if cuda else group._device_types == [CPU], string
        assert cuda is None or isinstance(group._get_backend(CUDA), cuda), string
        assert a_sum(group) == [total] * 3, string
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        work.wait()
        assert work.is_completed() and isinstance(work, ringpull.torch_distributed.work.Work) == (cpu is OURS)
        objects = [None] * size
        dist.all_gather_object(objects, rank, group=group)
        assert objects == list(range(size))
        if size > 1:
            other, got = (rank + 1) % size, torch.zeros(1)
            sent = dist.isend(torch.full((1,), float(rank)), other, group=group)
            assert dist.recv(got, group=group) == (rank - 1) % size == got.item()
            sent.wait()
        dist.destroy_process_group(group)
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    for string in "cpu:ringpull,cuda:fake", "cpu:fake,cuda:ringpull":
        try:
            dist.new_group(backend=string)
        except ringpull.ArgumentError as error:
            assert f'"{string}" has ringpull and fake' in str(error), error
        else:
            raise AssertionError(f"{string} was accepted")


def calls_are_compared_at_the_debug_level_detail():
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group()
    dist.set_debug_level(dist.DebugLevel.OFF)
    gc.collect()
    assert a_sum(group) == [total] * 3
    # Messages between two ranks do not count as calls that all ranks make.
    if size > 1 and rank == 0:
        dist.send(torch.ones(2), 1, group)
    elif rank == 1:
        dist.recv(torch.zeros(2), 0, group)
    assert a_sum(group) == [total] * 3
    dist.barrier(group)


def a_monitored_barrier_names_the_ranks_that_do_not_come():
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    dist.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True)
    for wait_all_ranks in (False, True) if size > 1 else ():
        late = [1] if not wait_all_ranks else list(range(1, size))
        group = dist.new_group()
        if rank not in late:
            try:
                dist.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks)
            except dist.DistBackendError as error:
                assert isinstance(error, ringpull.KVStoreError)
                said = f"Rank{'s' * (len(late) > 1)} {', '.join(map(str, late))} failed to pass monitoredBarrier"
                assert said in str(error), error
            else:
                raise AssertionError("it has passed")
        dist.barrier()


def groups_are_split():
    even, odd = list(range(0, size, 2))[::-1], list(range(1, size, 2))
    group = dist.split_group(split_ranks=[even, odd] if odd else [even])
    mine = even if rank in even else odd
    assert isinstance(group._get_backend(CPU), OURS)
    assert group.rank() == mine.index(rank) and group.size() == len(mine)
    assert a_sum(group) == [sum(other + 1.0 for other in mine)] * 3
    dist.barrier(group)
    again = dist.split_group(parent_pg=group, split_ranks=[list(range(len(mine)))], timeout=timedelta(seconds=30))
    assert a_sum(again) == [sum(other + 1.0 for other in mine)] * 3
    # Ranks that are not in the new group get no group.
    alone = dist.split_group(split_ranks=[[0]])
    assert (alone is dist.GroupMember.NON_GROUP_MEMBER) == (rank != 0)
    assert rank != 0 or a_sum(alone) == [1.0] * 3


def checkpoints_are_saved_in_the_background():
    where = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(where)
    dcp.async_save({"w": torch.full((2,), 5.0)}, checkpoint_id=where[0]).result()
    dist.barrier()
    found = {"w": torch.zeros(2)}
    dcp.load(found, checkpoint_id=where[0])
    assert found["w"].tolist() == [5.0, 5.0]


def calls_are_seen_by_profiler_and_flight_recorder():
    assert dist.distributed_c10d._get_pg_default_device() == CPU
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        a_sum()
        dist.barrier()
    names = {event.key for event in profile.key_averages()}
    assert {"c10d::allreduce_", "c10d::barrier"} <= names, names
    recorded = [entry["profiling_name"] for entry in json.loads(c10d._dump_fr_trace_json(backend="ringpull"))["entries"]]
    assert any("all_reduce" in name or "allreduce" in name for name in recorded), recorded


def calls_are_joined():
    several = [torch.full((at + 1,), float(rank)) for at in range(3)]
    with dist.distributed_c10d._coalescing_manager(device=CPU, async_ops=True) as together:
        for tensor in several:
            dist.all_reduce(tensor)
    together.wait()
    assert all((tensor == total - size).all() for tensor in several)
    with dist.distributed_c10d._coalescing_manager(device=CPU):
        for tensor in several:
            dist.broadcast(tensor, 0)
    outputs, inputs = [torch.zeros(2 * size) for _ in range(2)], [torch.full((2,), float(rank)) for _ in range(2)]
    with dist.distributed_c10d._coalescing_manager(device=CPU):
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    assert outputs[1].view(size, 2)[:, 0].tolist() == list(range(size))


def trained(words, make=lambda model: model, before=None):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    model = DistributedDataParallel(layer, **words)
    if before is not None:
        before(model)
    model, optimizer = make(model), torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in layer.parameters()])


def data_parallel_models_are_compiled():
    expected = trained({})
    for optimizer in "ddp_optimizer", "python_reducer":
        torch._dynamo.reset()
        torch._dynamo.config.optimize_ddp = optimizer
        found = trained({}, lambda model: torch.compile(model, backend="aot_eager"))
        assert torch.allclose(found, expected, atol=1e-6), optimizer
    torch._dynamo.config.optimize_ddp = True

    def summed(tensor):
        dist.all_reduce(tensor)
        return tensor + dist.get_world_size()

    compiled = torch.compile(summed, backend="aot_eager", fullgraph=True)
    assert compiled(torch.full((2,), rank + 1.0)).tolist() == [total + size] * 2


def hooks_that_pytorch_has_built_in():
    expected = trained({})
    for kind, tolerance in (dist.BuiltinCommHookType.ALLREDUCE, 1e-6), (dist.BuiltinCommHookType.FP16_COMPRESS, 1e-2):
        found = trained({}, before=lambda model, kind=kind: model._register_builtin_comm_hook(kind))
        assert torch.allclose(found, expected, atol=tolerance), kind
        ranks = [torch.zeros_like(found) for _ in range(size)]
        dist.all_gather(ranks, found)
        assert all(torch.equal(one, found) for one in ranks), kind


chosen = os.environ.get("ONLY", "")
for check in (
    each_device_has_the_backend_that_was_asked_for,
    calls_are_compared_at_the_debug_level_detail,
    a_monitored_barrier_names_the_ranks_that_do_not_come,
    groups_are_split,
    checkpoints_are_saved_in_the_background,
    calls_are_seen_by_profiler_and_flight_recorder,
    calls_are_joined,
    data_parallel_models_are_compiled,
    hooks_that_pytorch_has_built_in,
):
    if chosen in check.__name__:
        check()
        print(check.__name__, flush=True)
print(f"rank {rank} is done")
