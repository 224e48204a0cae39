"""The backend ``ringpull`` of ``torch.distributed``: its collectives by ours, in host memory. Tensors on GPUs
are copied to host memory.

    # mpirun -n 4 python train.py
    torch.distributed.init_process_group("ringpull")
    model = torch.nn.parallel.DistributedDataParallel(model)

PyTorch 2.5 and later know the backend by themselves if the package is installed; ``import
ringpull.torch_distributed`` registers it, too.

- ``group``: the collectives, on a communicator of ours: that of the job, or a process set. In each group, ranks' calls belong together in
  the order in which they are made. Groups can work at the same time.
- ``backend``: these collectives as a backend in a group of PyTorch, for the devices that the group gives it.
- ``work``: an operation under way, the ownership of its results, and its future.
- ``threads``: the threads on which futures are completed.
- ``buckets``: the memory of DistributedDataParallel's gradients.
- ``tensors``: the conversion of tensors to memory that communicators take.
- ``order``: the order of results with the other work of GPUs.
- ``reductions``: the reductions of tensors.
- ``faults``: errors that are both ours and ``torch.distributed.DistBackendError``.
- ``meeting``: how PyTorch makes a group, and the store by which ranks find each other.
"""

from __future__ import annotations

from ringpull_torch import register

from .backend import Backend
from .group import ProcessGroup
from .meeting import create, meet

__all__ = ["Backend", "ProcessGroup", "create", "meet"]

register()
