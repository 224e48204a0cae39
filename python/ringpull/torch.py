"""PyTorch on our stores: an optimizer that averages gradients.

The optimizer averages gradients over the workers, as DistributedDataParallel does. The store sums them; this
module divides.

``float32`` and ``float64`` are divided after the sum. A sum of 16-bit floats may be too large for its type
although the average is not: two ``float16`` of 40000 have an infinite sum. So ``float16``, ``bfloat16``, and
``float32`` that is compressed to ``fp16`` are divided before the sum. The divisor is the smallest power of
two that is not less than the number of workers N. This division is exact except for subnormal results, which
are rounded to a multiple of the smallest number, 2**-24 for ``float16``. If N is no power of two, the sum is
divided once more, by N over that power. So the error of an average of ``float16`` over 2 workers is at most
the rounding of the sum plus 2**-24. Over N workers it is at most the roundings of the sum, plus N * 2**-24 if
values are smaller than N * 2**-13.
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
    """Returns the parameter. If it has a name, messages about ``key`` use it."""
    if isinstance(parameter, torch.Tensor):
        return parameter
    name, parameter = parameter
    _native.name_key(key, name)
    return cast("torch.Tensor", parameter)


#: The number of keys of each prefix, for each store.
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
            # The program has a key of this name itself, on every rank.
            continue
        except MixedKeyTypesError:
            raise _by_integers() from None
        return key


def _by_integers() -> ArgumentError:
    return ArgumentError("the store has integer keys, and parameters have keys that are strings\n  hint: give the optimizer a store of its own, as in ringpull.create")


def broadcast_parameters(store: KVStore, parameters: _Parameters, prefix: str = "parameter") -> None:
    """Gives every rank the values of rank 0's parameters, in their order, and waits for them. Errors use the
    names of ``named_parameters()``."""
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
    """Writes these values, unless the parameter has them already: a forward pass may have saved it, and
    autograd notices each write."""
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
    """Returns two divisors: one for the values before they are summed, and one for their sum."""
    count = store.num_workers
    if dtype not in _HALVES and (dtype != torch.float32 or store._codec != "fp16"):
        return 1.0, float(count)
    power = 1 << (count - 1).bit_length()
    return float(power), count / power


def _divide(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """Divides the values in place, unless the divisor is 1."""
    return values if divisor == 1.0 else values.div_(divisor)


class _Keys(Reach):
    """The keys of parameters in a store. A parameter keeps its key as long as it lives, whatever happens to
    its optimizers.

    Ranks may delete an optimizer at different times. So nothing that must be the same on all ranks depends on
    which optimizers exist.
    """

    def __init__(self, store: KVStore) -> None:
        self._weak = weakref.ref(store)
        #: Each parameter with its key, in the order in which the keys were given.
        self._all: list[tuple[weakref.ref[Any], str]] = []
        #: The same by the parameter's ``id()``, with its type and shape. Another parameter may have that id
        #: later.
        self._by_id: dict[int, tuple[weakref.ref[Any], str, Any]] = {}
        #: Keys that the store has, and their names in messages.
        self._known: set[str] = set()
        self._names: dict[str, str] = {}
        #: The place in that order of each parameter's last key, by its id.
        self._places: dict[int, int] = {}
        #: A key and an array for each number of parameters. The array has three rows: the gradients that this
        #: rank has made, has, and watches.
        self._arrays: dict[int, tuple[str, array[int], torch.Tensor]] = {}
        #: The number of parameters in the last ``ask``, and its check, which nobody may have called yet.
        self._count = 0
        self._check: Callable[[], object] | None = None

    @property
    def _store(self) -> KVStore:
        """The store. The caller of every method here holds it."""
        return cast("KVStore", self._weak())

    def add(self, parameter: Any, prefix: str) -> None:
        """Gives a parameter a key, unless it has one for its present type and shape. Every rank must call
        this in the same order."""
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
        """Raises an error on every rank if the ranks' names or their order differ. Collective."""
        if not self._store.num_workers > 1:
            return
        digest = float(zlib.crc32("\n".join(names).encode()) >> 12)
        # N ranks have the same number x if, and only if, the sum of the numbers is N x and the sum of their squares is N x^2.
        own = torch.tensor([digest, digest * digest], dtype=torch.float64)
        # A key that is pushed again would count as a step in `ringpull top`.
        key, total = _init_own(self._store, "names", torch.zeros_like(own)), own.clone()
        self._store.pushpull(key, total, keep=False)
        if not bool((total == own * self._store.num_workers).all()):
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise ArgumentError(
                f"the ranks' optimizers have parameters with different names, or in a different order: on this rank {shown}\n"
                "  hint: give the optimizer the same parameters in the same order on every rank"
            )

    def call(self, key: str, name: str) -> None:
        """Makes messages about the key show this name too."""
        self._names[key] = name
        _native.name_key(key, name)

    def is_new(self, key: str) -> bool:
        """Returns True at the first call with a key. The caller must then init the key in the store."""
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
            # There are new parameters. Those that no longer live on any rank are left out.
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
                        f"the gradient of {self._names.get(key, key)} is averaged on {watching} of {self._store.num_workers} ranks: the other ranks have no "
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
        """Begins to sum three rows of ``count`` numbers over the ranks. ``rows`` has the places where this
        rank's numbers are 1."""
        if count not in self._arrays:
            values = array("i", bytes(12 * count))
            shared = torch.frombuffer(values, dtype=torch.int32) if count else torch.zeros(0, dtype=torch.int32)
            self._arrays[count] = _init_own(self._store, "reached", shared), values, shared
            self.call(self._arrays[count][0], "the gradients that a backward pass has reached")
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


#: The keys of each store.
_keys_of: weakref.WeakKeyDictionary[KVStore, _Keys] = weakref.WeakKeyDictionary()


class _OnStore(Reduction):
    """Averages gradients by a store. Each gradient is a key."""

    def __init__(self, store: KVStore, prefix: str, names: dict[Any, str]) -> None:
        self._store, self._prefix, self.names = store, prefix, names
        if store not in _keys_of:
            _keys_of[store] = _Keys(store)
        self._keys = _keys_of[store]

    @property
    def reach(self) -> Reach | None:
        # A compressed sum may lack a part of the values that a rank has sent.
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
                # This comes before the first collective, so each rank knows the name when any rank reports an
                # error.
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
                # The key exists already, so rank 0's value is sent as a sum in which all others are zero.
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
        # A gradient that is not contiguous is sent as a copy. The gradient may be needed unchanged for a
        # second derivative.
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
    """Averages the gradients of an optimizer over the ranks of ``store`` (a store or its kind). Returns that
    optimizer.

        optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "dist_sync_mpi")

    The returned object is the optimizer that was given. It is still a ``torch.optim.SGD``, and also a
    ``DistributedOptimizer``, so it works wherever an optimizer works. Its attribute ``store`` is the store.
    Errors use the names of ``named_parameters=model.named_parameters()``, or those that the optimizer was
    made with. Parameters that require a gradient get rank 0's values.

    A gradient is sent as soon as the backward pass has accumulated it. ``backward()`` returns when every
    gradient is the average, so clipping and logging need no other call. A parameter without a gradient on
    some ranks counts as zero there. A parameter without a gradient on every rank is left alone, unless the
    store compresses gradients. With ``backward_passes_per_step=K`` the gradients of K passes add up before
    they are sent. Inside :meth:`no_sync` they add up until it is left. Otherwise each pass sends its
    gradients, and all ranks must make the same number of passes in a step.

    A parameter may belong to several optimizers. Its gradient is averaged once, by the store of the optimizer
    that was made last. A deleted optimizer, or one closed by :meth:`close`, averages nothing. Delete or close
    it on every rank or on none.
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
