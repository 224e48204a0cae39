"""Tests code that reads gradients between the backward pass and the step, and passes that add up. The results must be those of one process
with all data."""

import time

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

import ringpull
import ringpull.torch

store = ringpull.create("dist_sync_mpi")
rank, ranks = store.rank, store.num_workers
made = 0


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def distributed(net, optimizer=None, **options):
    global made
    made += 1
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    return ringpull.torch.DistributedOptimizer(optimizer, store, f"check{made}", net.named_parameters(), **options)


inputs = torch.arange(24.0).reshape(8, 3) / 24
targets = torch.arange(8) % 2
part = slice(rank, None, ranks)


def loss_of(net, part):
    return nn.functional.cross_entropy(net(inputs[part]), targets[part])


def equal(net, other):
    for own, theirs in zip(net.parameters(), other.parameters()):
        assert torch.allclose(own, theirs, atol=1e-6), (own, theirs)


def gradients(net):
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def whoever_reads_a_gradient_reads_the_average():
    net, alone = network(), network()
    optimizer = distributed(net)
    schedule = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    other = torch.optim.SGD(alone.parameters(), lr=0.5, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(net, part)
        if rank == step % ranks:
            # By now the other ranks have read their gradients.
            time.sleep(0.2)
        loss.backward()
        own = gradients(net)
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
        schedule.step()
        other.zero_grad()
        loss_of(alone, slice(None)).backward()
        assert torch.allclose(own, gradients(alone), atol=1e-6), (own, gradients(alone))
        nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        other.param_groups[0]["lr"] = 0.5 * 0.5**step
        other.step()
        equal(net, alone)
    assert isinstance(optimizer, torch.optim.Optimizer) and optimizer.param_groups[0]["lr"] == 0.0625


def passes_add_up(how):
    net, alone = network(), network()
    optimizer = distributed(net, **({"backward_passes_per_step": 2} if how == "count" else {}))
    other = torch.optim.SGD(alone.parameters(), lr=0.5, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        before = store.stats()["pushes"]
        if how == "no_sync":
            with optimizer.no_sync():
                loss_of(net, part).backward()
            (2 * loss_of(net, part)).backward()
        elif how == "step":
            with optimizer.no_sync():
                loss_of(net, part).backward()
                (2 * loss_of(net, part)).backward()
        else:
            loss_of(net, part).backward()
            (2 * loss_of(net, part)).backward()
        optimizer.step()
        # There are six gradients, and one push that tells which ranks have gradients. The first step has more pushes, for new parameters.
        assert step == 0 or store.stats()["pushes"] - before == (14 if how == "each" else 7)
        other.zero_grad()
        (3 * loss_of(alone, slice(None))).backward()
        other.step()
        equal(net, alone)


def a_parameter_that_some_ranks_do_not_reach_is_clipped_alike():
    net, alone = network(), network()
    optimizer, other = distributed(net), torch.optim.SGD(alone.parameters(), lr=0.5, momentum=0.9)
    for model, trained, reaches in (net, optimizer, rank == 0), (alone, other, True):
        loss = model[0](inputs).square().sum()
        if reaches:
            loss = loss + model[2](inputs @ torch.ones(3, 5)).sum() * (1 / ranks if model is alone else 1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        trained.step()
    equal(net, alone)


def a_checkpoint_runs_a_pass_in_the_pass():
    for outside in False, True:
        net, alone = network(), network()
        optimizer, other = distributed(net), torch.optim.SGD(alone.parameters(), lr=0.5, momentum=0.9)
        values = inputs[part].clone().requires_grad_()
        values = checkpoint(net[2:], net[:2](values)) if outside else checkpoint(net[2:], checkpoint(net[:2], values))
        nn.functional.cross_entropy(values, targets[part]).backward()
        own = gradients(net)
        optimizer.step()
        loss_of(alone, slice(None)).backward()
        assert torch.allclose(own, gradients(alone), atol=1e-6)
        other.step()
        equal(net, alone)


def what_is_trained_later_is_averaged():
    net, alone = network(), network()
    for model in net, alone:
        model[0].requires_grad_(False)
    optimizer = distributed(net, torch.optim.SGD([*net[0].parameters(), *net[2].parameters()], lr=0.5))
    other = torch.optim.SGD(alone.parameters(), lr=0.5)
    optimizer.add_param_group({"params": list(net[4].parameters())})
    for step in range(3):
        for model, trained, chosen in (net, optimizer, part), (alone, other, slice(None)):
            if step == 1:
                model[0].requires_grad_(True)
            trained.zero_grad()
            loss_of(model, chosen).backward()
            trained.step()
        equal(net, alone)


def a_closure_may_run_several_passes():
    net, alone = network(), network()
    optimizer, other = distributed(net, torch.optim.LBFGS(net.parameters(), max_iter=3)), torch.optim.LBFGS(alone.parameters(), max_iter=3)
    for model, trained, chosen in (net, optimizer, part), (alone, other, slice(None)):

        def closure(model=model, trained=trained, chosen=chosen):
            trained.zero_grad()
            loss = loss_of(model, chosen)
            loss.backward()
            # The loss directs the search, so it must be the same on all ranks.
            return loss_of(model, slice(None)).detach()

        trained.step(closure)
    for own, theirs in zip(net.parameters(), alone.parameters()):
        assert torch.allclose(own, theirs, atol=1e-3), (own, theirs)


def states_are_the_inner_optimizers():
    net = network()
    optimizer = distributed(net)
    loss_of(net, part).backward()
    optimizer.step()
    states = optimizer.state_dict()
    restored = distributed(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    restored.load_state_dict(states)
    assert restored.param_groups[0]["lr"] == 0.5 and len(restored.state) == 6
    assert torch.equal(restored.state[net[0].weight]["momentum_buffer"], optimizer.state[net[0].weight]["momentum_buffer"])


def ranks_that_make_different_numbers_of_passes_get_an_error():
    net = network()
    optimizer = distributed(net)
    try:
        for _ in range(2):
            for _ in range(1 + (rank == 0)):
                loss_of(net, part).backward()
            optimizer.step()
    except ringpull.StalledError as error:
        assert "again" in str(error), error
    else:
        raise AssertionError("no error")


whoever_reads_a_gradient_reads_the_average()
for how in "each", "no_sync", "count", "step":
    passes_add_up(how)
a_parameter_that_some_ranks_do_not_reach_is_clipped_alike()
a_checkpoint_runs_a_pass_in_the_pass()
what_is_trained_later_is_averaged()
a_closure_may_run_several_passes()
states_are_the_inner_optimizers()
ranks_that_make_different_numbers_of_passes_get_an_error()
print(f"rank {rank} is done", flush=True)
