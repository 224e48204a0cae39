"""Programs with an optimizer of PyTorch's, each of which gives what it ends with."""

from . import alone, gradients, of_horovod, several
from .base import PROGRAMS, Run

__all__ = ["PROGRAMS", "Run", "alone", "gradients", "of_horovod", "several"]
