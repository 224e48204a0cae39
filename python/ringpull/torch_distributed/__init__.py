"""The backend ``ringpull`` of ``torch.distributed``: its collectives on ours, in host memory. Tensors on GPUs
are copied there.

    # mpirun -n 4 python train.py
    torch.distributed.init_process_group("ringpull")
    model = torch.nn.parallel.DistributedDataParallel(model)

PyTorch 2.5 and later know the backend by themselves if the package is installed; ``import
ringpull.torch_distributed`` registers it, too.

- ``group``: the collectives of a communicator of ours: that of the job, or a process set. Calls go together
  in their order in each group; groups work beside each other.
- ``backend``: they as a backend of PyTorch's group, for the devices that the group gives it.
- ``work``: an operation under way; who owns its results, and who completes its future.
- ``threads``: the threads that futures are completed on.
- ``buckets``: where the gradients of DistributedDataParallel are.
- ``tensors``: the memory of tensors as it travels.
- ``order``: the order of results among what GPUs do.
- ``reductions``: how tensors are reduced.
- ``faults``: errors that are both ours and ``torch.distributed.DistBackendError``.
- ``meeting``: how PyTorch makes a group, and where ranks meet.
"""

from __future__ import annotations

from ringpull_torch import register

from .backend import Backend
from .group import ProcessGroup
from .meeting import create, meet

__all__ = ["Backend", "ProcessGroup", "create", "meet"]

register()
