"""Tests PyTorch on our stores."""

import re
import sys

import pytest
from ranks import HAS_IMAGES, HERE, ROOT, job, launched, mpi, run

pytest.importorskip("torch")


def test_ranks_end_where_one_process_with_the_whole_batch_ends():
    for rank, printed in enumerate(job(2, "torch_values").ranks):
        assert printed.out == f"rank {rank} is done\n"


@pytest.mark.parametrize("ranks", [2, 3])
def test_averages_of_halves_are_right_where_their_sums_are_too_large(ranks):
    for rank, printed in enumerate(job(ranks, "torch_halves").ranks):
        assert printed.out == f"rank {rank} is done\n"


def test_whoever_reads_a_gradient_reads_the_average_and_passes_add_up():
    # The last check of each rank is a fault, which ends the job.
    for rank, printed in enumerate(mpi(2, HERE / "jobs/torch_passes.py", RINGPULL_TIMEOUT=2).ranks):
        assert printed.out == f"rank {rank} is done\n", printed.err


@pytest.mark.parametrize("front", ["ringpull", "horovod"])
def test_whatever_works_with_an_optimizer_works_with_a_wrapped_one(front):
    status, output = run([sys.executable, HERE / "jobs/torch_optimizers.py", front])
    # There may also be warnings of PyTorch itself.
    lines = output.splitlines()
    assert status == 0 and "that is all" in lines and not any(line.startswith(f"{front}: ") for line in lines), output


@pytest.mark.parametrize("front", ["ringpull:dist_sync_mpi", "horovod"])
def test_whatever_works_with_an_optimizer_works_over_ranks(front):
    for printed in job(2, "torch_optimizers", front).ranks:
        assert printed.out == "that is all\n"


MISTAKES = """
import threading
import torch, ringpull, ringpull.torch, ringpull.horovod.torch as hvd
hvd.init()
store, net = ringpull.create("local"), torch.nn.Linear(2, 1)

def said(kind, make):
    bare = torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        make(bare)
    except kind as error:
        assert type(bare) is torch.optim.SGD
        return str(error)
    raise AssertionError("no error")

def by_sum(optimizer):
    return hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters(), op=hvd.Sum)

average = ringpull.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), store)
text = said(ringpull.ArgumentError, by_sum)
assert text.startswith("the gradient of weight is already combined by another optimizer") and "call close() of that optimizer first" in text, text
average.close()
summed = by_sum(torch.optim.SGD(net.parameters(), lr=0.1))
for is_replaced, makes_graph in (False, False), (False, True), (True, False), (True, True):
    summed.zero_grad()
    net(torch.ones(1, 2)).sum().backward()
    for parameter in net.parameters() if is_replaced else ():
        parameter.grad = parameter.grad.clamp(-0.5, 0.5)
    text = said(ValueError, lambda _: net(torch.ones(1, 2)).sum().backward(create_graph=makes_graph))
    assert text.startswith("the gradient of ") and "is already summed over the ranks" in text and "backward_passes_per_step" in text, text
assert "a generator is no optimizer" in said(ringpull.ArgumentError, lambda _: ringpull.torch.DistributedOptimizer(net.parameters(), store))
summed.close()
table = torch.nn.Embedding(4, 2, sparse=True)
of_table = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), named_parameters=[("table", table.weight)], groups=1)
of_table.zero_grad(set_to_none=True)
assert "the gradient of table is sparse, and a sparse gradient cannot be in a group" in said(ValueError, lambda _: table(torch.tensor([1])).sum().backward())

of_adasum = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
step = of_adasum.step
hvd.DistributedOptimizer(of_adasum, op=hvd.Adasum).step()
if torch.__version__ >= "2":
    assert "was taken before the optimizer was wrapped" in said(ValueError, lambda _: step())

class Passes:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def __getattr__(self, name):
        return getattr(self.optimizer, name)

text = said(ringpull.ArgumentError, lambda bare: ringpull.torch.DistributedOptimizer(Passes(bare), store))
assert "the class Passes has no step and zero_grad of its own" in text, text
meta = torch.nn.Linear(2, 1, device="meta")
wrap_meta = lambda _: ringpull.torch.DistributedOptimizer(torch.optim.SGD(meta.parameters(), lr=0.1), store, named_parameters=meta.named_parameters())
assert "weight is on the device meta" in said(ringpull.ArgumentError, wrap_meta)

class Taken(torch.optim.SGD):
    def close(self):
        pass

def taken(_):
    ringpull.torch.DistributedOptimizer(Taken(net.parameters(), lr=0.1), store)

assert "a Taken has an attribute close already" in said(ringpull.ArgumentError, taken)

class Own(ringpull.torch.DistributedOptimizer):
    def __init__(self, *words):
        super().__init__(*words)
        self.steps = 0

    def step(self):
        self.steps += 1
        super().step()

nets = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)) for _ in range(2)]
both = [ringpull.torch.DistributedOptimizer(torch.optim.SGD(one.parameters(), lr=0.1), store, named_parameters=one.named_parameters()) for one in nets]
texts = []

def in_another_thread(grad):
    def passes():
        texts.append(said(ringpull.ArgumentError, lambda _: nets[1](torch.ones(1, 2)).sum().backward()))

    worker = threading.Thread(target=passes)
    worker.start()
    worker.join()

between = nets[0][0](torch.ones(1, 2))
between.register_hook(in_another_thread)
nets[0][1](between).sum().backward()
assert len(texts) == 1 and texts[0].startswith("a backward pass has reached 1.") and "while another thread's backward pass is under way" in texts[0], texts
own = Own(torch.optim.SGD(net.parameters(), lr=0.1), store)
own.step()
assert own.steps == 1
own.close()
before = ringpull.torch._keys[store].copy()
ringpull.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), store)
# Every parameter has one key, however often it is wrapped.
assert ringpull.torch._keys[store] == before
store.init("mine.0", torch.ones(1))
net = torch.nn.Linear(2, 1)
assert 'give another prefix' in said(ringpull.DuplicateKeyError, lambda bare: ringpull.torch.DistributedOptimizer(bare, store, "mine"))
print("all were said")
"""


def test_what_cannot_be_combined_is_an_error_that_leaves_the_optimizer_alone():
    done = mpi(1, "-c", MISTAKES)
    assert done.ranks[0].out == "all were said\n", f"{done}"


ORDERS = """
import torch, ringpull, ringpull.torch
store = ringpull.create("dist_sync_mpi")
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
named = list(net.named_parameters())[:: 1 - 2 * store.rank]
try:
    ringpull.torch.DistributedOptimizer(torch.optim.SGD([one for _, one in named], lr=0.1), store, named_parameters=named)
except ringpull.ArgumentError as error:
    print(error)
"""


def test_parameters_in_another_order_on_a_rank_are_an_error_on_every_rank():
    done = mpi(2, "-c", ORDERS)
    first = [printed.out.partition("\n")[0] for printed in done.ranks]
    expected = "the ranks' optimizers have parameters with different names, or in a different order: on this rank "
    assert [line.startswith(expected) for line in first] == [True, True] and "0.weight" in first[0] and "1.bias" in first[1], f"{done}"


UNLIKE = """
import torch, ringpull, ringpull.torch
store = ringpull.create("dist_sync_mpi")
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))

def wrapped(name, part):
    named = [(f"{name}.{own}", parameter) for own, parameter in part.named_parameters()]
    return ringpull.torch.DistributedOptimizer(torch.optim.SGD(part.parameters(), lr=0.1), store, named_parameters=named)

body, head = wrapped("body", net[0]), wrapped("head", net[1])
if store.rank == 1:
    body.close()
net(torch.ones(1, 2)).sum().backward()
"""


def test_an_optimizer_that_is_closed_on_one_rank_alone_is_an_error_on_every_rank():
    done = mpi(2, "-c", UNLIKE)
    for printed in done.ranks:
        assert "the gradient of body.weight is averaged on 1 of 2 ranks" in printed.err, f"{done}"


def test_optimizers_of_one_parameter_share_its_gradient_on_servers():
    words = ["optimizer", "nobody_reaches", "generator", "two_prefixes", "one_rank_reaches"]
    for printed in launched(2, 1, HERE / "jobs/torch_optimizers.py", "ringpull:dist_sync", *words).ranks:
        assert printed.out == "that is all\n"


def test_the_program_for_frameworks_on_gpus_is_right_in_host_memory():
    for rank, printed in enumerate(job(2, "frameworks", "cpu").ranks):
        assert f"rank {rank} ok       torch.distributed" in printed.out and "FAILED" not in printed.out, printed.out


def test_processes_that_would_train_alone_get_a_warning():
    # These are the variables that torchrun sets.
    of_torchrun = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "none"}
    code = """if True:
        import torch, ringpull.torch
        net = torch.nn.Linear(2, 2)
        ringpull.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), KIND)
        print("is alone")"""
    status, output = run([sys.executable, "-c", code.replace("KIND", "'dist_sync_mpi'")], **of_torchrun)
    assert status == 1 and "is alone" not in output and "torchrun starts no ranks of MPI: start it with mpirun" in output, output
    status, output = run([sys.executable, "-c", code.replace("KIND", "'local'")], **of_torchrun)
    warning = "warning: store kind local is for one process, but this is one of 2 (WORLD_SIZE): each trains a model of its own"
    assert status == 0 and output.endswith("is alone\n") and warning in output, output


def test_a_sparse_gradient_is_an_error_that_names_its_parameter():
    code = """if True:
        import torch, ringpull.torch
        net = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), "local", named_parameters=net.named_parameters())
        net(torch.tensor([1])).sum().backward()"""
    status, output = run([sys.executable, "-c", code])
    assert status == 1 and "the gradient of weight is sparse, and this optimizer sends dense ones" in output, output


@pytest.mark.skipif(not HAS_IMAGES, reason="Fashion-MNIST is not installed: scripts/setup")
def test_the_example_ends_with_equal_weights():
    short = ["--steps", 4, "--epochs", 1, "--limit-train", 512, "--limit-test", 200]
    done = mpi(2, ROOT / "examples/torch/train.py", "--kv-store", "dist_sync_mpi", *short)
    hashes = [re.findall(rf"^rank {rank} of 2 weights (\w+)$", printed.out, re.MULTILINE) for rank, printed in enumerate(done.ranks)]
    assert done.status == 0 and len(hashes[0]) == 1 and hashes[0] == hashes[1], f"{done}"
