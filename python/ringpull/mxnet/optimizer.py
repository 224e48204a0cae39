"""Turns MXNet's optimizers into optimizers that a store runs itself: on servers, or on each rank for the rank's part of a key."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mxnet

from .. import optimizers
from ..errors import UnsupportedError


class StoredOptimizer:
    """Replaces MXNet's updater for stores that run the optimizer.

    If the learning rate, the schedule, factors of keys or the rescaling change here, the change reaches the store before the next push.
    """

    def __init__(self, optimizer: Any, kind: str) -> None:
        self.optimizer = optimizer
        self._kind = kind
        #: The factors at the last change, for all keys that the store had then.
        self._factors: dict[str, dict[int | str, float]] = {"lr_mult": {}, "wd_mult": {}}
        self._keys: set[int | str] = set()

    def at_push(self, key: int | str, keys: Collection[int | str]) -> optimizers.Optimizer:
        """The optimizer's settings for the next push of ``key``, with the factors of all ``keys`` of the store."""
        optimizer = self.optimizer
        if isinstance(optimizer, optimizers.Optimizer):
            return optimizer
        optimizer._update_count(key)
        if key not in self._keys or any(own.get(key, 1.0) != _factor(optimizer, name, key) for name, own in self._factors.items()):
            # The factors of all keys change at once, whichever key is pushed first: so every worker sends the same changes.
            self._keys = set(keys)
            self._factors = {
                name: {one: factor for one in keys if (factor := _factor(optimizer, name, one)) != 1.0} for name in self._factors
            }
        return mapped(optimizer, self._kind, **self._factors)

    def takes_rows(self) -> bool:
        """Returns True if rows that a row-sparse gradient does not name stay unchanged. Otherwise the gradient counts as a dense one
        with zeros in these rows."""
        optimizer = self.optimizer
        if isinstance(optimizer, (optimizers.Optimizer, mxnet.optimizer.AdaGrad)):
            return True
        return bool(getattr(optimizer, "lazy_update", False))


def _factor(optimizer: Any, name: str, key: int | str) -> float:
    """The ``lr_mult`` or ``wd_mult`` of a key. In Gluon it is that of the key's parameter; else it is stored under the key itself, or
    under the name of the key's index."""
    if key in optimizer.param_dict:
        return float(getattr(optimizer.param_dict[key], name))
    factors = getattr(optimizer, name)
    return float(factors.get(key, factors.get(optimizer.idx2name.get(key), 1.0)))


def mapped(optimizer: Any, kind: str, **factors: dict[int | str, float]) -> optimizers.Optimizer:
    """The optimizer of ringpull that computes the same as an optimizer of MXNet."""
    if isinstance(optimizer, optimizers.Optimizer):
        return optimizer
    common: dict[str, Any] = {
        "learning_rate": optimizer.learning_rate,
        "wd": optimizer.wd,
        "rescale_grad": optimizer.rescale_grad,
        # As in MXNet, 0 means no limit.
        "clip_gradient": optimizer.clip_gradient or None,
        "multi_precision": optimizer.multi_precision,
        **factors,
    }
    rule = type(optimizer)
    if rule in (mxnet.optimizer.SGD, mxnet.optimizer.ccSGD):
        return optimizers.SGD(momentum=optimizer.momentum, **common)
    if rule is mxnet.optimizer.NAG:
        return optimizers.NAG(momentum=optimizer.momentum, **common)
    if rule is mxnet.optimizer.Adam:
        betas = {"beta1": optimizer.beta1, "beta2": optimizer.beta2, "epsilon": optimizer.epsilon}
        return optimizers.Adam(**common, **betas)
    if rule is mxnet.optimizer.AdaGrad:
        return optimizers.AdaGrad(eps=optimizer.float_stable_eps, **common)
    if rule is mxnet.optimizer.RMSProp:
        return optimizers.RMSProp(
            gamma1=optimizer.gamma1,
            gamma2=optimizer.gamma2,
            epsilon=optimizer.epsilon,
            centered=optimizer.centered,
            clip_weights=optimizer.clip_weights or None,
            **common,
        )
    if rule is mxnet.optimizer.Test:
        return optimizers.Test(**common)
    raise UnsupportedError(
        f"set_optimizer is not supported by {kind}: servers and sharded stores have sgd, nag, adam, adagrad, rmsprop and test, "
        f"and cannot run code such as {rule.__name__}\n"
        "  hint: use dist_sync_mpi without sharded, where any optimizer of MXNet runs on every rank"
    )
