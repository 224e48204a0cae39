"""A script as users of Horovod write it, which does not import our package. Its argument is the fault of the last rank in the
second step."""

import sys

import torch
import torch.nn.functional as F

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.compression import Compression

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=Compression.none, op=hvd.Average)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
fate = sys.argv[1] if hvd.rank() == hvd.size() - 1 else "works"
try:
    for step in range(3):
        if step == 1 and fate == "ends":
            raise SystemExit(0)
        if step == 1 and fate == "grows":
            model.append(torch.nn.Linear(2, 2))
            optimizer.add_param_group({"params": list(model[-1].parameters())})
        optimizer.zero_grad()
        F.cross_entropy(model(torch.ones(8, 4)), torch.zeros(8, dtype=torch.int64)).backward()
        optimizer.step()
        scheduler.step()
except HorovodInternalError as error:
    print(f"rank {hvd.rank()}: {type(error).__name__} {isinstance(error, RuntimeError)}", flush=True)
    sys.exit(3)
total = hvd.allreduce(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), name="check")
print(f"rank {hvd.rank()} of {hvd.size()}: {torch.equal(total, torch.cat([p.detach().flatten() for p in model.parameters()]))} {len(sys.argv)}", flush=True)
