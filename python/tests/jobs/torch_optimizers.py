"""Programs with an optimizer of PyTorch's, bare and with gradients that are combined over the ranks: both must end alike.

    torch_optimizers.py FRONT[:KIND] [WORDS]

A front is ``ringpull`` or ``horovod``, and a kind that of its store. Gradients differ between ranks as long as they are not averaged.
With words only programs run whose names have one of them.
"""

import contextlib
import copy
import gc
import inspect
import io
import pickle
import sys
import threading
import warnings
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())

#: Each program, with the fronts that it is for.
PROGRAMS: dict[str, tuple[Any, tuple[str, ...]]] = {}


def program(needs=(1, 13), fronts=("ringpull", "horovod"), **cases):
    """A program for each of the named cases."""

    def known(function):
        for name, case in cases.items() or [("", ())]:
            if needs <= VERSION:
                PROGRAMS[f"{function.__name__} {name}".strip()] = ((lambda run, case=case: function(run, *case)), fronts)
        return function

    return known


class Run:
    """How a program gets its optimizer, and a loss whose gradients are those of the bare one when they are averaged."""

    def __init__(self, wrap=None, rank=0, ranks=1):
        self.made, self.is_bare, self.rank, self.ranks = wrap, wrap is None, rank, ranks

    @property
    def apart(self):
        """Zero on average over the ranks, and another on each."""
        return 0 if self.is_bare else 2 * self.rank - self.ranks + 1

    def wrap(self, optimizer, *words, **named):
        return optimizer if self.made is None else self.made(optimizer, *words, **named)

    def loss(self, net, inputs=None):
        inputs = torch.linspace(-1, 1, 12).reshape(4, 3) if inputs is None else inputs
        made = net(inputs.to(next(net.parameters()).dtype)).square().mean()
        return made + self.off(net.parameters())

    def off(self, parameters):
        """What is zero on average over the ranks."""
        if self.is_bare or self.ranks == 1:
            return 0.0
        share = 0.25 * self.apart
        return sum(share * parameter.sum() for parameter in parameters if parameter.requires_grad)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def weights(net):
    return [parameter.detach().clone() for parameter in net.parameters()]


def train(run, net, optimizer, steps=3, after=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        run.loss(net).backward()
        optimizer.step()
        after()
    return weights(net)


def sgd(net, **options):
    return torch.optim.SGD(net.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


KINDS = {
    "SGD": {"lr": 0.1},
    "Adadelta": {},
    "Adagrad": {},
    "Adam": {},
    "AdamW": {},
    "Adamax": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {},
    "Rprop": {},
    "Adafactor": {},
}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "maximize": ("SGD", {"maximize": True}),
    "foreach": ("Adam", {"foreach": True}),
    "loop": ("Adam", {"foreach": False}),
    "amsgrad": ("AdamW", {"amsgrad": True}),
}
if VERSION >= (2, 4):
    OPTIONS |= {f"fused {kind}": (kind, {"fused": True}) for kind in ("SGD", "Adam", "AdamW", "Adagrad")}
    OPTIONS["tensor lr"] = ("Adam", {"lr": torch.tensor(0.1)})


@program(**{kind: (kind, more) for kind, more in KINDS.items() if hasattr(torch.optim, kind)}, **OPTIONS)
def every_kind(run, kind, options):
    net = network()
    return train(run, net, run.wrap(getattr(torch.optim, kind)(net.parameters(), **{"lr": 0.05, **options})))


@program(plain=(None,), wolfe=("strong_wolfe",))
def lbfgs(run, search):
    net = network()
    optimizer = run.wrap(torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, line_search_fn=search))

    def closure():
        optimizer.zero_grad()
        run.loss(net).backward()
        # It steers the search, and must be alike on all ranks.
        return Run().loss(net).detach()

    return [optimizer.step(closure), *weights(net)]


@program()
def a_closure_by_name(run):
    net = network()
    optimizer = run.wrap(sgd(net))

    def closure():
        optimizer.zero_grad()
        run.loss(net).backward()
        return 7

    return [optimizer.step(closure=closure), optimizer.step(closure), *weights(net)]


SCHEDULES: dict[str, Any] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda at: 0.9**at),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=8),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 0.1, 1), lr_scheduler.ExponentialLR(o, 0.9)], [2]),
}


@program(**{f"{name} {place}": (make, place) for name, make in SCHEDULES.items() for place in ("before", "after")})
def a_schedule(run, make, place):
    net = network()
    optimizer = sgd(net)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        if place == "before":
            schedule = make(optimizer)
        optimizer = run.wrap(optimizer)
        if place == "after":
            schedule = make(optimizer)
        trained = train(run, net, optimizer, 5, schedule.step)
    return [*trained, optimizer.param_groups[0]["lr"], schedule.get_last_lr(), sorted({str(one.message) for one in heard})]


@program()
def a_schedule_of_the_loss(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    return [*train(run, net, optimizer, 4, lambda: schedule.step(1.0)), optimizer.param_groups[0]["lr"]]


@program()
def groups_that_are_replaced(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    train(run, net, optimizer, 1)
    optimizer.param_groups = [dict(optimizer.param_groups[0], lr=0.01)]
    train(run, net, optimizer, 1)
    more = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in more.parameters():
            parameter.fill_(0.5)
    # By hand, which nobody is told.
    optimizer.param_groups[0]["params"] += more.parameters()
    both = nn.ModuleList([net, more])
    for _ in range(3):
        optimizer.zero_grad()
        (run.loss(net) + run.loss(more)).backward()
        optimizer.step()
    return weights(both)


@program()
def states_are_saved_and_loaded(run):
    net, again, other = network(), network(), network()
    optimizer = run.wrap(sgd(net))
    train(run, net, optimizer)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    states = torch.load(file)
    for one in again, other:
        one.load_state_dict(net.state_dict())
    restored = run.wrap(sgd(again, lr=7.0))
    restored.load_state_dict(states)
    # What a bare optimizer has saved, and loads.
    bare = sgd(other, lr=7.0)
    bare.load_state_dict(states)
    train(Run(), other, bare, 1)
    train(run, again, restored, 1)
    restored.load_state_dict(bare.state_dict())
    return [*train(run, again, restored, 1), *weights(other), str(restored.state_dict())]


@program(needs=(2, 0))
def hooks_of_a_step(run):
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    net, heard = network(), []
    optimizer = sgd(net)
    optimizer.register_step_pre_hook(lambda *_: heard.append("before wrapping"))
    optimizer = run.wrap(optimizer)
    handles = [
        optimizer.register_step_pre_hook(lambda one, *_: heard.append(one is optimizer)),
        optimizer.register_step_post_hook(lambda *_: heard.append("post")),
        register_optimizer_step_pre_hook(lambda *_: heard.append("global pre")),
        register_optimizer_step_post_hook(lambda *_: heard.append("global post")),
    ]
    train(run, net, optimizer, 2)
    optimizer.load_state_dict(optimizer.state_dict())
    train(run, net, optimizer, 1)
    for handle in handles:
        handle.remove()
    return [*train(run, net, optimizer, 1), heard]


@program(needs=(2, 3))
def hooks_of_states(run):
    net, heard = network(), []
    optimizer = run.wrap(sgd(net))
    optimizer.register_state_dict_post_hook(lambda *_: heard.append("saved"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: heard.append("loads"))
    optimizer.register_load_state_dict_post_hook(lambda *_: heard.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    return [*train(run, net, optimizer), heard]


@program(needs=(2, 4))
def a_step_that_is_compiled(run):
    net = network()
    optimizer = run.wrap(torch.optim.Adam(net.parameters(), lr=0.1))
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(3):
        optimizer.zero_grad()
        run.loss(net).backward()
        step()
    torch._dynamo.reset()
    return weights(net)


@program(before=("before",), after=("after",))
def a_step_that_is_replaced(run, place):
    net, heard = network(), []
    optimizer = sgd(net)

    def replace():
        step = optimizer.step

        def counted(*arguments, **keywords):
            heard.append(place)
            return step(*arguments, **keywords)

        optimizer.step = counted

    if place == "before":
        replace()
    optimizer = run.wrap(optimizer)
    if place == "after":
        replace()
    return [*train(run, net, optimizer), heard]


@program()
def averaged_weights(run):
    from torch.optim.swa_utils import SWALR, AveragedModel

    net = network()
    optimizer = run.wrap(sgd(net))
    averaged, schedule = AveragedModel(net), SWALR(optimizer, swa_lr=0.05)

    def after():
        averaged.update_parameters(net)
        schedule.step()

    train(run, net, optimizer, 3, after)
    return weights(averaged)


@program()
def parametrizations(run):
    net = nn.Sequential(nn.utils.weight_norm(network()[0]), nn.Linear(4, 2))
    with torch.no_grad():
        net[1].weight.fill_(0.5), net[1].bias.fill_(0.5)
    return train(run, net, run.wrap(sgd(net)))


@program(bf16=(torch.bfloat16,), f64=(torch.float64,))
def other_types(run, dtype):
    net = network().to(dtype)
    return train(run, net, run.wrap(sgd(net)))


@program(
    needs=(2, 4),
    **{
        f"{kind}, fused {fused}, unscaled {unscales}, inf {inf}": (kind, fused, unscales, inf)
        for kind in ("SGD", "Adam")
        for fused in (True, False)
        for unscales in (True, False)
        for inf in (True, False)
    },
)
def a_scaler(run, kind, fused, unscales, inf):
    net = network()
    optimizer = run.wrap(getattr(torch.optim, kind)(net.parameters(), lr=0.1, fused=fused))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for step in range(4):
        optimizer.zero_grad()
        loss = run.loss(net)
        if inf and step == 1 and (run.is_bare or run.rank == run.ranks - 1):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return [*weights(net), scaler.get_scale(), hasattr(optimizer, "grad_scale"), hasattr(optimizer, "found_inf")]


@program()
def groups_that_are_added(run):
    net = network()
    optimizer = run.wrap(torch.optim.SGD(net[0].parameters(), lr=0.1, momentum=0.9))
    train(run, net, optimizer, 2)
    # Between a pass and its step.
    net.zero_grad()
    run.loss(net).backward()
    optimizer.add_param_group({"params": [net[2].weight], "lr": 0.05})
    optimizer.step()
    optimizer.add_param_group({"params": [net[2].bias]})
    return [*train(run, net, optimizer), len(optimizer.param_groups)]


@program()
def frozen_and_thawed(run):
    net = network()
    net[0].requires_grad_(False)
    optimizer = run.wrap(sgd(net))
    train(run, net, optimizer, 1)
    net[0].requires_grad_(True), net[2].requires_grad_(False)
    train(run, net, optimizer, 1)
    net.requires_grad_(True)
    return train(run, net, optimizer, 2)


@program()
def a_copy(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    train(run, net, optimizer)
    other, copied = copy.deepcopy((net, optimizer))
    alike = copied.param_groups[0]["params"][0] is other[0].weight and copied is not optimizer
    trained = [*train(run, other, copied, 2), *train(run, net, optimizer, 1)]
    # Over the same parameters.
    memo = {id(parameter): parameter for parameter in net.parameters()}
    third = copy.deepcopy(optimizer, memo)
    return [*trained, *train(run, net, third), type(copied) is type(optimizer), alike]


@program()
def copies_that_ranks_reach_in_different_orders(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    copies = [copy.deepcopy((net, optimizer)) for _ in range(2)]
    for _ in range(3):
        losses = [(at + 1) * run.loss(copies[at][0]) for at in ((1, 0) if run.rank else (0, 1))]
        sum(losses).backward()
        for _, copied in copies:
            copied.step()
            copied.zero_grad()
    return weights(copies[0][0]) + weights(copies[1][0])


@program(fronts=("horovod",))
def a_copy_that_one_rank_makes(run):
    nets = network(), network()
    optimizer = run.wrap(sgd(nets[0]), is_adasum=True)
    if run.rank == 0:
        copy.deepcopy(optimizer)
    return train(run, nets[1], run.wrap(sgd(nets[1])))


@program()
def a_pickle(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    train(run, net, optimizer)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        other, loaded = pickle.loads(pickle.dumps((net, optimizer)))
    assert type(loaded) is torch.optim.SGD and [str(one.message)[:15] for one in heard] == ["a SGD is loaded"] * (not run.is_bare)
    return [*train(Run(), other, loaded), *train(run, net, optimizer)]


@program()
def a_shallow_copy(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    train(run, net, optimizer)
    other = copy.copy(optimizer)
    trained = [*train(run, net, other, 1), *train(run, net, optimizer, 1)]
    alike = type(other) is type(optimizer)
    if not run.is_bare:
        optimizer.close()
    del optimizer
    return [*trained, *train(run, net, other), alike]


@program()
def its_class_and_attributes(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    optimizer.found = 3
    optimizer.defaults["lr"] = 0.3
    optimizer.state[net[0].weight]["own"] = 1
    kind = type(optimizer)
    made = kind(net.parameters(), lr=0.1)
    said = [kind.__name__, kind.__module__, repr(optimizer), sorted(optimizer.state_dict()), str(inspect.signature(optimizer.step))]
    del optimizer.found
    return [isinstance(optimizer, torch.optim.SGD), isinstance(made, torch.optim.SGD), hasattr(optimizer, "found"), optimizer.defaults, *said]


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
    # Not by the optimizer, which would be told.
    net.zero_grad(set_to_none=True)
    run.loss(net).backward()
    optimizer.step()
    return train(run, net, optimizer)


program(fronts=("horovod",), grouped=({"groups": 1},))(a_pass_that_raises)


@program(step=(None, 1), passes=(None, 2), intermediate=("intermediate", 2), beside=("beside", 2))
def a_pass_in_a_pass_reaches_all(run, how, passes):
    """Of two checkpoints, one in the other, so that the pass around them accumulates nothing itself."""
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
        # In place, which the optimizer is not told.
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


@program()
def gradients_set_by_hand(run):
    net = network()
    optimizer = run.wrap(sgd(net))
    for step in range(3):
        optimizer.zero_grad()
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, 0.5 * step + run.apart)
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
    # It has momentum now, and no gradient again.
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
    # Both after one pass.
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
    """Of two parts with an optimizer each, most passes reach the second on rank 0 alone, some on none, and some nothing elsewhere."""
    net, far = network(), nn.Linear(2, 2)
    with torch.no_grad():
        far.weight.fill_(0.5), far.bias.fill_(0.5)
    optimizers = [run.wrap(sgd(part)) for part in (net, far)]
    for at in range(6):
        for optimizer in optimizers:
            # Zeros, which Horovod makes of no gradient too: they go on with the momentum.
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
    # Nobody has `far` on every rank, and nobody uses it.
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
    # From then on the gradient is this rank's.
    optimizer.zero_grad()
    own = torch.autograd.grad(run.loss(net), net[0].weight)[0]
    net[0].weight.grad = None
    run.loss(net).backward()
    optimizer.step()
    return [*weights(net)[1:], torch.equal(own, net[0].weight.grad)]


@program()
def an_optimizer_of_the_programs_own(run):
    class Own(torch.optim.Optimizer):
        """Scales what it is told in each step."""

        def __init_subclass__(cls):
            raise TypeError("this is the last")

        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})
            self.steps, self.prefix = 0, "own"

        def _step(self, group, scale):
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] * scale)

        def step(self, closure=None, *, scale=1.0):
            self.steps += 1
            with torch.no_grad():
                for group in self.param_groups:
                    self._step(group, scale)

    net = network()
    optimizer = run.wrap(Own(net.parameters(), 0.1))
    for scale in (1.0, 2.0):
        optimizer.zero_grad()
        run.loss(net).backward()
        optimizer.step(scale=scale)
    return [*weights(net), optimizer.steps, optimizer.prefix]


@program()
def complex_parameters(run):
    parameter = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
    optimizer = run.wrap(torch.optim.SGD([parameter], lr=0.1, momentum=0.9))
    for _ in range(3):
        optimizer.zero_grad()
        off = run.off([torch.view_as_real(parameter)])
        (parameter.abs().square().sum() + off).backward()
        optimizer.step()
    return [torch.view_as_real(parameter.detach())]


@program()
def what_only_looks_like_an_optimizer(run):
    class Other:
        """Has what another one has."""

        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            if name == "inner":
                raise AttributeError(name)
            return getattr(self.inner, name)

        def step(self):
            self.inner.step()

        def zero_grad(self):
            self.inner.zero_grad()

    net = network()
    return train(run, net, run.wrap(Other(sgd(net))))


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


@program(fronts=("horovod",), one=({"groups": 1},), two=({"groups": 2},), fp16=({"is_fp16": True},), adasum=({"is_adasum": True},))
def horovods_options(run, options):
    # Adasum of equal steps is that step; others are another program.
    calm = Run(run.made) if "is_adasum" in options else run
    net = network()
    optimizer = run.wrap(torch.optim.SGD(net[0].parameters(), lr=0.1), **options)
    train(calm, net, optimizer, 1)
    optimizer.add_param_group({"params": net[2].parameters()})
    train(calm, net, optimizer, 2)
    again = run.wrap(sgd(net), **options)
    net[0].requires_grad_(False)
    return [value.half() if "is_fp16" in options else value for value in train(calm, net, again, 2)]


def equal(got, expected, is_exact):
    if isinstance(expected, torch.Tensor):
        # What differs between ranks is rounded before it cancels out.
        coarse = expected.element_size() < 4
        return torch.equal(got, expected) if is_exact else torch.allclose(got.float(), expected.float(), 1e-4, 1e-2 if coarse else 2e-5)
    return got == expected


def wrappers(front):
    """How that front wraps an optimizer, this rank and the number of ranks."""
    if front == "horovod":
        import ringpull.horovod.torch as hvd

        hvd.init()

        def by_horovod(optimizer, is_fp16=False, is_adasum=False, is_sum=False, **options):
            options |= {"compression": hvd.Compression.fp16} if is_fp16 else {}
            return hvd.DistributedOptimizer(optimizer, op=hvd.Adasum if is_adasum else hvd.Sum if is_sum else hvd.Average, **options)

        return by_horovod, hvd.rank(), hvd.size()
    import ringpull
    import ringpull.torch

    store = ringpull.create(front.partition(":")[2] or "local")
    return (lambda optimizer, *words: ringpull.torch.DistributedOptimizer(optimizer, store, *words)), store.rank, store.num_workers


def differences(front, words=()):
    """The programs that end otherwise with that front than without it."""
    wrap, rank, ranks = wrappers(front)
    found = {}
    for name, (function, fronts) in PROGRAMS.items():
        if front.partition(":")[0] not in fronts or not any(word in name for word in words or [""]):
            continue
        expected = function(Run())
        try:
            got = function(Run(wrap, rank, ranks))
        except Exception as error:
            if ranks > 1:
                raise
            found[name] = repr(error)
            continue
        is_exact = ranks == 1 and "fp16" not in name and "adasum" not in name
        if len(got) != len(expected) or not all(equal(one, other, is_exact) for one, other in zip(got, expected)):
            found[name] = f"{got} and not {expected}"
    return found


if __name__ == "__main__":
    front, *words = sys.argv[1:]
    for name, what in differences(front, words).items():
        print(f"{front}: {name}: {what}", flush=True)
    print("that is all", flush=True)
