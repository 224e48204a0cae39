"""The forms in which MXNet's methods take keys and values: one key or a list, and for each key one value or a list."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

from .errors import ArgumentError


def pairs(key: Any, value: Any) -> list[tuple[Any, list[Any]]]:
    """Each key with its list of values. A key that occurs several times in a list has the values of all its positions."""
    if not isinstance(key, (list, tuple)):
        return [(key, listed(value))]
    if not isinstance(value, (list, tuple)) or len(key) != len(value):
        raise ArgumentError(f"{len(key)} keys with {len(listed(value))} values\n  hint: give one value, or one list of values, for each key")
    for one in key:
        if isinstance(one, (list, tuple)):
            raise ArgumentError("a list of keys in a list of keys\n  hint: keys are integers or strings")
    try:
        is_distinct = len(set(key)) == len(key)
    except TypeError as error:
        raise ArgumentError(f"a list of keys has an item that is no key: {error}\n  hint: keys are integers or strings") from None
    if is_distinct:
        return list(zip(key, map(listed, value)))
    grouped: dict[Any, list[Any]] = {}
    for one, values in zip(key, value):
        grouped.setdefault(one, []).extend(listed(values))
    return list(grouped.items())


def outputs(key: Any, out: Any) -> list[tuple[Any, list[Any]]]:
    """Each key of a pull with its outputs."""
    if out is None:
        raise ArgumentError(f"pull of key {key!r} without an output\n  hint: give out=")
    return pairs(key, out)


def rows(key: Any, out: Any, row_ids: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Each output of a row-sparse pull with its key and its row ids. One set of ids may serve all outputs of a key."""
    if out is None or row_ids is None:
        raise ArgumentError(f"row_sparse_pull of key {key!r} needs an output and row ids\n  hint: give out= and row_ids=")
    single = not isinstance(key, (list, tuple))
    keys, outs, ids = ([key], [out], [row_ids]) if single else (list(key), listed(out), listed(row_ids))
    for one, some, ids_of in zip(keys, outs, _for_each(ids, len(keys), key), strict=True):
        some = listed(some)
        # For one output the ids may be a plain list of numbers.
        is_several = isinstance(ids_of, (list, tuple)) and not all(isinstance(row, numbers.Integral) for row in ids_of)
        for each, chosen in zip(some, _for_each(list(ids_of) if is_several else [ids_of], len(some), one), strict=True):
            yield one, each, chosen


def _for_each(ids: list[Any], count: int, key: Any) -> list[Any]:
    if len(ids) not in (1, count):
        raise ArgumentError(f"row_sparse_pull of key {key!r}: {count} outputs with {len(ids)} lists of row ids\n  hint: give one for each")
    return ids * count if len(ids) == 1 else ids


def listed(value: Any) -> list[Any]:
    """The value as a list of values."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
