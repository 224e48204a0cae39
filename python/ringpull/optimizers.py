"""Optimizers that a store runs itself, with MXNet's names and arithmetic. They run on every rank in the same way, or on the servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

__all__ = ["SGD", "NAG", "AdaGrad", "Adam", "Optimizer", "RMSProp", "Test"]


@dataclass
class Optimizer:
    """The settings that all optimizers have. Give an optimizer to ``KVStore.set_optimizer``. To change a running optimizer, give it again
    with other settings."""

    #: Learning rate.
    learning_rate: float = 0.01
    #: Weight decay.
    wd: float = 0.0
    #: Every gradient is first multiplied by this factor. Gradients are summed over workers, so 1 / (batch * num_workers) gives the mean.
    rescale_grad: float = 1.0
    #: Rescaled gradients are clipped to [-c, c]; None for no limit.
    clip_gradient: float | None = None
    #: True if float16 weights have a float32 master copy.
    multi_precision: bool = False
    #: Factors of some keys' learning rates, such as ``{"fc1_weight": 0.1}``. The factor of any other key is 1.
    lr_mult: Mapping[int | str, float] = field(default_factory=dict, kw_only=True)
    #: Factors of some keys' weight decays, such as ``{"fc1_bias": 0}``.
    wd_mult: Mapping[int | str, float] = field(default_factory=dict, kw_only=True)

    def spec(self) -> str:
        """The optimizer as text for the native part, such as ``sgd,learning_rate=0.1,momentum=0.9``. The factors of keys are left out."""
        words = [type(self).__name__.lower()]
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and not one.kw_only:
                words.append(f"{one.name}={float(value)!r}")
        return ",".join(words)


@dataclass
class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    momentum: float = 0.0


@dataclass
class NAG(SGD):
    """Nesterov's accelerated gradient."""


@dataclass
class Adam(Optimizer):
    """Adam."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclass
class AdaGrad(Optimizer):
    """AdaGrad."""

    eps: float = 1e-7


@dataclass
class RMSProp(Optimizer):
    """RMSProp in Tieleman and Hinton's form, or in Graves's if ``centered``."""

    learning_rate: float = 0.001
    gamma1: float = 0.9
    #: The momentum in Graves's form.
    gamma2: float = 0.9
    epsilon: float = 1e-8
    centered: bool = False
    #: New weights are clipped to [-c, c]; None for no limit.
    clip_weights: float | None = None


@dataclass
class Test(Optimizer):
    """MXNet's ``test`` optimizer: ``weight += rescale_grad * gradient``."""

    __test__ = False
