"""The optimizer whose gradients are reduced over the ranks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ...backward import CombiningOptimizer
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
    """Every parameter's name."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if given is None:
        return {parameter: f"noname.{at}" for at, parameter in enumerate(parameters)}
    pairs = list(given)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError("named_parameters has something else than pairs of a name and a parameter\n  hint: give model.named_parameters()")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"named_parameters has several parameters of one name: {', '.join(twice)}\n  hint: put a prefix for each model before its names")
    found = {parameter: name for name, parameter in pairs}
    missing = sum(parameter not in found for parameter in parameters)
    if missing:
        raise ValueError(f"named_parameters lacks {missing} of the optimizer's {len(parameters)} parameters\n  hint: give model.named_parameters() of all, or none")
    return found


class _Member:
    """A gradient that leaves with the others of its group."""

    def __init__(self, group: _Group) -> None:
        self.group = group


class _Group:
    """Parameters whose gradients leave together, when the last is there."""

    def __init__(self, number: int, members: list[Any]) -> None:
        self.number, self.members = number, members
        self.present: list[Any] = []
        self.operation: Any = None


class _DistributedOptimizer(CombiningOptimizer):
    """What :func:`DistributedOptimizer` returns."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: dict[Any, str],
        compression: type[Compressor],
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: list[list[Any]],
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._parameter_names = names
        self._compression = compression
        self._op = op
        self._predivide = gradient_predivide_factor
        self._sparse_as_dense = sparse_as_dense
        #: How many sparse dimensions gradients had that travel as dense ones.
        self._were_sparse: dict[Any, int] = {}
        self.process_set = process_set
        self._of: dict[Any, _Group] = {}
        for number, members in enumerate(groups):
            group = _Group(number, members)
            self._of |= dict.fromkeys(members, group)
        self._synchronizes = True
        self._is_synchronized = False
        super().__init__(optimizer, backward_passes_per_step)
        self.communicates = process_set.included()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes add up before gradients travel."""
        self.backward_passes_per_step = passes

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, ``step`` does not synchronize: to be used where ``synchronize`` was called."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def synchronize(self) -> None:
        """Waits until every gradient is reduced."""
        if self.process_set.included():
            super().synchronize()
        self._is_synchronized = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's step with gradients that are reduced."""
        if self._synchronizes and self._is_synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): it synchronizes again",
                stacklevel=2,
            )
        result: Any
        if self._synchronizes and self.process_set.included():
            result = super().step(closure)
        else:
            result = self.optimizer.step() if closure is None else self.optimizer.step(closure)
            self._new_step()
        self._is_synchronized = False
        return result

    def follow(self) -> None:
        """Forgets a step that the loss of other ranks has cut short."""
        super().follow()
        self._is_synchronized = False
        if self.process_set.process_set_id is not None:
            self.communicates = self.process_set.included()
        for group in self._of.values():
            group.present, group.operation = [], None

    def _begin(self, parameters: list[Any]) -> None:
        # As Horovod does: a gradient that is never computed is zero.
        for parameter in parameters:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = self._zeros(parameter)

    def _scales(self) -> dict[str, Any]:
        """Halves of the division, so that neither overflows."""
        if self._op != Average or self._predivide == 1.0:
            return {}
        return {"prescale_factor": 1.0 / self._predivide, "postscale_factor": self._predivide}

    def _send(self, parameter: Any, again: bool) -> Any:
        # Ranks that make different numbers of passes in a step must not add gradients of different steps.
        name = self._parameter_names.get(parameter, "added") + (".again" if again else "")
        if parameter.grad.is_sparse:
            if not self._sparse_as_dense:
                return sparse_allreduce_async(parameter.grad, name, self._op, self.process_set), None
            self._were_sparse[parameter] = parameter.grad.sparse_dim()
            parameter.grad = parameter.grad.to_dense()
        group = self._of.get(parameter)
        if group is not None:
            group.present.append(parameter)
            if len(group.present) == len(group.members):
                self._send_group(group, again)
            return _Member(group), None
        compressed, context = self._compression.compress(parameter.grad)
        start = allreduce_async_ if compressed.data_ptr() == parameter.grad.data_ptr() else allreduce_async
        return start(compressed, name=name, op=self._op, process_set=self.process_set, **self._scales()), context

    def _send_group(self, group: _Group, again: bool) -> None:
        pairs = [self._compression.compress(parameter.grad) for parameter in group.members]
        name = f"group.{group.number}.{self._parameter_names[group.members[0]]}" + (".again" if again else "")
        operation = grouped_allreduce_async_(
            [compressed for compressed, _ in pairs], name=name, op=self._op, process_set=self.process_set, **self._scales()
        )
        group.operation, group.present = (operation, [context for _, context in pairs]), []

    def _finish(self, parameter: Any, handle: Any) -> None:
        operation, context = handle
        if isinstance(operation, _Member):
            group = operation.group
            if group.operation is not None:
                (whole, contexts), group.operation = group.operation, None
                for one, reduced, of_one in zip(group.members, synchronize(whole), contexts):
                    self._store(one, reduced, of_one)
            return
        self._store(parameter, synchronize(operation), context)

    def _store(self, parameter: Any, reduced: torch.Tensor, context: Any) -> None:
        if reduced.is_sparse:
            parameter.grad = reduced
            return
        value = self._compression.decompress(reduced, context)
        if value.data_ptr() != parameter.grad.data_ptr():
            parameter.grad.copy_(value)
        if parameter in self._were_sparse:
            parameter.grad = parameter.grad.to_sparse(self._were_sparse.pop(parameter))


class _AdasumOptimizer(_DistributedOptimizer):
    """Takes the optimizer's step on this rank alone, and combines what the step has changed by Adasum."""

    def _ready(self, parameter: Any) -> None:
        """Gradients do not travel."""

    def synchronize(self) -> None:
        """Nothing: gradients do not travel."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the step, and combines the steps of all ranks."""
        parameters = [parameter for parameter in self._watched if parameter.requires_grad]
        before = [parameter.detach().clone() for parameter in parameters]
        result = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        with torch.no_grad():
            started = []
            for parameter, old in zip(parameters, before):
                change, context = self._compression.compress(parameter - old)
                name = f"delta.{self._parameter_names.get(parameter, 'added')}"
                started.append((allreduce_async(change, name=name, op=Adasum, process_set=self.process_set), context))
            for parameter, old, (operation, context) in zip(parameters, before, started):
                parameter.copy_(old + self._compression.decompress(synchronize(operation), context))
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
    """An optimizer around another one, whose gradients are reduced over the ranks by ``op`` in the backward pass.

    Gradients of ``backward_passes_per_step`` passes add up before they travel. An average is divided by ``gradient_predivide_factor``
    before the sum and by the rest after it. ``groups`` has lists of parameters whose gradients travel together, or how many such lists
    there are to be. With ``sparse_as_dense`` sparse gradients travel as dense ones, and are sparse again behind it. With ``op=Adasum`` the
    steps are combined, not the gradients.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor={gradient_predivide_factor} goes only with op=Average\n  hint: leave it out, or average")
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op={op!r} is not supported for gradients\n  hint: give hvd.Average, hvd.Sum or hvd.Adasum")
    if num_groups:
        warnings.warn("num_groups is Horovod's old name of groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = _named(optimizer, named_parameters)
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    lists: list[list[Any]] = []
    if isinstance(groups, bool) or not isinstance(groups, (int, list, tuple, type(None))):
        raise ValueError(f"invalid groups={groups!r}\n  hint: give their number, or a list of lists of parameters")
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"invalid groups={groups}\n  hint: give a number that is not negative")
        # As long as each other, in the order in which they were given.
        lists = [trained[at * len(trained) // groups : (at + 1) * len(trained) // groups] for at in range(groups)]
    elif groups is not None:
        lists = [[parameter for parameter in members if parameter.requires_grad] for members in groups]
        every = [parameter for members in lists for parameter in members]
        if len(set(every)) != len(every):
            raise ValueError("groups has a parameter in two lists\n  hint: give each in one at most")
    kind = _AdasumOptimizer if op == Adasum else _DistributedOptimizer
    return kind(
        optimizer,
        names,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        [members for members in lists if members],
        sparse_as_dense,
        process_set,
    )
