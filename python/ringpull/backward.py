"""Combines PyTorch's gradients over ranks during the backward pass that makes them.

A gradient is sent as soon as the pass has accumulated it, and the pass ends when every gradient is combined. So after ``backward()`` a
program reads the same gradients on every rank. If the pass has not reached a parameter on this rank, it may have reached it on another
rank: then this rank sends the parameter's present gradient, or zeros, at the end of the pass. Averages are linear, and averaging an average
again does not change it. So passes may add up, and a gradient may be averaged again.

A parameter belongs to one :class:`Gradients`, which has the only hook on the parameter and sends its gradient once, even if several
optimizers have the parameter. A new optimizer takes the gradients of its parameters over from the earlier optimizers, which then share its
:class:`Gradients`. Each optimizer has a :class:`Member` there, and nothing here holds the optimizer: the hooks are removed with the last
member.

:mod:`ringpull.torch` and :mod:`ringpull.horovod.torch` combine gradients in this way (:mod:`ringpull.combining`). Each of them defines how
a gradient travels.
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

#: The code of a backward function that is written in Python. Such a function may run a nested backward pass, as that of a checkpoint
#: does.
_NESTING = vars(torch.autograd.function.BackwardCFunction)["apply"].__code__
_BACKWARD = torch.autograd.backward.__code__
_GRAD = torch.autograd.grad.__code__

# PyTorch's type stubs do not have this attribute.
_engine: Any = vars(torch.autograd.Variable)["_execution_engine"]


#: Modules of PyTorch that combine the gradients of their parameters over processes.
_COMBINING_MODULES = ("DistributedDataParallel", "FullyShardedDataParallel")

#: The identity of the present pass. Before PyTorch 2.0 this is only its thread, so passes on a GPU cannot be told apart.
_present_pass: Callable[[], int] = getattr(vars(torch)["_C"], "_current_graph_task_id", threading.get_ident)

#: The pass that has accumulated a gradient last, and its thread. For a gradient on a GPU this is a thread of PyTorch's own.
_last_pass = (-1, -1)


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame, then its caller's frame, and so on outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _node_around() -> Any:
    """The node of an outer pass inside which this thread's pass runs. None if the pass is not nested."""
    return next((frame.f_locals["self"] for frame in _outward(sys._getframe()) if frame.f_code is _NESTING), None)


def _threads_in_passes() -> int:
    """Counts the program's threads that are inside ``backward()``. Threads of PyTorch's engine do not count: they run only nested passes."""
    own = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    return sum(ident in own and any(frame.f_code is _BACKWARD for frame in _outward(top)) for ident, top in sys._current_frames().items())


def _is_asked_for_gradients() -> bool:
    """Returns True if a thread is inside ``torch.autograd.grad()``, which calls hooks but adds to no gradient."""
    return any(frame.f_code is _GRAD for top in sys._current_frames().values() for frame in _outward(top))


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory; if it is complex, as real numbers. A conjugate that is not computed yet is copied."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Writes the values into the tensor. They have the form that :func:`as_real` returns for it."""
    with torch.no_grad():
        tensor.copy_(torch.view_as_complex(values) if tensor.is_complex() else values)


class Reach:
    """Finds, at the end of a pass, the gradients that the pass has reached on other ranks but not here: these have to travel too."""

    def ask(self, made: Iterable[Any], present: Iterable[Any], watched: Iterable[Any]) -> Callable[[], tuple[set[Any], set[Any]]]:
        """Tells the other ranks which of the watched gradients this rank's passes have made, and which exist here. Collective. Does not wait.

        Returns a function that waits, and returns two sets: the gradients that some rank's passes have made, and those that exist on some
        rank.
        """
        raise NotImplementedError


class Reduction:
    """A way to combine gradients over ranks."""

    #: The names that the program has given to parameters, for errors.
    names: dict[Any, str]

    def result(self) -> Hashable:
        """A value that is equal for reductions with equal results. Such reductions may replace each other."""
        raise NotImplementedError

    #: True if this rank takes part.
    is_included = True
    #: True if a pass may add to a combined gradient, which is then combined again. An average allows this: averaged again, it does not change.
    adds_up = True

    @property
    def reach(self) -> Reach | None:
        """The :class:`Reach` that finds the gradients that a pass has reached on other ranks. Several reductions may share one. If it is
        None, all gradients travel."""
        return None

    def name(self, parameters: Mapping[Any, Any]) -> None:
        """Gives keys to those of the parameters that have none. ``parameters`` are all whose gradients travel. All ranks make these calls in
        the same order."""
        raise NotImplementedError

    def is_named(self, parameter: Any) -> bool:
        """Returns True if the parameter's key has the parameter's present type and shape."""
        return True

    def begin(self, parameters: Iterable[Any]) -> None:
        """Records that an optimizer now has these parameters. They have keys already. Collective."""
        raise NotImplementedError

    def zeros(self, parameter: Any) -> Any:
        """A zero gradient for a parameter that has no gradient on this rank."""
        return torch.zeros_like(parameter)

    def send(self, parameter: Any, again: bool) -> Any:
        """Starts to send a gradient, and returns a handle for :meth:`finish`. Does not wait. ``again`` is True if the gradient was sent
        before in the same step."""
        raise NotImplementedError

    def finish(self, parameter: Any, grad: torch.Tensor, handle: Any) -> None:
        """Waits until ``grad``, the gradient that was sent, is combined. The parameter may have another gradient by now."""
        raise NotImplementedError

    def follow(self, parameters: Iterable[Any]) -> None:
        """Forgets the operations on these parameters that were under way when ranks were lost."""

    def copied(self, of: Mapping[Any, Any]) -> Reduction:
        """A copy of this reduction for copies of the parameters. These get keys when they are first used, since a rank may copy alone."""
        raise NotImplementedError


class Member:
    """An optimizer's part in the gradients of its parameters."""

    #: True if all the optimizer's gradients are combined, and it has not yet made a step with them.
    is_combined = False

    def __init__(self, parameters: Iterable[Any], reduction: Reduction, passes_per_step: int, communicates: bool = True) -> None:
        if passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step={passes_per_step}: expected 1 or more")
        self.parameters = dict.fromkeys(parameters)
        self.passes_per_step = passes_per_step
        #: True if gradients travel when a pass ends.
        self.communicates = communicates
        #: The gradients that this member joins; later those of an optimizer that has taken them over.
        self.gradients = Gradients(reduction)

    def join(self) -> None:
        """Makes the optimizer's gradients travel from now on."""
        self.gradients.join(self)

    def leave(self) -> None:
        """Ends the optimizer's part: it needs no more gradients to travel."""
        self.gradients.leave(self)

    def extend(self, parameters: list[Any]) -> None:
        """Adds parameters that the optimizer has got."""
        self.parameters.update(dict.fromkeys(parameters))
        self.gradients.extend(self, parameters)

    def begin_step(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Prepares for a step that the optimizer is about to make with these arguments."""
        closure = arguments[0] if arguments else keywords.get("closure")
        # With a closure there is no need to wait: the closure's backward pass combines its gradients.
        if not callable(closure) or self.gradients.is_incomplete:
            self.synchronize()

    def step(self, step: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Makes the optimizer's step, with combined gradients."""
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
        """Records that the optimizer has made its step."""
        self.is_combined = False
        self.gradients.end_step()

    def shrink(self, parameters: list[Any]) -> None:
        """Removes parameters that the optimizer no longer has."""
        for parameter in parameters:
            del self.parameters[parameter]
        self.gradients._watch()

    def shared(self) -> Member:
        """A member for another optimizer of the same parameters."""
        member = copy.copy(self)
        member.parameters = dict(self.parameters)
        self.gradients._add(member)
        return member

    def copied(self, of: Mapping[Any, Any]) -> Member:
        """A member for a copy of the optimizer, with copies of its parameters."""
        reduction = self.gradients.reduction.copied(of)
        member = type(self)([of[parameter] for parameter in of], reduction, self.passes_per_step, self.communicates)
        # A rank may copy alone, so keys are given when the copy is used.
        member.gradients.is_named = False
        return member


#: All :class:`Gradients` of this process.
_every: weakref.WeakSet[Gradients] = weakref.WeakSet()
_numbers = itertools.count()


def _in_order() -> list[Gradients]:
    """All :class:`Gradients`, in the order in which they were made. This order is the same on every rank."""
    return sorted(_every, key=lambda one: one._number)


#: Hooks in an outer pass. They wait until it goes on after a nested pass.
_awaiting: list[Any] = []


def _end_of_pass() -> None:
    """Combines the gradients of a backward pass. Called when the pass has computed everything."""
    opened = [one for one in _in_order() if one._is_open]
    if not opened:
        return
    node = _node_around()
    if node is not None:
        # The outer pass may add to the same gradients. It next runs the functions that follow the node.
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
    """Makes the end of the outer pass, which goes on here, call :func:`_end_of_pass`."""
    global _last_pass
    _last_pass = (_present_pass(), threading.get_ident())
    _engine.queue_callback(_end_of_pass)


def _combine(opened: list[Gradients]) -> None:
    """Sends the gradients of `opened` that are not sent yet, and gradients of others that a pass has reached on another rank. Waits for all.

    A pass may reach the parameters of one optimizer on one rank, and those of another optimizer on another rank. So this asks about all
    gradients at once, and sends all before it waits for any.
    """
    for one in opened:
        one._give_names()
    _follow_types(opened)
    asked: list[tuple[Callable[[], tuple[set[Any], set[Any]] | None], list[Gradients]]] = []
    for reach in dict.fromkeys(one.reduction.reach for one in opened):
        if reach is None:
            # Without a reach, all gradients travel.
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
    """Gives each gradient memory of its own. The program may have set gradients that share memory, or whose elements do."""
    taken = set()
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and not grad.is_sparse:
            if grad.data_ptr() in taken or 0 in grad.stride():
                parameter.grad = grad.clone(memory_format=torch.contiguous_format)
            taken.add(grad.data_ptr())


def _follow_types(some: list[Gradients]) -> None:
    """Gives a new key to each parameter whose type or shape has changed. It does so for all at once, so that the order is the same on
    every rank."""
    changed = {one.reduction.reach for one in some for parameter in one._watched if not one.reduction.is_named(parameter)}
    for one in _in_order() if changed else ():
        if one.is_named and one.reduction.reach in changed:
            one.reduction.name(one._watched)


def _remove(handles: dict[Any, list[Any]]) -> None:
    for handle in itertools.chain(*handles.values()):
        handle.remove()


class Gradients:
    """The gradients of some optimizers' parameters, combined over ranks."""

    #: After a loss of ranks, gradients are renewed after process sets.
    order = 1

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction
        self._number = next(_numbers)
        self._members: list[weakref.ref[Member]] = []
        #: Each parameter, with the node that accumulates its gradient if that has to be kept.
        self._watched: dict[Any, Any] = {}
        #: The hooks of the watched parameters.
        self._handles: dict[Any, list[Any]] = {}
        #: Gradients that are under way, with their handles. They must not be read or written.
        self._in_flight: dict[Any, tuple[torch.Tensor, Any]] = {}
        #: The gradients that were combined since gradients were cleared.
        self._combined: dict[Any, weakref.ref[torch.Tensor]] = {}
        #: The parameters whose gradients were sent in this pass.
        self._sent: set[Any] = set()
        #: For each parameter, the number of times that its gradient was sent in this step.
        self._calls: dict[Any, int] = {}
        #: The parameters whose gradients passes have made, on some rank, since the last step.
        self._made: set[Any] = set()
        #: True if a step was made since the last pass.
        self._has_stepped = False
        #: `_is_open`: a pass that combines is under way. `_is_local`: a pass has added to some gradients that were not sent.
        self._is_open = self._is_local = False
        #: True if a search has found no module that combines the same gradients.
        self._is_alone = False
        self._passes = 0
        #: True if parameters have keys. Parameters of a copied optimizer get keys when it is first used.
        self.is_named = True
        weakref.finalize(self, _remove, self._handles).atexit = False
        _every.add(self)
        followers.add(self)

    @property
    def is_incomplete(self) -> bool:
        """Returns True if a pass has made gradients that are not combined."""
        return self._is_open or self._is_local

    # Members.

    def join(self, member: Member) -> None:
        """Takes the member's parameters over from other :class:`Gradients` that have them, together with all members of these."""
        former = self._sharing(member.parameters)
        if former:
            # An optimizer that one rank has collected as garbage may still exist on another.
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
            f"the gradient of {name} is already combined by another optimizer in another way: over other ranks, or by another reduction\n"
            "  hint: call close() of that optimizer first, or delete it"
        )

    def _add(self, member: Member) -> None:
        if member not in self.members():
            self._members.append(weakref.ref(member))
        member.gradients = self

    def members(self) -> list[Member]:
        """The members that still exist, in the order in which they joined."""
        return [member for member in (known() for known in self._members) if member is not None]

    def extend(self, member: Member, parameters: list[Any]) -> None:
        """Adds parameters that the member's optimizer has got. Their gradients have not been sent."""
        known = list(self._watched)
        self.join(member)
        self.reduction.begin(parameters)
        if member.is_combined:
            # The gradients of the other parameters have been sent.
            self._sent.update(known)
            self.combine()

    def leave(self, member: Member) -> None:
        """Removes the member: its optimizer needs these gradients no longer."""
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
        # A hook on a parameter must keep neither these gradients nor the parameter alive.
        own, of = weakref.ref(self), weakref.ref(parameter)

        def calls(method: Callable[[Gradients, Any], None]) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                gradients = own()
                if gradients is not None:
                    method(gradients, of())

            return hook

        # A parameter that is frozen now may be trained later, and a hook can be set only while it is not frozen.
        trained = parameter.requires_grad
        if not (trained or parameter.is_floating_point() or parameter.is_complex()):
            return None
        parameter.requires_grad_(True)
        try:
            # This hook runs before the pass adds to the parameter's gradient.
            before = [] if self.reduction.adds_up else [parameter.register_hook(calls(Gradients._check_sum))]
            if hasattr(parameter, "register_post_accumulate_grad_hook"):
                self._handles[parameter] = [parameter.register_post_accumulate_grad_hook(calls(Gradients._ready)), *before]
                return None
            # Before PyTorch 2.1 the hook is on the node that accumulates the gradient. The node lives only while somebody holds it.
            with torch.enable_grad():
                node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            self._handles[parameter] = [node.register_hook(calls(Gradients._ready)), *before]
            return node
        finally:
            parameter.requires_grad_(trained)

    def _is_last_hook(self, parameter: Any) -> bool:
        """Returns True if no other hook of the parameter comes after ours. Such a hook might change the gradient."""
        handle = self._handles[parameter][0]
        hooks = handle.hooks_dict_ref()
        return not hooks or next(reversed(hooks)) == handle.id

    # Backward passes.

    def _ready(self, parameter: Any) -> None:
        """Sends a gradient if it is complete. Called when a backward pass has added to it."""
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
        """Raises an error if a module of `torch.distributed` combines some of these gradients too: it would read and write them in the same
        pass.

        A parameter does not show that such a module has it. So this looks for such modules before the first pass, in programs with process
        groups.
        """
        self._is_alone = True
        if not (distributed.is_available() and distributed.is_initialized()):
            return
        if self._shared_with():
            # The module may have been deleted, and not yet collected as garbage.
            gc.collect()
        for parameter, module in self._shared_with():
            self._is_alone = False
            raise ArgumentError(
                f"the gradient of {self._name(parameter)} is combined over ranks by {type(module).__name__} too\n"
                f"  hint: give the optimizer the model without {type(module).__name__}, or do not wrap the optimizer"
            )

    def _shared_with(self) -> list[tuple[Any, Any]]:
        """The watched parameters that modules of `torch.distributed` have too, each with its module."""
        modules = [module for module in gc.get_objects() if type(module).__name__ in _COMBINING_MODULES and issubclass(type(module), torch.nn.Module)]
        return [(parameter, module) for module in modules for parameter in module.parameters() if parameter in self._watched]

    def _check_pass(self, parameter: Any) -> None:
        """Raises an error if, beside the pass that has reached the parameter, another pass is under way and neither is nested in the other."""
        global _last_pass
        was, _last_pass = _last_pass, (_present_pass(), threading.get_ident())
        # On the same thread the other pass can only be one that has failed, or one that is nested in this one.
        is_other = was[0] != _last_pass[0] and (was[1] != _last_pass[1] or parameter.is_cuda)
        if is_other and any(one._is_open for one in _every) and _node_around() is None and _threads_in_passes() > 1:
            raise ArgumentError(
                f"a backward pass has reached {self._name(parameter)} while another thread's backward pass is under way\n"
                "  hint: let one thread call backward(): ranks combine the gradients of their passes in one order"
            )

    def _name(self, parameter: Any) -> str:
        return self.reduction.names.get(parameter) or f"a parameter of shape {list(parameter.shape)}"

    def combine(self) -> None:
        """Sends the gradients that are not sent yet, and waits for all."""
        if self.reduction.is_included:
            _combine([self])

    def combine_set_by_hand(self) -> None:
        """Combines gradients that the program has set, and that no pass has made on any rank."""

        def is_set(parameter: Any) -> bool:
            combined = self._combined.get(parameter)
            return parameter.grad is not None and parameter not in self._made and (combined is None or combined() is not parameter.grad)

        if any(is_set(parameter) for parameter in self._trained()):
            # They get keys of their own, because a rank that sets no gradients may make its next pass meanwhile.
            for parameter in self._watched:
                self._calls.setdefault(parameter, 1)
            self._sent.update(self._made)
            self.combine()

    def _is_final(self, parameter: Any) -> bool:
        """Returns True if the gradient is combined, and must not be combined again in this step. A gradient that is zero now counts as a
        new one."""
        if self.reduction.adds_up or parameter not in self._combined or parameter.grad is None:
            return False
        values = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
        return bool(values.count_nonzero())

    def _check_sum(self, parameter: Any) -> None:
        """Raises an error if a pass is about to add to a gradient that must not be combined again."""
        if self._is_final(parameter) and not _is_asked_for_gradients():
            raise ValueError(
                f"the gradient of {self._name(parameter)} is already summed over the ranks, and a backward pass adds to it\n"
                "  hint: give backward_passes_per_step, make all passes but the last inside optimizer.no_sync(), or use an average"
            )

    def _give_names(self) -> None:
        if not self.is_named:
            self.is_named = True
            self.reduction.name(self._watched)

    @property
    def _is_last_pass(self) -> bool:
        """Returns True if gradients travel in the pass that is under way."""
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
        # `send` comes before `parameter.grad` is read, because it may replace a sparse gradient by a dense one.
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
        """Records that a member's optimizer has made its step."""
        self._calls.clear()
        self._combined.clear()
        self._passes = 0
        self._has_stepped = True

    def clear(self) -> None:
        """Forgets the gradients, which are about to become zero or None."""
        # Gradients may still be under way if an exception has ended a pass.
        self._arrive()
        self._is_open = self._is_local = False
        self._passes = 0
        self._sent.clear()
        self._made.clear()
        self._combined.clear()
        for member in self.members():
            member.is_combined = False

    def follow(self) -> None:
        """Forgets a step that a loss of ranks has interrupted, and its gradients."""
        for parameter in self._watched:
            parameter.grad = None
        self._in_flight.clear()
        self.clear()
        self.end_step()
        self.reduction.follow(self._watched)
