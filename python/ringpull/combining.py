"""Optimizers of PyTorch whose gradients are combined over ranks. Each stays the same object, and an instance of its class.

The object gets a new class, derived from the program's class and from a front end's :class:`CombiningOptimizer`. So code that works with an
optimizer works with it, and no calls need to be passed on to another object.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .backward import Member
from .errors import ArgumentError

__all__ = ["CombiningOptimizer", "combine", "names_of", "parameters_of"]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The optimizer's parameters, each once."""
    if not hasattr(optimizer, "param_groups"):
        raise ArgumentError(f"a {type(optimizer).__name__} is no optimizer\n  hint: give an optimizer, such as torch.optim.SGD(model.parameters(), lr=0.1)")
    if not all(callable(getattr(type(optimizer), name, None)) for name in ("step", "zero_grad")):
        raise ArgumentError(f"the class {type(optimizer).__name__} has no step and zero_grad of its own\n  hint: give the optimizer to which it passes its calls on")
    return list(dict.fromkeys(parameter for group in optimizer.param_groups for parameter in group["params"]))


def names_of(optimizer: torch.optim.Optimizer) -> dict[Any, str]:
    """The names that an optimizer of PyTorch 2.6 or later has for its parameters, if it was made with names."""
    return {parameter: name for group in optimizer.param_groups for name, parameter in zip(group.get("param_names", ()), group["params"])}


def _inner(kind: type) -> type:
    """The program's class from which a combining class was made."""
    return getattr(kind, "_gradients_inner", kind)


class _Unannounced:
    """A base class. Classes derived from it are not announced to the program's class (by ``__init_subclass__``)."""

    def __init_subclass__(cls) -> None:
        """Does nothing."""


@functools.lru_cache(maxsize=None)
def _combining(front: type, inner: Any) -> type:
    """The class of ``inner``'s optimizers whose gradients are combined by ``front``."""

    @functools.wraps(inner.step)
    def step(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return _step(self, functools.partial(inner.step, self), arguments, keywords)

    # PyTorch wraps a class's `step` that is not marked so, in order to call hooks. The inner `step` calls them already.
    vars(step)["hooked"] = True

    # A program may have a subclass of `DistributedOptimizer`. Then `DistributedOptimizer(optimizer)` calls this too, after the optimizer
    # has got this class.
    @functools.wraps(inner.__init__)
    def initialise(self: Any, *arguments: Any, **keywords: Any) -> None:
        initialises: Any = inner if self._gradients_member is None else front
        initialises.__init__(self, *arguments, **keywords)

    words = {name: getattr(inner, name) for name in ("__module__", "__qualname__", "__doc__")}
    # These come after the methods of `front`, since a program may have a subclass of `front`.
    last = type(inner.__name__, (_Unannounced, inner), {**words, "step": step})
    methods = {"__new__": lambda kind, *_, **__: object.__new__(kind), "__init__": initialise}
    return type(inner.__name__, (front, last), {**words, **methods, "_gradients_inner": inner})


def _loaded(kind: type) -> Any:
    """An empty optimizer for the state of a pickled combining optimizer. It combines no gradients, because the process that loads it may be
    no rank of a job."""
    warnings.warn(
        f"the gradients of this {kind.__name__} were combined over ranks before it was saved, and now are not: give it to DistributedOptimizer",
        stacklevel=2,
    )
    return object.__new__(kind)


def _step(optimizer: Any, step: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Makes the step with combined gradients. ``step`` is that of the inner optimizer's class, or one that the program has set instead."""
    stepped, optimizer._gradients_steps = optimizer._gradients_steps, True
    try:
        return optimizer._step_combined(step, arguments, keywords)
    finally:
        optimizer._gradients_steps = stepped


def _is_bypassed(optimizer: Any) -> bool:
    """Returns True if a combining optimizer makes a step by a method that the program read from it before it was wrapped."""
    return vars(optimizer).get("_gradients_member") is not None and not optimizer._gradients_steps


def _before_step(optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    if _is_bypassed(optimizer):
        _follow_groups(optimizer, optimizer._gradients_member)
        # PyTorch gives hooks the arguments of the method; the first is the optimizer.
        optimizer._gradients_member.begin_step(arguments[1:], keywords)


def _after_step(optimizer: Any, *_: Any) -> None:
    if _is_bypassed(optimizer):
        optimizer._gradients_member.end_step()


@functools.cache
def _watch_steps() -> None:
    """Makes PyTorch 2.0 or later call the two hooks above for every step of every optimizer, in a program that combines gradients."""
    of_steps: Any = sys.modules[torch.optim.Optimizer.__module__]
    if hasattr(of_steps, "register_optimizer_step_pre_hook"):
        of_steps.register_optimizer_step_pre_hook(_before_step)
        of_steps.register_optimizer_step_post_hook(_after_step)


def _with_step(optimizer: Any) -> Any:
    """Wraps a step that the program has set on the optimizer instead of its class's, such as a step that a schedule counts."""
    own, step = weakref.ref(optimizer), optimizer.step

    def combined(*arguments: Any, **keywords: Any) -> Any:
        return _step(own(), step, arguments, keywords)

    if isinstance(step, types.MethodType):
        made: Any = types.MethodType(functools.wraps(step.__func__)(lambda _, *arguments, **keywords: combined(*arguments, **keywords)), optimizer)
        made.__func__._combines = True
    else:
        made = functools.wraps(step)(combined)
        made._combines = True
    return made


def combine(front: Any, optimizer: Any, member: Member, **own: Any) -> Any:
    """Makes the class ``front`` combine the optimizer's gradients, and returns the optimizer. If this raises, the optimizer is unchanged."""
    inner = _inner(type(optimizer))
    for name in (*own, *vars(CombiningOptimizer)):
        is_its = hasattr(inner, name) or (type(optimizer) is inner and name in vars(optimizer))
        if is_its and not name.startswith("_") and not hasattr(torch.optim.Optimizer, name):
            raise ArgumentError(f"a {inner.__name__} has an attribute {name} already, and ours has the same name\n  hint: rename the attribute")
    _watch_steps()
    former = vars(optimizer).get("_gradients_member")
    if former is not None:
        former.leave()
    try:
        member.join()
        member.gradients.reduction.begin(member.parameters)
    except Exception:
        if former is not None:
            former.join()
        raise
    optimizer.__class__ = _combining(front, inner)
    vars(optimizer).update(own, _gradients_member=member)
    if "step" in vars(optimizer) and not hasattr(optimizer.step, "_combines"):
        optimizer.step = _with_step(optimizer)
    return optimizer


def _follow_groups(optimizer: CombiningOptimizer, member: Member) -> None:
    """Makes the gradients of all parameters travel that the optimizer has now."""
    present = dict.fromkeys(parameters_of(optimizer))
    gone = [parameter for parameter in member.parameters if parameter not in present]
    if gone:
        member.shrink(gone)
    new = [parameter for parameter in present if parameter not in member.parameters]
    if new:
        member.gradients.reduction.names.update(names_of(optimizer))
        member.extend(new)


def _state_of(optimizer: CombiningOptimizer) -> Any:
    """The state that the inner optimizer pickles."""
    state: Any = optimizer.__getstate__()
    return {name: value for name, value in state.items() if name not in optimizer._gradients_own} if isinstance(state, dict) else state


def _fill(made: Any, optimizer: CombiningOptimizer, state: Any, member: Member | None) -> Any:
    """Makes another object of the optimizer's class a copy of it."""
    made.__setstate__(state)
    vars(made).update({name: vars(optimizer)[name] for name in optimizer._gradients_own if name in vars(optimizer)}, _gradients_member=member)
    return made


if TYPE_CHECKING:
    from torch.optim import Optimizer as _Optimizer
else:
    # At run time the base is the inner optimizer's class, which may have another base than PyTorch's optimizers.
    _Optimizer = object


class CombiningOptimizer(_Unannounced, _Optimizer):
    """The methods that an optimizer gets when its gradients are combined. It stays the same object, and an instance of its class."""

    #: None if the optimizer's gradients are not combined: it was closed, or made by ``type(optimizer)(...)``.
    _gradients_member: Member | None = None
    #: True while a step by our method is under way.
    _gradients_steps = False
    #: The names of our attributes.
    _gradients_own: ClassVar[tuple[str, ...]] = ("_gradients_member", "_gradients_steps")

    def __init__(self, *_: Any, **__: Any) -> None:
        """Does nothing: the optimizer was made before."""

    def close(self) -> None:
        """Stops combining gradients: the optimizer is as it was before it was wrapped. Waits for gradients that are under way."""
        member, self._gradients_member = self._gradients_member, None
        if member is not None:
            member.leave()

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that add up before gradients travel."""
        return 1 if self._gradients_member is None else self._gradients_member.passes_per_step

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        if self._gradients_member is not None:
            self._gradients_member.passes_per_step = passes

    @property
    def communicates(self) -> bool:
        """True if gradients travel. Set it to False while gradients of several backward passes add up on this rank; :meth:`no_sync` does so in
        a ``with`` block."""
        return self._gradients_member is not None and self._gradients_member.communicates

    @communicates.setter
    def communicates(self, communicates: bool) -> None:
        if self._gradients_member is not None:
            self._gradients_member.communicates = communicates

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which the gradients of backward passes add up on this rank. The next pass outside it, or ``step``, combines them."""
        communicated, self.communicates = self.communicates, False
        try:
            yield
        finally:
            self.communicates = communicated

    def synchronize(self) -> None:
        """Waits until every gradient is combined. After a backward pass that combines gradients there is nothing to wait for."""
        if self._gradients_member is not None:
            self._gradients_member.synchronize()

    def _step_combined(self, step: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Makes the step of the inner optimizer's class with combined gradients."""
        if self._gradients_member is None:
            return step(*arguments, **keywords)
        # The program may have changed the parameter groups by hand.
        _follow_groups(self, self._gradients_member)
        return self._gradients_member.step(step, arguments, keywords)

    def zero_grad(self, *arguments: Any, **keywords: Any) -> None:
        """Clears gradients, as the inner optimizer does."""
        if self._gradients_member is not None:
            self._gradients_member.gradients.clear()
        super().zero_grad(*arguments, **keywords)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters to the inner optimizer. Every rank must add the same parameters."""
        super().add_param_group(param_group)
        if self._gradients_member is not None:
            _follow_groups(self, self._gradients_member)

    # Copies.

    def __copy__(self) -> Any:
        return _fill(object.__new__(type(self)), self, _state_of(self), self._gradients_member and self._gradients_member.shared())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made: Any = object.__new__(type(self))
        memo[id(self)] = made
        _fill(made, self, copy.deepcopy(_state_of(self), memo), None)
        if self._gradients_member is not None:
            made._gradients_member = self._gradients_member.copied(dict(zip(parameters_of(self), parameters_of(made))))
            made._gradients_member.join()
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _loaded, (_inner(type(self)),), _state_of(self)
