"""Programs with the options of Horovod's optimizer."""

import torch
from torch import nn

from .base import Run, network, program, sgd, train, weights


@program(fronts=("horovod",))
def sparse_gradients(run):
    table = nn.Embedding(5, 2, sparse=True)
    with torch.no_grad():
        table.weight.fill_(1.0)
    optimizer = run.wrap(torch.optim.SparseAdam(table.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.tensor([1, 3])).square().sum().backward()
        optimizer.step()
    return weights(table)


@program(fronts=("horovod",), alone=({},), grouped=({"groups": 1},))
def names_that_are_alike(run, options):
    nets = [nn.Linear(3, 2), nn.Linear(3, 2)]
    optimizers = []
    for net in nets:
        with torch.no_grad():
            net.weight.fill_(0.5), net.bias.fill_(0.5)
        named = {} if run.is_bare else {"named_parameters": net.named_parameters()}
        optimizers.append(run.wrap(sgd(net), **options, **named))
    for at in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (run.loss(nets[0]) + run.loss(nets[1])).backward()
        optimizers[at % 2].step()
    return weights(nets[0]) + weights(nets[1])


@program(fronts=("horovod",), alone=({},), grouped=({"groups": 1},))
def names_that_ranks_use_in_another_order(run, options):
    """Ranks make the optimizers in different orders, as in a loop over a set of strings. One rank also has one optimizer more."""
    nets = {"critic": network(), "generator": network()}
    optimizers = {}
    for name in sorted(nets, reverse=run.rank == 1) + ["probe"] * (run.rank == 0):
        net = nets.get(name, network())
        named = {} if run.is_bare else {"named_parameters": [(f"{name}.{its}", parameter) for its, parameter in net.named_parameters()]}
        optimizers[name] = run.wrap(sgd(net), **options, **named)
    return [value for name, net in nets.items() for value in train(run, net, optimizers[name])]


@program(fronts=("horovod",), one=({"groups": 1},), two=({"groups": 2},), fp16=({"is_fp16": True},), adasum=({"is_adasum": True},))
def horovods_options(run, options):
    # Adasum of equal steps is the same step. With different steps the result would differ from the bare program's.
    calm = Run(run.made) if "is_adasum" in options else run
    net = network()
    optimizer = run.wrap(torch.optim.SGD(net[0].parameters(), lr=0.1), **options)
    train(calm, net, optimizer, 1)
    optimizer.add_param_group({"params": net[2].parameters()})
    train(calm, net, optimizer, 2)
    again = run.wrap(sgd(net), **options)
    net[0].requires_grad_(False)
    return [value.half() if "is_fp16" in options else value for value in train(calm, net, again, 2)]
