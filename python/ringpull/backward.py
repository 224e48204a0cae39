"""Gradients of PyTorch that are combined over ranks in the backward pass that makes them.

A gradient leaves as soon as the pass has accumulated it, and the pass ends when every gradient is combined: whoever reads one after
``backward()`` reads the same on every rank. A parameter that the pass has not reached here, but perhaps elsewhere, leaves at the end of
the pass as it is, or as zeros. What is combined is linear in the gradients, so passes may add up: the sum of a gradient that is a sum
already and of one that is new is the sum of both.

Both :mod:`ringpull.torch` and :mod:`ringpull.horovod.torch` have their optimizers from here; how a gradient travels is theirs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from .elastic.in_place import followers

__all__ = ["CombiningOptimizer"]

#: The frame of a backward function that is written in Python, such as that of a checkpoint, which runs a
#: backward pass in a pass.
_NESTING = vars(torch.autograd.function.BackwardCFunction)["apply"].__code__

# PyTorch's types do not have it.
_engine: Any = vars(torch.autograd.Variable)["_execution_engine"]


def _is_nested() -> bool:
    """Whether the pass that is ending here is part of another."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _NESTING:
            return True
        frame = frame.f_back
    return False


def _of_inner(name: str) -> property:
    """The inner optimizer's attribute."""
    return property(lambda self: getattr(self.optimizer, name), lambda self, value: setattr(self.optimizer, name, value))


class CombiningOptimizer(torch.optim.Optimizer):
    """An optimizer around another one, which it calls when every gradient is combined. Learning rates and states are those of the other."""

    #: How many backward passes add up before gradients travel.
    backward_passes_per_step: int
    #: Behind process sets, when ranks were lost.
    order = 1

    # The inner optimizer has made groups and states, so that the constructor of the base class has nothing to
    # do.
    def __init__(self, optimizer: torch.optim.Optimizer, backward_passes_per_step: int = 1) -> None:
        if backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: expected 1 or more")
        self.optimizer = optimizer
        self.backward_passes_per_step = backward_passes_per_step
        #: Set to False while gradients of several backward passes add up here; :meth:`no_sync` does so for a
        #: while.
        self.communicates = True
        #: Each parameter, with the node that accumulates its gradient if that has to be kept.
        self._watched: dict[Any, Any] = {}
        #: What travels. None of it may be read or written.
        self._in_flight: dict[Any, Any] = {}
        #: What has left in this pass, and how often each has in this step.
        self._sent: set[Any] = set()
        self._calls: dict[Any, int] = {}
        #: Whether a pass is under way that combines; whether gradients are combined; whether some have been
        #: added to since.
        self._is_open = self._is_combined = self._is_local = False
        self._passes = 0
        self._watch_all()
        followers.add(self)

    # What the inner optimizer has.

    if not TYPE_CHECKING:  # The base class has attributes in their place.
        param_groups = _of_inner("param_groups")
        state = _of_inner("state")
        defaults = _of_inner("defaults")

    def __getattr__(self, name: str) -> Any:
        if "optimizer" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["optimizer"], name)

    def __getstate__(self) -> Any:
        return self.optimizer.__getstate__()

    def __repr__(self) -> str:
        return f"{type(self).__name__} around {self.optimizer!r}"

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the inner optimizer's."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters to the inner optimizer's. Every rank must add the same."""
        self.optimizer.add_param_group(param_group)
        self._watch_all()

    # Backward passes.

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add up here. The next one outside, or ``step``, combines what has added up."""
        communicated, self.communicates = self.communicates, False
        try:
            yield
        finally:
            self.communicates = communicated

    def _watch_all(self) -> None:
        new = [p for group in self.optimizer.param_groups for p in group["params"] if p not in self._watched]
        for parameter in new:
            self._watched[parameter] = self._watch(parameter)
        self._begin(new)

    def _watch(self, parameter: Any) -> Any:
        def ready(*_: Any) -> None:
            self._ready(parameter)

        # A parameter that is frozen now may be trained later, and can be watched only while it is not.
        trained = parameter.requires_grad
        if not (trained or parameter.is_floating_point()):
            return None
        parameter.requires_grad_(True)
        try:
            if hasattr(parameter, "register_post_accumulate_grad_hook"):
                parameter.register_post_accumulate_grad_hook(ready)
                return None
            # Before PyTorch 2.1: the node that accumulates the gradient, which lives as long as somebody
            # holds it.
            with torch.enable_grad():
                node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(ready)
            return node
        finally:
            parameter.requires_grad_(trained)

    def _ready(self, parameter: Any) -> None:
        """A backward pass has added to a gradient."""
        self._is_combined = False
        if not self.communicates:
            self._is_local = True
            return
        _engine.queue_callback(self._end_of_pass)
        self._is_open = True
        if self._passes + 1 < self.backward_passes_per_step:
            self._is_local = True
        else:
            self._leave(parameter)

    def _end_of_pass(self) -> None:
        if not self._is_open:
            return
        if _is_nested():
            # The pass around it may add to the same gradients.
            self._arrive()
            return
        self._passes += 1
        if self._passes < self.backward_passes_per_step:
            self._is_open = False
        else:
            self._combine()

    def _combine(self) -> None:
        """Sends what has not left, and waits for all."""
        for parameter in self._watched:
            if parameter.requires_grad and parameter not in self._sent:
                self._leave(parameter)
        self._arrive()
        self._sent.clear()
        self._is_open = self._is_local = False
        self._is_combined = True

    def _leave(self, parameter: Any) -> None:
        if parameter in self._in_flight:
            self._finish(parameter, self._in_flight.pop(parameter))
        if parameter.grad is None:
            parameter.grad = self._zeros(parameter)
        calls = self._calls.get(parameter, 0)
        self._calls[parameter] = calls + 1
        self._sent.add(parameter)
        self._in_flight[parameter] = self._send(parameter, calls > 0)

    def _zeros(self, parameter: Any) -> Any:
        """A gradient of zeros, as the inner optimizer takes one."""
        zeros = torch.zeros_like(parameter)
        return zeros.to_sparse(1) if isinstance(self.optimizer, torch.optim.SparseAdam) else zeros

    def _arrive(self) -> None:
        in_flight, self._in_flight = self._in_flight, {}
        for parameter, handle in in_flight.items():
            self._finish(parameter, handle)

    # Steps.

    def synchronize(self) -> None:
        """Waits until every gradient is combined. A backward pass has done so when it returns, unless it was not to."""
        if self._is_open or self._is_local or not self._is_combined:
            self._combine()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the inner optimizer's step with gradients that are combined."""
        # The backward pass of a closure combines what it makes.
        if closure is None or self._is_open or self._is_local:
            self.synchronize()
        result = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self._new_step()
        return result

    def _new_step(self) -> None:
        self._is_combined = False
        self._calls.clear()
        self._passes = 0

    def zero_grad(self, *args: Any, **keywords: Any) -> None:
        """Clears gradients, as the inner optimizer does."""
        # Of a pass that an exception has ended.
        self._arrive()
        self._is_open = False
        self._sent.clear()
        self.optimizer.zero_grad(*args, **keywords)

    def follow(self) -> None:
        """Forgets a step that the loss of other ranks has cut short, with its gradients."""
        for parameter in self._watched:
            parameter.grad = None
        self._begin(list(self._watched))
        self._in_flight.clear()
        self._sent.clear()
        self._is_open = self._is_combined = self._is_local = False
        self._new_step()

    # How gradients travel.

    def _begin(self, parameters: list[Any]) -> None:
        """Parameters that are new."""
        raise NotImplementedError

    def _send(self, parameter: Any, again: bool) -> Any:
        """Lets a gradient leave, ``again`` in the same step if it has; returns what :meth:`_finish` is given. Does not wait."""
        raise NotImplementedError

    def _finish(self, parameter: Any, handle: Any) -> None:
        """Waits until the gradient is combined."""
        raise NotImplementedError
