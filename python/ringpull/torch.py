"""PyTorch on our stores: an optimizer that averages gradients.

Gradients are averaged over the workers, as PyTorch's own are; the store sums, and the division is here.

``float32`` and ``float64`` are divided after the sum. A sum of halves may be too large for its type where
their average is not: two ``float16`` of 40000 would be infinite. So ``float16`` and ``bfloat16``, and
``float32`` that travels compressed to ``fp16``, are divided before the sum, as PyTorch's own hooks do, but by
a power of two, the next that is not less than the number of workers N: that is exact but for subnormal
results, which it rounds to a multiple of the smallest, 2**-24 for ``float16``. Where N is no power of two
what is missing is made up after the sum. So an average of ``float16`` by two workers is off by no more than
the rounding of its sum and 2**-24; by N, by the roundings of the sum and, where values are smaller than N *
2**-13, by N * 2**-24.
"""

from __future__ import annotations

import weakref
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch

from . import _native
from .backward import Member, Reach, Reduction, as_real, fill
from .combining import CombiningOptimizer, combine, names_of, parameters_of
from .errors import ArgumentError, DuplicateKeyError, MixedKeyTypesError
from .kvstore import Handle, KVStore, create
from .worker import warn_of_separate_models

__all__ = ["DistributedOptimizer", "broadcast_parameters"]


#: Parameters, or pairs of a name and a parameter as ``Module.named_parameters()`` gives them.
_Parameters = Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


def _unnamed(key: str, parameter: Any) -> torch.Tensor:
    """The parameter, whose name, if it has one, stands in messages about ``key``."""
    if isinstance(parameter, torch.Tensor):
        return parameter
    name, parameter = parameter
    _native.name_key(key, name)
    return cast("torch.Tensor", parameter)


#: How many keys each store has of each prefix.
_keys: weakref.WeakKeyDictionary[KVStore, Counter[str]] = weakref.WeakKeyDictionary()


def _next_key(store: KVStore, prefix: str) -> str:
    """A key that the store does not have, the same on every rank."""
    counts = _keys.setdefault(store, Counter())
    counts[prefix] += 1
    return f"{prefix}.{counts[prefix] - 1}"


def _init_own(store: KVStore, prefix: str, value: torch.Tensor) -> str:
    """Gives the store a key that the program does not know of, the same on every rank. Collective."""
    while True:
        key = _next_key(store, prefix)
        try:
            store.init(key, value)
        except DuplicateKeyError:
            # The program has called one of its own so, on every rank.
            continue
        except MixedKeyTypesError:
            raise _by_integers() from None
        return key


def _by_integers() -> ArgumentError:
    return ArgumentError("the store has integer keys, and parameters have keys that are strings\n  hint: give the optimizer a store of its own, as in ringpull.create")


def broadcast_parameters(store: KVStore, parameters: _Parameters, prefix: str = "parameter") -> None:
    """Makes every rank's parameters, in their order, those of rank 0. Waits. Errors name those of ``named_parameters()``."""
    for named in parameters:
        key = _next_key(store, prefix)
        _broadcast(store, key, _unnamed(key, named))


def _broadcast(store: KVStore, key: str, parameter: torch.Tensor) -> None:
    with torch.no_grad():
        value = parameter.detach().clone(memory_format=torch.contiguous_format)
        try:
            store.broadcast(key, as_real(value), as_real(value))
        except DuplicateKeyError:
            raise DuplicateKeyError(f'the program has a key "{key}" of this store already\n  hint: give another prefix, as in prefix="model"') from None
        except MixedKeyTypesError:
            raise _by_integers() from None
        _become(parameter, value)


def _become(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Writes these values, unless they are there: a forward pass may have saved them, and autograd notices each write."""
    own, new = (values.detach().reshape(-1).view(torch.uint8) for values in (parameter, value))
    if not torch.equal(own, new):
        parameter.copy_(value)


def _opened(store: KVStore | str) -> KVStore:
    opened = create(store) if isinstance(store, str) else store
    if "async" in opened.type:
        raise ArgumentError(f"a store of kind {opened.type} has no sum of all workers' gradients to divide\n  hint: ask for dist_sync_mpi, or dist_sync with servers")
    if opened.type in ("local", "device"):
        warn_of_separate_models(opened.type)
    return opened


_HALVES = (torch.float16, torch.bfloat16)


def _divisors(dtype: torch.dtype, store: KVStore) -> tuple[float, float]:
    """What values of all workers are divided by before they are summed, and what their sum is."""
    count = store.num_workers
    if dtype not in _HALVES and (dtype != torch.float32 or store._codec != "fp16"):
        return 1.0, float(count)
    power = 1 << (count - 1).bit_length()
    return float(power), count / power


def _divide(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """The values, in place. Nothing is done where that would change none."""
    return values if divisor == 1.0 else values.div_(divisor)


class _Keys(Reach):
    """The keys of parameters in a store. A parameter has its key as long as it lives, whatever becomes of its optimizers.

    Ranks may delete an optimizer at different times, so nothing that they must have alike depends on which there are.
    """

    def __init__(self, store: KVStore) -> None:
        self._weak = weakref.ref(store)
        #: Each parameter that has a key, and its key, in the order in which they came.
        self._all: list[tuple[weakref.ref[Any], str]] = []
        #: The same by the parameter's id, which another may have later, with its type and shape.
        self._by_id: dict[int, tuple[weakref.ref[Any], str, Any]] = {}
        #: Keys that the store has, and what messages call them.
        self._known: set[str] = set()
        self._names: dict[str, str] = {}
        #: The place in that order of each parameter's last key, by its id.
        self._places: dict[int, int] = {}
        #: For each number of parameters, a key and an array: which gradients this rank has made, which it has, which it watches.
        self._arrays: dict[int, tuple[str, array[int], torch.Tensor]] = {}
        #: How many parameters were asked about last, and what waits for the answer, which nobody may have needed.
        self._count = 0
        self._check: Callable[[], object] | None = None

    @property
    def _store(self) -> KVStore:
        """The store, which those have that ask here."""
        return cast("KVStore", self._weak())

    def add(self, parameter: Any, prefix: str) -> None:
        """Gives a parameter a key, unless it has one of its present type and shape. In the same order on every rank."""
        known, present = self._by_id.get(id(parameter)), (parameter.dtype, parameter.shape)
        if known is None or known[0]() is not parameter or known[2] != present:
            key = _next_key(self._store, prefix)
            self._by_id[id(parameter)] = weakref.ref(parameter), key, present
            self._places[id(parameter)] = len(self._all)
            self._all.append((weakref.ref(parameter), key))

    def is_current(self, parameter: Any) -> bool:
        """Returns true if a parameter that has a key has the type and shape that it had when it got the key."""
        known = self._by_id.get(id(parameter))
        return known is None or known[0]() is not parameter or known[2] == (parameter.dtype, parameter.shape)  # type: ignore[union-attr]

    def of(self, parameter: Any) -> str:
        """The key of a parameter that has one."""
        return self._by_id[id(parameter)][1]

    def compare_names(self, names: list[str]) -> None:
        """Raises an error on every rank if the ranks have other names, or in another order. Collective."""
        if not self._store.num_workers > 1:
            return
        digest = float(zlib.crc32("\n".join(names).encode()) >> 12)
        # The ranks' numbers are equal if, and only if, their sum and that of their squares are what they would be then.
        own = torch.tensor([digest, digest * digest], dtype=torch.float64)
        # One that is pushed again would begin steps in `ringpull top`.
        key, total = _init_own(self._store, "names", torch.zeros_like(own)), own.clone()
        self._store.pushpull(key, total, keep=False)
        if not bool((total == own * self._store.num_workers).all()):
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise ArgumentError(
                f"the ranks' optimizers have parameters of other names, or in another order: here {shown}\n"
                "  hint: give the optimizer the same parameters in the same order on every rank"
            )

    def call(self, key: str, name: str) -> None:
        """Has messages call the key by that name too."""
        self._names[key] = name
        _native.name_key(key, name)

    def is_new(self, key: str) -> bool:
        """Whether the store has still to be given the key."""
        was_new = key not in self._known
        self._known.add(key)
        return was_new

    def ask(self, made: Iterable[Any], present: Iterable[Any], watched: Iterable[Any]) -> Callable[[], tuple[set[Any], set[Any]]]:
        if self._store.num_workers == 1:
            sets = set(made), set(present)
            return lambda: sets
        last, self._check = self._check, None
        if last is not None:
            last()
        if self._count and self._count < len(self._all):
            # There are new ones: those that live on no rank any more are left out.
            living = [at for at, (ref, _) in enumerate(self._all[: self._count]) if ref() is not None]
            alive = self._sum(self._count, [living])()[0]
            self._all = [entry for entry, ranks in zip(self._all, alive) if ranks] + self._all[self._count :]
            self._by_id = {own: entry for own, entry in self._by_id.items() if entry[0]() is not None}
            self._places = {id(ref()): at for at, (ref, _) in enumerate(self._all) if ref() is not None}
        self._count = len(self._all)
        entries = list(self._all)
        places = [[place for place in map(self._places.get, map(id, some)) if place is not None] for some in (made, present, watched)]
        total = self._sum(len(entries), places)

        def check() -> list[list[int]]:
            sums = total()
            for (_, key), having, watching in zip(entries, *sums[1:]):
                if watching < self._store.num_workers and having:
                    raise ArgumentError(
                        f"the gradient of {self._names.get(key, key)} is averaged on {watching} of {self._store.num_workers} ranks: the others have no "
                        "optimizer for it any more\n  hint: call close() of an optimizer on every rank before it is dropped or replaced on any"
                    )
            return sums

        def answer() -> tuple[set[Any], set[Any]]:
            makers, havers, _ = ({ref() for (ref, _), ranks in zip(entries, row) if ranks} for row in check())
            return makers, havers

        self._check = check
        if len(places[2]) < len(entries):
            check()
        return answer

    def _sum(self, count: int, rows: list[list[int]]) -> Callable[[], list[list[int]]]:
        """Begins to sum three rows of that length over the ranks, of which this one has ones in these places."""
        if count not in self._arrays:
            values = array("i", bytes(12 * count))
            shared = torch.frombuffer(values, dtype=torch.int32) if count else torch.zeros(0, dtype=torch.int32)
            self._arrays[count] = _init_own(self._store, "reached", shared), values, shared
            self.call(self._arrays[count][0], "what a backward pass has reached")
        key, values, shared = self._arrays[count]
        values[:] = array("i", bytes(12 * count))
        for at, row in enumerate(rows):
            for place in row:
                values[at * count + place] = 1
        handle = self._store.pushpull(key, shared, wait=False, keep=False)

        def total() -> list[list[int]]:
            handle.wait()
            sums = values.tolist()
            return [sums[at * count : (at + 1) * count] for at in range(3)]

        return total


#: Those of each store.
_keys_of: weakref.WeakKeyDictionary[KVStore, _Keys] = weakref.WeakKeyDictionary()


class _OnStore(Reduction):
    """Gradients that are averaged by a store, each as a key."""

    def __init__(self, store: KVStore, prefix: str, names: dict[Any, str]) -> None:
        self._store, self._prefix, self.names = store, prefix, names
        if store not in _keys_of:
            _keys_of[store] = _Keys(store)
        self._keys = _keys_of[store]

    @property
    def reach(self) -> Reach | None:
        # A compressed sum may lack what this rank has sent.
        return self._keys if self._store._codec == "none" else None

    def result(self) -> Any:
        return "average", tuple(range(self._store.num_workers))

    def name(self, parameters: Mapping[Any, Any]) -> None:
        for parameter in parameters:
            self._keys.add(parameter, self._prefix)

    def is_named(self, parameter: Any) -> bool:
        return self._keys.is_current(parameter)

    def begin(self, parameters: Iterable[Any]) -> None:
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.is_meta:
                raise ArgumentError(f"{self.names.get(parameter, 'a parameter')} is on the device meta and has no values\n  hint: call to_empty() of the model, or load its weights, first")
            if parameter in self.names:
                # Before the ranks meet: then each can name what any of them has an error of.
                self._keys.call(self._keys.of(parameter), self.names[parameter])
        if self._store._codec == "none":
            self._keys.compare_names([self.names.get(parameter, "") for parameter in parameters])
        for parameter in parameters:
            if not parameter.requires_grad:
                continue
            key = self._keys.of(parameter)
            if self._keys.is_new(key):
                _broadcast(self._store, key, parameter)
            elif self._store._codec == "none":
                # By the key that it has, as a sum.
                with torch.no_grad():
                    value = as_real(parameter.detach()).clone(memory_format=torch.contiguous_format)
                    self._store.pushpull(key, value if self._store.rank == 0 else value.zero_(), keep=False)
                    _become(as_real(parameter), value)
            else:
                _broadcast(self._store, _next_key(self._store, f"{self._prefix}.value"), parameter)

    def send(self, parameter: Any, again: bool) -> tuple[Handle, torch.Tensor]:
        # Ranks that make different numbers of passes in a step must not add gradients of different steps.
        key = self._keys.of(parameter) + (".again" if again else "")
        if self._keys.is_new(key):
            if parameter in self.names:
                self._keys.call(key, self.names[parameter])
            self._store.init(key, as_real(torch.zeros_like(parameter, memory_format=torch.contiguous_format)))
        if parameter.grad.is_sparse:
            name = self.names.get(parameter, key)
            raise ArgumentError(f"the gradient of {name} is sparse, and this optimizer sends dense ones\n  hint: make the embedding without sparse=True, or use ringpull.horovod.torch")
        # Of one that is laid out otherwise a copy travels. Whoever differentiates the gradient may need it as it was.
        values = _divide(as_real(parameter.grad.data).contiguous(), _divisors(parameter.grad.dtype, self._store)[0])
        return self._store.pushpull(key, values, wait=False, keep=False), values

    def finish(self, parameter: Any, grad: torch.Tensor, handle: tuple[Handle, torch.Tensor]) -> None:
        sent, values = handle
        sent.wait()
        _divide(values, _divisors(grad.dtype, self._store)[1])
        if values.data_ptr() != grad.data_ptr():
            fill(grad.data, values)

    def copied(self, of: Mapping[Any, Any]) -> _OnStore:
        return _OnStore(self._store, self._prefix, {of[parameter]: name for parameter, name in self.names.items() if parameter in of})


class DistributedOptimizer(CombiningOptimizer):
    """Lets the gradients of an optimizer be averaged over the ranks of ``store``, a store or a kind, and returns the optimizer.

        optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "dist_sync_mpi")

    It is the optimizer that was given, which is a ``torch.optim.SGD`` still and a ``DistributedOptimizer`` too: all that takes an
    optimizer takes it. The store is its ``store``. Errors name parameters as ``named_parameters=model.named_parameters()`` does, or an
    optimizer that was made with them. Trained parameters begin as those of rank 0.

    A gradient leaves as soon as the backward pass has accumulated it, and ``backward()`` returns when every gradient is the average: to
    clip or to log it needs nothing else. A parameter without a gradient on some rank counts as zero there; one without a gradient on
    every rank is left alone, unless the store compresses gradients. With ``backward_passes_per_step=K`` the gradients of K passes add up
    before they travel, and inside :meth:`no_sync` until it is left. Without these, the gradients of each pass travel, and all ranks must
    make the same number of passes in a step.

    Several optimizers may have one parameter, whose gradient is averaged once. The last that was made says by which store. An
    optimizer that is deleted, or closed by :meth:`close`, lets gradients alone: on every rank, or on none.
    """

    store: KVStore
    _gradients_own = (*CombiningOptimizer._gradients_own, "store")

    def __new__(
        cls,
        optimizer: torch.optim.Optimizer,
        store: KVStore | str,
        prefix: str = "parameter",
        named_parameters: Iterable[tuple[str, torch.Tensor]] = (),
        backward_passes_per_step: int = 1,
    ) -> DistributedOptimizer:
        parameters, opened = parameters_of(optimizer), _opened(store)
        names = names_of(optimizer) | {parameter: name for name, parameter in named_parameters}
        member = Member(parameters, _OnStore(opened, prefix, names), backward_passes_per_step)
        made: DistributedOptimizer = combine(cls, optimizer, member, store=opened)
        return made
