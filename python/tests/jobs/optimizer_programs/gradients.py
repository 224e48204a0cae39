"""Programs whose passes add up, raise or reach only a part, and programs with gradients that are set by hand or have other layouts and types."""

import contextlib
import threading
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .base import network, program, sgd, train, weights


@program(none=(True,), zero=(False,))
def gradients_are_cleared(run, to_none):
    net = network()
    optimizer = run.wrap(sgd(net))
    for _ in range(3):
        optimizer.zero_grad(set_to_none=to_none)
        run.loss(net).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=to_none)
    return [*weights(net), net[0].weight.grad]


@program()
def by_the_model(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    for _ in range(3):
        net.zero_grad()
        run.loss(net).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    return weights(net)


@program()
def passes_add_up(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            run.loss(net).backward()
        optimizer.step()
    return weights(net)


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(_, inputs):
        return inputs.clone()

    @staticmethod
    def backward(_, grad):
        raise RuntimeError("in the middle of a pass")


@program(alone=({},))
def a_pass_that_raises(run, options):
    net = network()
    optimizer = run.wrap(sgd(net), **options)
    train(run, net, optimizer, 1)
    net.zero_grad(set_to_none=True)
    try:
        (_Raises.apply(net[0](torch.ones(3))).sum() + net[2](torch.ones(4)).sum() * 100).backward()
    except RuntimeError as error:
        assert str(error) == "in the middle of a pass"
    # The network clears the gradients. If the optimizer did it, our code would notice.
    net.zero_grad(set_to_none=True)
    run.loss(net).backward()
    optimizer.step()
    return train(run, net, optimizer)


program(fronts=("horovod",), grouped=({"groups": 1},))(a_pass_that_raises)


@program(step=(None, 1), passes=(None, 2), intermediate=("intermediate", 2), beside=("beside", 2))
def a_pass_in_a_pass_reaches_all(run, how, passes):
    """The outer pass has two nested checkpoints, and accumulates no gradient itself."""
    net, other = network(), nn.Linear(3, 3)
    optimizer = run.wrap(sgd(net))
    optimizer.backward_passes_per_step = passes
    with torch.no_grad():
        other.weight.fill_(0.5), other.bias.fill_(0.5)
    for _ in range(3):
        net.zero_grad()
        for at in range(2):
            given = torch.linspace(-1, 1 + at, 12).reshape(4, 3).requires_grad_()
            made = other(given) if how == "intermediate" else given
            made = checkpoint(lambda x: checkpoint(lambda y: (at + 1) * run.loss(net, y), x, use_reentrant=True), made, use_reentrant=True)
            if how == "beside":
                made = made + checkpoint(lambda x: net(x).sum(), torch.ones(2, 3, requires_grad=True), use_reentrant=True)
            made.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    return weights(net)


@program(needs=(2, 0))
def a_step_that_was_taken_before(run):
    net = network()
    optimizer = sgd(net)
    step, steps = optimizer.step, torch.optim.SGD.step
    optimizer = run.wrap(optimizer)
    for at in range(6):
        optimizer.zero_grad()
        with optimizer.no_sync() if not run.is_bare and at % 2 else contextlib.nullcontext():
            run.loss(net).backward()
        steps(optimizer) if at > 3 else step()
    for at in range(3):
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, at + run.apart)
        step()
    return weights(net)


@program()
def passes_by_turns_of_two_threads(run):
    nets = network(), network()
    optimizers = [run.wrap(sgd(net)) for net in nets]
    for at in range(4):
        worker = threading.Thread(target=train, args=(run, nets[at % 2], optimizers[at % 2], 1))
        worker.start()
        worker.join()
    return weights(nets[0]) + weights(nets[1])


@program(fronts=("horovod",))
def a_sum_of_passes_over_different_parts(run):
    net, table = network(), nn.Embedding(4, 2, sparse=True)
    with torch.no_grad():
        table.weight.fill_(0.5)
    both = nn.ModuleList([net, table])
    optimizer = run.wrap(torch.optim.SGD(both.parameters(), lr=0.1 / run.ranks), is_sum=True)
    for at in range(4):
        # The gradients are changed directly, and no method of the optimizer is called.
        for parameter in both.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_() if at % 2 else setattr(parameter, "grad", None)
        for part in net[0], net[2], table:
            given = torch.tensor([1, 2]) if part is table else torch.ones(1, part.in_features)
            loss = part(given).square().sum() + (run.off(part.parameters()) if part is not table else 0)
            loss.backward(create_graph=part is net[0])
            for parameter in part.parameters():
                parameter.grad = parameter.grad.detach() * 0.5
        optimizer.step()
    return weights(both)


@program(fronts=("horovod",))
def a_sum_that_is_thrown_away(run):
    net = network()
    optimizer = run.wrap(torch.optim.SGD(net.parameters(), lr=0.1 / run.ranks), is_sum=True)
    for at in range(4):
        optimizer.zero_grad()
        run.loss(net).backward()
        if at != 1:
            optimizer.step()
    return weights(net)


@program()
def a_pass_of_one_rank_that_is_thrown_away(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    if run.rank == 0 and not run.is_bare:
        with optimizer.no_sync():
            run.loss(net).backward()
    optimizer.zero_grad()

    def closure():
        optimizer.zero_grad()
        run.loss(net).backward()

    optimizer.step(closure)
    return weights(net)


@program(each=("each",), expanded=("expanded",), shared=("shared",))
def gradients_set_by_hand(run, memory):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) if memory == "shared" else network()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.5)
    optimizer = run.wrap(sgd(net))
    for step in range(3):
        optimizer.zero_grad()
        for parameter in net.parameters():
            value = torch.tensor(0.5 * step + run.apart)
            parameter.grad = value.expand(parameter.shape) if memory == "expanded" else torch.full_like(parameter, value)
        if memory == "shared":
            net[1].weight.grad, net[1].bias.grad = net[0].weight.grad, net[0].bias.grad
        optimizer.step()
    return weights(net)


@program(fronts=("ringpull",))
def gradients_set_by_hand_after_a_pass(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    for step in range(3):
        optimizer.zero_grad()
        (net[0](torch.ones(1, 3)).sum() + run.off(net[0].parameters())).backward()
        for parameter in net[2].parameters():
            parameter.grad = torch.full_like(parameter, 0.5 * step + run.apart)
        optimizer.step()
    return weights(net)


@program()
def gradients_that_are_replaced_after_a_pass_that_one_rank_made(run):
    net, far = network(), nn.Linear(2, 2)
    with torch.no_grad():
        far.weight.fill_(0.5), far.bias.fill_(0.5)
    both = nn.ModuleList([net, far])
    optimizer, other = run.wrap(sgd(both)), run.wrap(sgd(both, lr=0.01))
    for _ in range(3):
        optimizer.zero_grad()
        loss = run.loss(net)
        if run.rank == 0:
            loss = loss + run.ranks * far(torch.ones(1, 2)).square().mean()
        loss.backward()
        for parameter in both.parameters():
            parameter.grad = parameter.grad.clamp(-0.5, 0.5)
        optimizer.step()
        other.step()
    return weights(both)


@program(needs=(2, 4), plain=(False,), fused=(True,))
def a_layout_that_is_not_rows(run, fused):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).to(memory_format=torch.channels_last)
    optimizer = run.wrap(torch.optim.Adam(net.parameters(), lr=0.1, fused=fused))
    for _ in range(3):
        optimizer.zero_grad()
        run.loss(net, torch.linspace(-1, 1, 96).reshape(2, 3, 4, 4)).backward()
        optimizer.step()
    return [*weights(net), net[0].weight.grad.stride() == net[0].weight.stride()]


@program()
def views_of_a_flat_gradient(run):
    net = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.weight.data = net.weight.data.t().contiguous().t()
    optimizer, flat = run.wrap(sgd(net)), torch.zeros(6)
    for _ in range(2):
        flat.zero_()
        net.weight.grad = flat.view(2, 3).t()
        (net(torch.ones(1, 2)).sum() + run.off(net.parameters())).backward()
        flat.mul_(0.5)
        optimizer.step()
    return [net.weight.detach().clone(), flat]


@program()
def a_gradient_that_is_differentiated(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    for _ in range(2):
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.loss(net).backward(create_graph=True)
        optimizer.step()
    for parameter in net.parameters():
        parameter.grad = None
    return weights(net)


@program()
def a_conjugate_as_gradient(run):
    weight = nn.Parameter(torch.full((2,), 1 + 2j))
    optimizer = run.wrap(torch.optim.SGD([weight], lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        weight.grad = torch.full((2,), 1 + 0.5j * (1 + run.apart)).conj()
        optimizer.step()
    return [torch.view_as_real(weight.detach()).clone()]


@program()
def another_type_after_a_while(run):
    net = network()
    optimizer = run.wrap(torch.optim.SGD(net.parameters(), lr=0.1))
    train(run, net, optimizer, 2)
    net.double()
    train(run, net, optimizer, 2)
    return train(run, net, run.wrap(torch.optim.SGD(net.parameters(), lr=0.1)), 2)


@program(needs=(2, 1))
def a_users_hook_changes_the_gradient(run):
    net = network()
    optimizer = run.wrap(sgd(net))

    def halve(parameter):
        parameter.grad.mul_(0.5)

    handles = [parameter.register_post_accumulate_grad_hook(halve) for parameter in net.parameters()]
    train(run, net, optimizer)
    for handle in handles:
        handle.remove()
    return train(run, net, optimizer)


@program(needs=(2, 1))
def a_step_in_the_backward_pass(run):
    net = network()
    optimizers = {parameter: run.wrap(torch.optim.SGD([parameter], lr=0.1)) for parameter in net.parameters()}

    def hook(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    for _ in range(3):
        run.loss(net).backward()
    return weights(net)
