"""Programs with several optimizers of one network, with an optimizer that replaces another, or with parts that not all ranks reach."""

import gc
import weakref

import torch
from torch import nn
from torch.optim import lr_scheduler

from .base import network, program, sgd, train, weights


@program(fronts=("ringpull",))
def what_nobody_reaches_is_left_alone(run):
    net, far = network(), nn.Linear(2, 2)
    with torch.no_grad():
        far.weight.fill_(1.0), far.bias.fill_(1.0)
    both = nn.ModuleList([net, far])
    optimizer = run.wrap(sgd(both, weight_decay=0.1))
    train(run, net, optimizer)
    left = [far.weight.grad, len(optimizer.state)]
    optimizer.zero_grad()
    (run.loss(net) + far(torch.ones(1, 2)).sum()).backward()
    optimizer.step()
    # `far` has momentum now, and gets no more gradients.
    return [*train(run, net, optimizer), *weights(far), *left]


@program(deleted=("deleted",), closed=("closed",), alive=("alive",))
def an_optimizer_in_the_place_of_another(run, former):
    net = network()
    first = run.wrap(torch.optim.Adam(net.parameters(), lr=0.1))
    train(run, net, first)
    if former == "closed" and not run.is_bare:
        first.close()
    if former == "deleted":
        gone = weakref.ref(first)
        del first
        assert gone() is None
    second = run.wrap(sgd(net))
    return train(run, net, second)


@program(fronts=("ringpull",))
def a_long_gradient_of_two_prefixes(run):
    net = nn.Linear(100_000, 1, bias=False)
    with torch.no_grad():
        net.weight.zero_()
    first = run.wrap(torch.optim.Adam(net.parameters()), *([] if run.is_bare else ["first"]))
    for at in range(8):
        if at == 1:
            first = run.wrap(sgd(net), *([] if run.is_bare else ["second"]))
        net.zero_grad()
        (net(torch.ones(1, 100_000)).sum() + run.off(net.parameters())).backward()
        assert bool((net.weight.grad == 1).all()), net.weight.grad
        first.step()
    return weights(net)


@program()
def one_optimizer_wrapped_again(run):
    net = network()
    optimizer = sgd(net)
    schedule = lr_scheduler.StepLR(optimizer, 1, 0.9)
    for _ in range(3):
        optimizer = run.wrap(optimizer)
        train(run, net, optimizer, 2, schedule.step)
    return weights(net)


@program()
def optimizers_by_turns(run):
    net = network()
    whole, head = run.wrap(sgd(net)), run.wrap(torch.optim.Adam(net[2].parameters(), lr=0.1))
    for at in range(6):
        train(run, net, head if at % 2 else whole, 2)
    # Now both optimizers make a step after each pass.
    for _ in range(3):
        net.zero_grad()
        run.loss(net).backward()
        whole.step()
        head.step()
    del head
    gc.collect()
    return train(run, net, whole)


@program()
def two_optimizers_of_one_network(run):
    net = network()
    optimizers = [run.wrap(torch.optim.SGD(part.parameters(), lr=0.1)) for part in (net[0], net[2])]
    for _ in range(3):
        net.zero_grad()
        run.loss(net).backward()
        for optimizer in optimizers:
            optimizer.step()
    return weights(net)


@program()
def a_generator_and_its_critic(run):
    generator, critic = network(), nn.Sequential(nn.Linear(2, 1))
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.fill_(0.25)
    by_generator, by_critic = run.wrap(sgd(generator)), run.wrap(sgd(critic))
    given = torch.linspace(-1, 1, 12).reshape(4, 3)
    for _ in range(3):
        by_critic.zero_grad()
        (critic(generator(given).detach()).square().mean() + run.off(critic.parameters())).backward()
        by_critic.step()
        by_generator.zero_grad()
        (critic(generator(given)).square().mean() + run.off(generator.parameters())).backward()
        by_generator.step()
    return weights(generator) + weights(critic)


@program()
def a_part_that_one_rank_reaches(run):
    """There are two parts, each with its optimizer. Most passes reach the second part only on rank 0, and one pass reaches it on no rank. In
    one pass the other ranks reach nothing."""
    net, far = network(), nn.Linear(2, 2)
    with torch.no_grad():
        far.weight.fill_(0.5), far.bias.fill_(0.5)
    optimizers = [run.wrap(sgd(part)) for part in (net, far)]
    for at in range(6):
        for optimizer in optimizers:
            # Gradients are set to zero and not to None, as Horovod does too: so the momentum goes on.
            optimizer.zero_grad(set_to_none=False)
        parts = [run.loss(net) if at != 3 else run.rank == 0 and run.ranks * net(torch.ones(1, 3)).sum()]
        parts += [run.ranks * far(torch.ones(1, 2) * at).square().mean()] if at != 1 and run.rank == 0 else []
        if any(isinstance(part, torch.Tensor) for part in parts):
            sum(parts).backward()
        for optimizer in optimizers:
            optimizer.step()
    return weights(net) + weights(far)


@program(fronts=("ringpull",))
def an_optimizer_that_one_rank_keeps(run):
    net, far = network(), nn.Linear(2, 2)
    former = run.wrap(torch.optim.Adam([*far.parameters(), *net[0].parameters()], lr=0.1))
    kept = former if run.rank == 0 else None
    del former
    optimizer = run.wrap(sgd(net))
    first = train(run, net, optimizer)
    # No optimizer has `far` on every rank, and no step uses it.
    del kept
    return first + train(run, net, run.wrap(sgd(net)))


@program(fronts=("ringpull",))
def optimizers_one_after_the_other_begin_with_the_first_ranks_values(run):
    net = network()
    for at in range(3):
        if run.rank and at:
            with torch.no_grad():
                net[0].weight.mul_(2.0)
        train(run, net, run.wrap(sgd(net)), 2)
    return weights(net)


@program()
def a_parameter_that_is_taken_out_of_its_group(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    train(run, net, optimizer)
    del optimizer.param_groups[0]["params"][0]
    train(run, net, optimizer, 1)
    # From now on this parameter's gradient is this rank's own, and no average.
    optimizer.zero_grad()
    own = torch.autograd.grad(run.loss(net), net[0].weight)[0]
    net[0].weight.grad = None
    run.loss(net).backward()
    optimizer.step()
    return [*weights(net)[1:], torch.equal(own, net[0].weight.grad)]
