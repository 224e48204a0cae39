"""Programs with one optimizer: its kinds, schedules, states, hooks, copies and attributes."""

import copy
import inspect
import io
import pickle
import warnings
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from .base import VERSION, Run, network, program, sgd, train, weights

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
        # The loss directs the search, so it must be the same on all ranks.
        return Run().loss(net).detach()

    return [optimizer.step(closure), *weights(net)]


@program()
def an_optimizer_that_is_made_after_the_forward_pass(run):
    net = network()
    for _ in range(2):
        loss = run.loss(net)
        optimizer = run.wrap(sgd(net))
        loss.backward()
        optimizer.step()
        net.zero_grad()
    return weights(net)


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
    # The parameters are added by hand, and no method of the optimizer is called.
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
    # A bare optimizer loads the states, and its saved states are loaded below.
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
    # The group is added between a pass and its step.
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
    assert type(loaded) is torch.optim.SGD and [str(one.message)[:25] for one in heard] == ["the gradients of this SGD"] * (not run.is_bare)
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


@program()
def an_optimizer_of_the_programs_own(run):
    class Own(torch.optim.Optimizer):
        """An optimizer that multiplies each step by a given scale."""

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
        """An object with the attributes of another optimizer."""

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
