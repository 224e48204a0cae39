"""The optimizer whose gradients are reduced over the ranks."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ...backward import Member, Reduction, as_real, fill
from ...combining import CombiningOptimizer, combine, names_of, parameters_of
from ..basics import Adasum, Average, Sum
from ..process_sets import ProcessSet, global_process_set
from .compression import Compression, Compressor
from .mpi_ops import (
    allreduce_async,
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)

__all__ = ["DistributedOptimizer"]


def _named(optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, torch.Tensor]] | None) -> dict[Any, str]:
    """The names that the program has given to parameters."""
    if given is None:
        return names_of(optimizer)
    parameters, pairs = parameters_of(optimizer), list(given)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError("named_parameters has an item that is no pair of a name and a parameter\n  hint: give model.named_parameters()")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"named_parameters has several parameters of one name: {', '.join(twice)}\n  hint: give the names of each model a prefix of its own")
    found = {parameter: name for name, parameter in pairs}
    missing = sum(parameter not in found for parameter in parameters)
    if missing:
        raise ValueError(f"named_parameters lacks {missing} of the optimizer's {len(parameters)} parameters\n  hint: give model.named_parameters() of all, or none")
    return found


class _Group:
    """Parameters whose gradients are sent together, when all are ready."""

    def __init__(self, members: list[Any]) -> None:
        self.members = members
        self.name = ""
        #: Gradients that are ready.
        self.present: dict[Any, torch.Tensor] = {}
        #: The operation under way: the parameters, their gradients, the handle and the contexts that decompress the results.
        self.operation: tuple[list[Any], list[torch.Tensor], Any, list[Any]] | None = None


#: For each communicator and each name, the number of optimizers so far that have a parameter of this name.
_counts: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


class _Allreduce(Reduction):
    """Reduces gradients by Horovod's operations, each under its own name."""

    def __init__(
        self,
        names: dict[Any, str],
        compression: type[Compressor],
        op: int,
        predivide: float,
        groups: list[list[Any]],
        sparse_as_dense: bool,
        process_set: ProcessSet,
        is_sparse: bool,
    ) -> None:
        self.names, self.process_set, self._op = names, process_set, op
        self._compression, self._predivide = compression, predivide
        self._sparse_as_dense, self._is_sparse = sparse_as_dense, is_sparse
        #: The number of sparse dimensions of each sparse gradient that travels as a dense one.
        self._were_sparse: dict[Any, int] = {}
        self._groups = [_Group(members) for members in groups]
        self._of = {parameter: group for group in self._groups for parameter in group.members}
        #: The names of the parameters' operations. Each optimizer has other names.
        self.called: dict[Any, str] = {}

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return self._op == Average

    @property
    def is_included(self) -> bool:  # type: ignore[override]
        return self.process_set.process_set_id is None or self.process_set.included()

    def result(self) -> Hashable:
        # Summing a sum again gives another sum, so a sum is equal to no other reduction.
        return ("average", tuple(self.process_set.ranks or ())) if self._op == Average else self

    def name(self, parameters: Mapping[Any, Any]) -> None:
        if not self.is_included:
            return
        counts = _counts.setdefault(self.process_set.comm(), Counter())
        for parameter in parameters:
            if parameter not in self.called:
                name = self.names.get(parameter, f"noname.{len(self.called)}")
                # Only parameters of this name count: ranks may make optimizers with other names in another order, or more of them.
                counts[name] += 1
                self.called[parameter] = f"optimizer{counts[name]}.{name}"
        for number, group in enumerate(self._groups):
            group.members = [parameter for parameter in group.members if parameter in parameters]
            if group.members and not group.name:
                group.name = f"{self.called[group.members[0]]}.group.{number}"

    def begin(self, parameters: Iterable[Any]) -> None:
        # As in Horovod, a gradient that is never computed is zero.
        for parameter in parameters:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = self.zeros(parameter)

    def zeros(self, parameter: Any) -> Any:
        zeros = torch.zeros_like(parameter)
        return zeros.to_sparse(1) if self._is_sparse else zeros

    def _scales(self) -> dict[str, Any]:
        """Divides in two parts, before and after the sum, so that neither part overflows."""
        if self._op != Average or self._predivide == 1.0:
            return {}
        return {"prescale_factor": 1.0 / self._predivide, "postscale_factor": self._predivide}

    def send(self, parameter: Any, again: bool) -> Any:
        name = self.called[parameter]
        # Ranks that make different numbers of passes in a step must not add gradients of different steps.
        more = ".again" if again else ""
        group = self._of.get(parameter)
        if parameter.grad.is_sparse:
            if not self._sparse_as_dense:
                if group is not None:
                    raise ValueError(
                        f"the gradient of {self.names.get(parameter, name)} is sparse, and a sparse gradient cannot be in a group\n"
                        "  hint: leave it out of groups, or give sparse_as_dense=True"
                    )
                return sparse_allreduce_async(parameter.grad, name + more, self._op, self.process_set), None
            self._were_sparse[parameter] = parameter.grad.sparse_dim()
            parameter.grad = parameter.grad.to_dense()
        if group is not None:
            group.present[parameter] = parameter.grad
            # A parameter that is frozen now has no gradient.
            members = [one for one in group.members if one.requires_grad]
            # If an exception has ended a pass, `present` may have tensors of it that are no longer gradients.
            if all(one in group.present and group.present[one] is one.grad for one in members):
                self._send_group(group, members, more)
            return group, None
        compressed, context = self._compression.compress(as_real(parameter.grad.data))
        start = allreduce_async_ if compressed.data_ptr() == parameter.grad.data_ptr() else allreduce_async
        return start(compressed, name=name + more, op=self._op, process_set=self.process_set, **self._scales()), context

    def _send_group(self, group: _Group, members: list[Any], more: str) -> None:
        grads = [group.present[parameter] for parameter in members]
        pairs = [self._compression.compress(as_real(grad)) for grad in grads]
        operation = grouped_allreduce_async_(
            [compressed for compressed, _ in pairs], name=group.name + more, op=self._op, process_set=self.process_set, **self._scales()
        )
        group.operation, group.present = (members, grads, operation, [context for _, context in pairs]), {}

    def finish(self, parameter: Any, grad: torch.Tensor, handle: Any) -> None:
        operation, context = handle
        if not isinstance(operation, _Group):
            self._store(parameter, grad, synchronize(operation), context)
        elif operation.operation is not None:
            (members, grads, whole, contexts), operation.operation = operation.operation, None
            for one, of_one, reduced, its_context in zip(members, grads, synchronize(whole), contexts):
                self._store(one, of_one, reduced, its_context)

    def _store(self, parameter: Any, grad: torch.Tensor, reduced: torch.Tensor, context: Any) -> None:
        became = reduced
        if not reduced.is_sparse:
            value, became = self._compression.decompress(reduced, context), grad
            if value.data_ptr() != grad.data_ptr():
                fill(grad.data, value)
            if parameter in self._were_sparse:
                became = grad.to_sparse(self._were_sparse.pop(parameter))
        if parameter.grad is grad:
            parameter.grad = became

    def step_by_adasum(self, parameters: Iterable[Any], step: Callable[[], Any]) -> Any:
        """Makes a step, and combines by Adasum the changes that it makes to the parameters."""
        if not self.is_included:
            return step()
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        before = [parameter.detach().clone() for parameter in trained]
        result = step()
        with torch.no_grad():
            started = []
            for parameter, old in zip(trained, before):
                change, context = self._compression.compress(as_real(parameter - old))
                name = f"{self.called[parameter]}.delta"
                started.append((allreduce_async(change, name=name, op=Adasum, process_set=self.process_set), context))
            for parameter, old, (operation, context) in zip(trained, before, started):
                as_real(parameter).copy_(as_real(old) + self._compression.decompress(synchronize(operation), context))
        return result

    def follow(self, parameters: Iterable[Any]) -> None:
        self._were_sparse.clear()
        for group in self._groups:
            group.present, group.operation = {}, None
        self.begin(parameters)

    def copied(self, of: Mapping[Any, Any]) -> _Allreduce:
        return _Allreduce(
            {of[parameter]: name for parameter, name in self.names.items() if parameter in of},
            self._compression,
            self._op,
            self._predivide,
            [[of[parameter] for parameter in group.members if parameter in of] for group in self._groups],
            self._sparse_as_dense,
            self.process_set,
            self._is_sparse,
        )


class _AdasumMember(Member):
    """Sends the changes that a step makes to the parameters, and no gradients."""

    def join(self) -> None:
        if self.gradients.is_named:
            self.gradients.reduction.name(self.parameters)

    def leave(self) -> None:
        """Does nothing: nothing travels between steps."""

    def extend(self, parameters: list[Any]) -> None:
        self.parameters.update(dict.fromkeys(parameters))
        self.join()

    def synchronize(self) -> None:
        """Does nothing: gradients do not travel."""

    def begin_step(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        raise ValueError("this method step was read from the optimizer before the optimizer was wrapped, so Adasum would not combine what it does\n  hint: call the step of the wrapped optimizer")

    def step(self, step: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        reduction: Any = self.gradients.reduction
        self.gradients.is_named = True
        self.join()
        return reduction.step_by_adasum(self.parameters, lambda: step(*arguments, **keywords))


class _DistributedOptimizer(CombiningOptimizer):
    """The methods that :func:`DistributedOptimizer` adds to the class of an optimizer."""

    process_set: ProcessSet
    _synchronizes = True
    _is_synchronized = False
    _gradients_own = (*CombiningOptimizer._gradients_own, "process_set", "_synchronizes", "_is_synchronized")

    @property
    def _parameter_names(self) -> dict[Any, str]:
        """The names of operations, in the attribute in which Horovod has them."""
        reduction: Any = None if self._gradients_member is None else self._gradients_member.gradients.reduction
        called: dict[Any, str] = getattr(reduction, "called", {})
        return called

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes the number of backward passes that add up before gradients travel."""
        self.backward_passes_per_step = passes

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which ``step`` does not synchronize. Use it after a call of ``synchronize``."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def synchronize(self) -> None:
        """Waits until every gradient is reduced."""
        super().synchronize()
        self._is_synchronized = True

    def _step_combined(self, step: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._synchronizes and self._is_synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): it synchronizes again",
                stacklevel=3,
            )
        self._is_synchronized = False
        if self._synchronizes or self._gradients_member is None:
            return super()._step_combined(step, arguments, keywords)
        result = step(*arguments, **keywords)
        self._gradients_member.end_step()
        return result


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Makes the backward pass reduce the gradients of an optimizer over the ranks by ``op``, and returns the optimizer.

    Gradients of ``backward_passes_per_step`` passes add up before they travel. An average is divided by ``gradient_predivide_factor``
    before the sum, and by the number of ranks over this factor after it. ``groups`` is a list of lists of parameters whose gradients travel
    together, or the number of such lists to make. With ``sparse_as_dense`` sparse gradients travel as dense ones, and become sparse again
    after the sum. With ``op=Adasum`` the changes of the steps are combined, not the gradients.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor={gradient_predivide_factor} needs op=Average\n  hint: leave it out, or give op=hvd.Average")
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op={op!r} is not supported for gradients\n  hint: give hvd.Average, hvd.Sum or hvd.Adasum")
    if num_groups:
        warnings.warn("num_groups is Horovod's old name of groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    trained = [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]
    names = _named(optimizer, named_parameters)
    lists: list[list[Any]] = []
    if isinstance(groups, bool) or not isinstance(groups, (int, list, tuple, type(None))):
        raise ValueError(f"invalid groups={groups!r}\n  hint: give their number, or a list of lists of parameters")
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"invalid groups={groups}\n  hint: give a number that is not negative")
        # The lists have the parameters in the given order, and their lengths differ by at most one.
        lists = [trained[at * len(trained) // groups : (at + 1) * len(trained) // groups] for at in range(groups)]
    elif groups is not None:
        lists = [[parameter for parameter in members if parameter.requires_grad] for members in groups]
        every = [parameter for members in lists for parameter in members]
        if len(set(every)) != len(every):
            raise ValueError("groups has a parameter in two lists\n  hint: put each parameter in at most one list")
    is_sparse = isinstance(optimizer, torch.optim.SparseAdam)
    reduction = _Allreduce(names, compression, op, gradient_predivide_factor, lists, sparse_as_dense, process_set, is_sparse)
    kind = _AdasumMember if op == Adasum else Member
    member = kind(parameters_of(optimizer), reduction, backward_passes_per_step)
    return combine(_DistributedOptimizer, optimizer, member, process_set=process_set)
