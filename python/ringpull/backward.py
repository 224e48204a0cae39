"""Gradients of PyTorch that are combined over ranks in the backward pass that makes them.

A gradient leaves as soon as the pass has accumulated it, and the pass ends when every gradient is combined: whoever reads one after
``backward()`` reads the same on every rank. A parameter that the pass has not reached here, but perhaps elsewhere, leaves at the end of
the pass as it is, or as zeros. An average is linear and leaves an average as it is, so passes may add up, and a gradient may be averaged
again.

A parameter belongs to one :class:`Gradients`, which has the only hook on it and sends its gradient once, however many optimizers have the
parameter: a new optimizer takes the gradients of its parameters over from former ones, which then share what it combines. An optimizer
has its :class:`Member` of these gradients, and nothing here has the optimizer: hooks go with the last member.

Both :mod:`ringpull.torch` and :mod:`ringpull.horovod.torch` combine gradients so (:mod:`ringpull.combining`); how one travels is theirs.
"""

from __future__ import annotations

import copy
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
import torch.distributed as distributed

from .elastic.in_place import followers
from .errors import ArgumentError

__all__ = ["Gradients", "Member", "Reach", "Reduction", "as_real", "fill"]

#: The frame of a backward function that is written in Python, such as that of a checkpoint, which runs a
#: backward pass in a pass.
_NESTING = vars(torch.autograd.function.BackwardCFunction)["apply"].__code__
_BACKWARD = torch.autograd.backward.__code__
_GRAD = torch.autograd.grad.__code__

# PyTorch's types do not have it.
_engine: Any = vars(torch.autograd.Variable)["_execution_engine"]


#: Modules of PyTorch's that combine the gradients of their parameters.
_COMBINING_MODULES = ("DistributedDataParallel", "FullyShardedDataParallel")

#: What identifies a pass: nothing but its thread before PyTorch 2.0, where those on a GPU are alike.
_present_pass: Callable[[], int] = getattr(vars(torch)["_C"], "_current_graph_task_id", threading.get_ident)

#: The pass that has accumulated a gradient last, and its thread, which is one of PyTorch's own for a gradient on a GPU.
_last_pass = (-1, -1)


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame, that which has called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _node_around() -> Any:
    """The node of another pass that the pass of this thread is part of: the node is being run. None if it is part of none."""
    return next((frame.f_locals["self"] for frame in _outward(sys._getframe()) if frame.f_code is _NESTING), None)


def _threads_in_passes() -> int:
    """Counts the program's threads inside of ``backward()``. Those of PyTorch's engine run nested passes alone."""
    own = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    return sum(ident in own and any(frame.f_code is _BACKWARD for frame in _outward(top)) for ident, top in sys._current_frames().items())


def _is_asked_for_gradients() -> bool:
    """Returns true if a thread is inside of ``torch.autograd.grad()``, which calls hooks and adds to nothing."""
    return any(frame.f_code is _GRAD for top in sys._current_frames().values() for frame in _outward(top))


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as real numbers, if these are complex. A conjugate that is not computed yet is copied."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Writes what :func:`as_real` gave of the tensor, or a copy of it, into the tensor."""
    with torch.no_grad():
        tensor.copy_(torch.view_as_complex(values) if tensor.is_complex() else values)


class Reach:
    """Finds at the end of a pass which gradients have to travel that it has not reached here, but on other ranks."""

    def ask(self, made: Iterable[Any], present: Iterable[Any], watched: Iterable[Any]) -> Callable[[], tuple[set[Any], set[Any]]]:
        """Tells the other ranks which gradients this one's passes have made, and has, of all that it watches. Collective; does not wait.

        Returns a function, which waits and returns the same of all ranks: the gradients that some rank has made, and has.
        """
        raise NotImplementedError


class Reduction:
    """How gradients travel, and what they become. Those that become the same have equal results."""

    #: The parameters that the program has named, for errors.
    names: dict[Any, str]

    def result(self) -> Hashable:
        """Equal for reductions that make the same of a gradient: then one may take the place of the other."""
        raise NotImplementedError

    #: Whether this rank takes part.
    is_included = True
    #: Whether a pass may add to what is combined, which is combined again then. An average stays the same average.
    adds_up = True

    @property
    def reach(self) -> Reach | None:
        """Says what a pass has reached on other ranks, of all reductions that have this one. Without it everything travels."""
        return None

    def name(self, parameters: Mapping[Any, Any]) -> None:
        """Gives keys to parameters that have none. These are all whose gradients travel. Every rank calls it in the same order."""
        raise NotImplementedError

    def is_named(self, parameter: Any) -> bool:
        """Returns true if the parameter's key is of its present type and shape."""
        return True

    def begin(self, parameters: Iterable[Any]) -> None:
        """An optimizer has these parameters now, which have their keys. Collective."""
        raise NotImplementedError

    def zeros(self, parameter: Any) -> Any:
        """A gradient for a parameter that has none here."""
        return torch.zeros_like(parameter)

    def send(self, parameter: Any, again: bool) -> Any:
        """Lets a gradient leave, ``again`` in the same step if it has; returns what :meth:`finish` is given. Does not wait."""
        raise NotImplementedError

    def finish(self, parameter: Any, grad: torch.Tensor, handle: Any) -> None:
        """Waits until ``grad`` is combined, the gradient that has left. The program may have put another in its place."""
        raise NotImplementedError

    def follow(self, parameters: Iterable[Any]) -> None:
        """Forgets what was under way of these when ranks were lost."""

    def copied(self, of: Mapping[Any, Any]) -> Reduction:
        """The same for copies of the parameters, which get their keys when they are first used: a rank may copy alone."""
        raise NotImplementedError


class Member:
    """An optimizer's part in the gradients of its parameters."""

    #: Whether all its gradients are combined, and it has made no step with them.
    is_combined = False

    def __init__(self, parameters: Iterable[Any], reduction: Reduction, passes_per_step: int, communicates: bool = True) -> None:
        if passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step={passes_per_step}: expected 1 or more")
        self.parameters = dict.fromkeys(parameters)
        self.passes_per_step = passes_per_step
        #: Whether gradients travel when a pass ends.
        self.communicates = communicates
        #: Those that it joins, and later those of an optimizer that has taken them over.
        self.gradients = Gradients(reduction)

    def join(self) -> None:
        """Lets gradients travel."""
        self.gradients.join(self)

    def leave(self) -> None:
        """The optimizer needs nothing more to travel."""
        self.gradients.leave(self)

    def extend(self, parameters: list[Any]) -> None:
        """The optimizer has more parameters."""
        self.parameters.update(dict.fromkeys(parameters))
        self.gradients.extend(self, parameters)

    def begin_step(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """The optimizer is about to make a step, with these arguments."""
        closure = arguments[0] if arguments else keywords.get("closure")
        # The backward pass of a closure combines what it makes.
        if not callable(closure) or self.gradients.is_incomplete:
            self.synchronize()

    def step(self, step: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The optimizer's step with gradients that are combined."""
        self.begin_step(arguments, keywords)
        result = step(*arguments, **keywords)
        self.end_step()
        return result

    def synchronize(self) -> None:
        """Waits until every gradient is combined."""
        if self.gradients.is_incomplete or not self.is_combined:
            self.gradients.combine()
        else:
            self.gradients.combine_set_by_hand()

    def end_step(self) -> None:
        """The optimizer has made its step."""
        self.is_combined = False
        self.gradients.end_step()

    def shrink(self, parameters: list[Any]) -> None:
        """The optimizer has these no longer."""
        for parameter in parameters:
            del self.parameters[parameter]
        self.gradients._watch()

    def shared(self) -> Member:
        """The part of another optimizer of the same parameters."""
        member = copy.copy(self)
        member.parameters = dict(self.parameters)
        self.gradients._add(member)
        return member

    def copied(self, of: Mapping[Any, Any]) -> Member:
        """The part of a copy of the optimizer in the gradients of copies of its parameters."""
        reduction = self.gradients.reduction.copied(of)
        member = type(self)([of[parameter] for parameter in of], reduction, self.passes_per_step, self.communicates)
        # A rank may copy alone, so keys are given when the copy is used.
        member.gradients.is_named = False
        return member


#: All that there are in this process.
_every: weakref.WeakSet[Gradients] = weakref.WeakSet()
_numbers = itertools.count()


def _in_order() -> list[Gradients]:
    """All, in the order in which they were made, which is the same on every rank."""
    return sorted(_every, key=lambda one: one._number)


#: Hooks that wait for the end of a pass around one that has ended.
_awaiting: list[Any] = []


def _end_of_pass() -> None:
    """A backward pass that combines has computed everything."""
    opened = [one for one in _in_order() if one._is_open]
    if not opened:
        return
    node = _node_around()
    if node is not None:
        # The pass around it may add to the same gradients, and runs next what follows the node.
        for one in opened:
            one._arrive()
        _awaiting.extend(follower.register_hook(_pass_around_goes_on) for follower, _ in node.next_functions if follower is not None)
        return
    while _awaiting:
        _awaiting.pop().remove()
    _combine([one for one in opened if one._is_last_pass])
    for one in opened:
        one._is_open = False
        one._passes += 1


def _pass_around_goes_on(*_: Any) -> None:
    """Has the end of the pass noticed that goes on here."""
    global _last_pass
    _last_pass = (_present_pass(), threading.get_ident())
    _engine.queue_callback(_end_of_pass)


def _combine(opened: list[Gradients]) -> None:
    """Sends what has not left of these, and of others what a pass has reached on another rank; waits for all.

    A pass may reach some optimizers' parameters on one rank, and others' on another: so all are asked about at once, and
    everything leaves before this rank waits for any.
    """
    for one in opened:
        one._give_names()
    _follow_types(opened)
    asked: list[tuple[Callable[[], tuple[set[Any], set[Any]] | None], list[Gradients]]] = []
    for reach in dict.fromkeys(one.reduction.reach for one in opened):
        if reach is None:
            # All of it travels.
            asked.append((lambda: None, [one for one in opened if one.reduction.reach is None]))
            continue
        every = [one for one in _in_order() if one.reduction.reach is reach and one.is_named]
        made = [parameter for one in every if one in opened for parameter in one._sent]
        present = [*made, *(parameter for one in every if one in opened for parameter in one._trained() if parameter.grad is not None)]
        asked.append((reach.ask(made, present, [parameter for one in every for parameter in one._watched]), every))
    travelling = []
    for answer, every in asked:
        unsent = [[parameter for parameter in one._trained() if parameter not in one._sent and not one._is_final(parameter)] for one in every]
        found = answer() if any(unsent) else None
        _separate(itertools.chain(*unsent))
        for one, left in zip(every, unsent):
            one._made.update(one._sent)
            for parameter in left:
                if found is None or parameter in found[0]:
                    one._made.add(parameter)
                if found is None or parameter in found[1]:
                    one._leave(parameter)
            if one in opened or one._in_flight:
                travelling.append(one)
    for one in travelling:
        one._arrive()
        one._sent.clear()
        one._is_open = one._is_local = False
        for member in one.members():
            member.is_combined = True


def _separate(parameters: Iterable[Any]) -> None:
    """Gives each gradient that the program may have set memory that nothing shares, neither another one nor elements of its own."""
    taken = set()
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and not grad.is_sparse:
            if grad.data_ptr() in taken or 0 in grad.stride():
                parameter.grad = grad.clone(memory_format=torch.contiguous_format)
            taken.add(grad.data_ptr())


def _follow_types(some: list[Gradients]) -> None:
    """Gives parameters of these that have another type or shape another key: all at once, so in one order on every rank."""
    changed = {one.reduction.reach for one in some for parameter in one._watched if not one.reduction.is_named(parameter)}
    for one in _in_order() if changed else ():
        if one.is_named and one.reduction.reach in changed:
            one.reduction.name(one._watched)


def _remove(handles: dict[Any, list[Any]]) -> None:
    for handle in itertools.chain(*handles.values()):
        handle.remove()


class Gradients:
    """The gradients of some optimizers' parameters, combined over ranks."""

    #: Behind process sets, when ranks were lost.
    order = 1

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction
        self._number = next(_numbers)
        self._members: list[weakref.ref[Member]] = []
        #: Each parameter, with the node that accumulates its gradient if that has to be kept.
        self._watched: dict[Any, Any] = {}
        #: Their hooks.
        self._handles: dict[Any, list[Any]] = {}
        #: Gradients that travel, with their handles. None of these may be read or written.
        self._in_flight: dict[Any, tuple[torch.Tensor, Any]] = {}
        #: What has arrived since gradients were cleared.
        self._combined: dict[Any, weakref.ref[torch.Tensor]] = {}
        #: What has left in this pass, and how often each has in this step.
        self._sent: set[Any] = set()
        self._calls: dict[Any, int] = {}
        #: What passes have made on some rank since the last step; whether there was a step since.
        self._made: set[Any] = set()
        self._has_stepped = False
        #: Whether a pass is under way that combines; whether some gradients have been added to and stay here.
        self._is_open = self._is_local = False
        #: Whether nobody else was found who combines them.
        self._is_alone = False
        self._passes = 0
        #: Whether parameters have keys, which those of a copy get when it is first used.
        self.is_named = True
        weakref.finalize(self, _remove, self._handles).atexit = False
        _every.add(self)
        followers.add(self)

    @property
    def is_incomplete(self) -> bool:
        """Whether some gradients are not combined that a pass has made."""
        return self._is_open or self._is_local

    # Whose they are.

    def join(self, member: Member) -> None:
        """Takes the member's parameters over from whoever has them, with the other members that have those."""
        former = self._sharing(member.parameters)
        if former:
            # What is garbage on one rank may not be so on another.
            gc.collect()
            former = self._sharing(member.parameters)
        for other in former:
            self._check(other, member)
        self._add(member)
        for other in former:
            other._arrive()
            self.reduction.names = other.reduction.names | self.reduction.names
            for known in other.members():
                self._add(known)
            self._is_local |= other.is_incomplete
            other._release(list(other._watched))
            other._members.clear()
        self._watch()

    def _sharing(self, parameters: Mapping[Any, Any]) -> list[Gradients]:
        found = [other for other in _every if other is not self and not other._watched.keys().isdisjoint(parameters)]
        return sorted(found, key=lambda other: other._number)

    def _check(self, other: Gradients, member: Member) -> None:
        if other.reduction.result() == self.reduction.result():
            return
        shared = next(parameter for parameter in member.parameters if parameter in other._watched)
        name = self.reduction.names.get(shared) or other._name(shared)
        raise ArgumentError(
            f"the gradient of {name} is combined by another optimizer already, in another way: over other ranks, or by another sum\n"
            "  hint: call close() of that optimizer first, or delete it"
        )

    def _add(self, member: Member) -> None:
        if member not in self.members():
            self._members.append(weakref.ref(member))
        member.gradients = self

    def members(self) -> list[Member]:
        """Those that are left, in the order in which they came."""
        return [member for member in (known() for known in self._members) if member is not None]

    def extend(self, member: Member, parameters: list[Any]) -> None:
        """The member's optimizer has more parameters, whose gradients have not travelled."""
        known = list(self._watched)
        self.join(member)
        self.reduction.begin(parameters)
        if member.is_combined:
            # The others have.
            self._sent.update(known)
            self.combine()

    def leave(self, member: Member) -> None:
        """The member's optimizer needs them no longer."""
        self._arrive()
        self._members = [known for known in self._members if known() is not member]
        self._watch()

    def _watch(self) -> None:
        """Watches the parameters of all members, and no others."""
        wanted = dict.fromkeys(parameter for member in self.members() for parameter in member.parameters)
        self._release([parameter for parameter in self._watched if parameter not in wanted])
        for parameter in wanted:
            if parameter not in self._watched:
                self._watched[parameter] = self._hook(parameter)
                self._is_alone = False
        if self.is_named:
            self.reduction.name(self._watched)

    def _release(self, parameters: list[Any]) -> None:
        for parameter in parameters:
            del self._watched[parameter]
            for handle in self._handles.pop(parameter, []):
                handle.remove()

    def _hook(self, parameter: Any) -> Any:
        # Nothing on a parameter may keep what sends its gradient, or itself.
        own, of = weakref.ref(self), weakref.ref(parameter)

        def calls(method: Callable[[Gradients, Any], None]) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                gradients = own()
                if gradients is not None:
                    method(gradients, of())

            return hook

        # A parameter that is frozen now may be trained later, and can be watched only while it is not.
        trained = parameter.requires_grad
        if not (trained or parameter.is_floating_point() or parameter.is_complex()):
            return None
        parameter.requires_grad_(True)
        try:
            # Before its gradient is added to.
            before = [] if self.reduction.adds_up else [parameter.register_hook(calls(Gradients._check_sum))]
            if hasattr(parameter, "register_post_accumulate_grad_hook"):
                self._handles[parameter] = [parameter.register_post_accumulate_grad_hook(calls(Gradients._ready)), *before]
                return None
            # Before PyTorch 2.1: the node that accumulates the gradient, which lives as long as somebody
            # holds it.
            with torch.enable_grad():
                node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            self._handles[parameter] = [node.register_hook(calls(Gradients._ready)), *before]
            return node
        finally:
            parameter.requires_grad_(trained)

    def _is_last_hook(self, parameter: Any) -> bool:
        """Whether no other hook of the parameter comes after ours, which might change the gradient."""
        handle = self._handles[parameter][0]
        hooks = handle.hooks_dict_ref()
        return not hooks or next(reversed(hooks)) == handle.id

    # Backward passes.

    def _ready(self, parameter: Any) -> None:
        """A backward pass has added to a gradient."""
        members = self.members()
        if len(members) < len(self._members):
            self._members = [weakref.ref(member) for member in members]
            self._watch()
        if parameter not in self._watched:
            return
        if self._has_stepped:
            self._made.clear()
            self._has_stepped = False
        for member in members:
            member.is_combined = False
        if not (self.reduction.is_included and all(member.communicates for member in members)):
            self._is_local = True
            return
        if not self._is_alone:
            self._check_owners()
        self._check_pass(parameter)
        _engine.queue_callback(_end_of_pass)
        self._is_open = True
        if not self._is_last_pass:
            self._is_local = True
        elif self.is_named and self._is_last_hook(parameter):
            self._leave(parameter)

    def _check_owners(self) -> None:
        """Raises an error if a module of `torch.distributed` combines gradients of these: it reads and writes them in the pass, too.

        Nothing at a parameter tells of it. So this looks for such modules, before the first pass, in programs with process groups.
        """
        self._is_alone = True
        if not (distributed.is_available() and distributed.is_initialized()):
            return
        if self._shared_with():
            # A module that was deleted may still be there.
            gc.collect()
        for parameter, module in self._shared_with():
            self._is_alone = False
            raise ArgumentError(
                f"the gradient of {self._name(parameter)} is combined over ranks by {type(module).__name__} too\n"
                "  hint: give the optimizer the model without it, or leave the optimizer as it is"
            )

    def _shared_with(self) -> list[tuple[Any, Any]]:
        """Parameters of ours that modules of `torch.distributed` have, with these modules."""
        modules = [module for module in gc.get_objects() if type(module).__name__ in _COMBINING_MODULES and issubclass(type(module), torch.nn.Module)]
        return [(parameter, module) for module in modules for parameter in module.parameters() if parameter in self._watched]

    def _check_pass(self, parameter: Any) -> None:
        """Raises an error if another pass is under way than the one that has reached the parameter, and none is part of the other."""
        global _last_pass
        was, _last_pass = _last_pass, (_present_pass(), threading.get_ident())
        # On one thread only a pass that has failed, or one that is part of this one, can be the other.
        is_other = was[0] != _last_pass[0] and (was[1] != _last_pass[1] or parameter.is_cuda)
        if is_other and any(one._is_open for one in _every) and _node_around() is None and _threads_in_passes() > 1:
            raise ArgumentError(
                f"a backward pass has reached {self._name(parameter)} while one of another thread is under way\n"
                "  hint: let one thread call backward(): ranks combine the gradients of their passes in one order"
            )

    def _name(self, parameter: Any) -> str:
        return self.reduction.names.get(parameter) or f"a parameter of shape {list(parameter.shape)}"

    def combine(self) -> None:
        """Sends what has not left, and waits for all."""
        if self.reduction.is_included:
            _combine([self])

    def combine_set_by_hand(self) -> None:
        """Combines gradients that no pass has reached on any rank, and the program has set since."""

        def is_set(parameter: Any) -> bool:
            combined = self._combined.get(parameter)
            return parameter.grad is not None and parameter not in self._made and (combined is None or combined() is not parameter.grad)

        if any(is_set(parameter) for parameter in self._trained()):
            # By keys of their own: a rank that sets none makes its next pass meanwhile.
            for parameter in self._watched:
                self._calls.setdefault(parameter, 1)
            self._sent.update(self._made)
            self.combine()

    def _is_final(self, parameter: Any) -> bool:
        """Returns true if the gradient is combined, and must not be so again in this step. One that is zero now is a new one."""
        if self.reduction.adds_up or parameter not in self._combined or parameter.grad is None:
            return False
        values = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
        return bool(values.count_nonzero())

    def _check_sum(self, parameter: Any) -> None:
        """Raises an error if a pass is about to add to what must not be combined again."""
        if self._is_final(parameter) and not _is_asked_for_gradients():
            raise ValueError(
                f"the gradient of {self._name(parameter)} is a sum over the ranks already, and a backward pass adds to it\n"
                "  hint: give backward_passes_per_step, make all passes but the last inside optimizer.no_sync(), or average"
            )

    def _give_names(self) -> None:
        if not self.is_named:
            self.is_named = True
            self.reduction.name(self._watched)

    @property
    def _is_last_pass(self) -> bool:
        """Whether gradients travel in the pass that is under way."""
        return self._passes + 1 >= min((member.passes_per_step for member in self.members()), default=1)

    def _trained(self) -> list[Any]:
        return [parameter for parameter in self._watched if parameter.requires_grad]

    def _leave(self, parameter: Any) -> None:
        if parameter in self._in_flight:
            self._finish(parameter, *self._in_flight.pop(parameter))
        if parameter.grad is None:
            parameter.grad = self.reduction.zeros(parameter)
        if not self.reduction.is_named(parameter):
            _follow_types([self])
        calls = self._calls.get(parameter, 0)
        self._calls[parameter] = calls + 1
        self._sent.add(parameter)
        # Before it is looked at: one that is sent may become a dense one.
        handle = self.reduction.send(parameter, calls > 0)
        self._in_flight[parameter] = parameter.grad, handle

    def _arrive(self) -> None:
        in_flight, self._in_flight = self._in_flight, {}
        for parameter, travelled in in_flight.items():
            self._finish(parameter, *travelled)

    def _finish(self, parameter: Any, grad: torch.Tensor, handle: Any) -> None:
        is_grad = parameter.grad is grad
        self.reduction.finish(parameter, grad, handle)
        self._combined[parameter] = weakref.ref(parameter.grad if is_grad else grad)

    # Steps.

    def end_step(self) -> None:
        """A member's optimizer has made its step."""
        self._calls.clear()
        self._combined.clear()
        self._passes = 0
        self._has_stepped = True

    def clear(self) -> None:
        """Gradients are about to become zero, or None."""
        # Of a pass that an exception has ended.
        self._arrive()
        self._is_open = self._is_local = False
        self._passes = 0
        self._sent.clear()
        self._made.clear()
        self._combined.clear()
        for member in self.members():
            member.is_combined = False

    def follow(self) -> None:
        """Forgets a step that the loss of other ranks has cut short, with its gradients."""
        for parameter in self._watched:
            parameter.grad = None
        self._in_flight.clear()
        self.clear()
        self.end_step()
        self.reduction.follow(self._watched)
