"""Turns MXNet's optimizers into those that a store runs itself: on servers, or on each rank for its part."""

from __future__ import annotations

from typing import Any

import mxnet

from .. import optimizers
from ..errors import UnsupportedError


class StoredOptimizer:
    """Takes the place of MXNet's updater, for stores that run the optimizer.

    Learning rates, schedules and rescaling that change here reach the store before the next push.
    """

    def __init__(self, optimizer: Any, kind: str) -> None:
        self.optimizer = optimizer
        self._kind = kind

    def spec(self, key: int | str) -> str:
        """The optimizer as it is for the next push of ``key``."""
        optimizer = self.optimizer
        if isinstance(optimizer, optimizers.Optimizer):
            return optimizer.spec()
        optimizer._update_count(key)
        own_rate, own_decay = optimizer._get_lr(key), optimizer._get_wd(key)
        if own_rate != optimizer.learning_rate or own_decay != optimizer.wd:
            raise UnsupportedError(
                f"set_optimizer is not supported by {self._kind}: key {key!r} has a learning rate or weight decay of its own, and "
                "an optimizer that the store runs has one for all keys\n"
                "  hint: use dist_sync_mpi without sharded, or set no lr_mult and wd_mult and no wd"
            )
        return mapped(optimizer, self._kind).spec()


def mapped(optimizer: Any, kind: str) -> optimizers.Optimizer:
    """The optimizer of ringpull that computes what one of MXNet's does."""
    if isinstance(optimizer, optimizers.Optimizer):
        return optimizer
    common = {
        "learning_rate": optimizer.learning_rate,
        "wd": optimizer.wd,
        "rescale_grad": optimizer.rescale_grad,
        "clip_gradient": optimizer.clip_gradient,
        "multi_precision": optimizer.multi_precision,
    }
    rule = type(optimizer)
    if rule is mxnet.optimizer.SGD:
        return optimizers.SGD(momentum=optimizer.momentum, **common)
    if rule is mxnet.optimizer.NAG:
        return optimizers.NAG(momentum=optimizer.momentum, **common)
    if rule is mxnet.optimizer.Adam:
        betas = {"beta1": optimizer.beta1, "beta2": optimizer.beta2, "epsilon": optimizer.epsilon}
        return optimizers.Adam(**common, **betas)
    if rule is mxnet.optimizer.Test:
        return optimizers.Test(**common)
    raise UnsupportedError(
        f"set_optimizer is not supported by {kind}: servers and sharded stores have sgd, nag, adam and test, and "
        f"cannot run code such as {rule.__name__}\n"
        "  hint: use dist_sync_mpi without sharded, where any optimizer of MXNet runs on every rank"
    )
