"""Programs with an optimizer of PyTorch. Each returns its final values."""

from . import alone, gradients, of_horovod, several
from .base import PROGRAMS, Run

__all__ = ["PROGRAMS", "Run", "alone", "gradients", "of_horovod", "several"]
