"""Runs DeepSpeed's ZeRO 1, 2 and 3 in two processes of our launcher."""

import deepspeed
import torch

deepspeed.init_distributed(dist_backend="ringpull", auto_mpi_discovery=False)
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
for stage in 1, 2, 3:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    settings = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    torch.manual_seed(rank)
    losses = []
    for _ in range(5):
        inputs = torch.rand(8, 4)
        loss = (engine(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        mine = torch.stack([parameter.detach().float().sum() for parameter in model.parameters()])
    ranks = [torch.zeros_like(mine) for _ in range(size)]
    torch.distributed.all_gather(ranks, mine)
    assert torch.distributed.get_backend() == "ringpull" and size == 2 and all(torch.equal(one, mine) for one in ranks)
    assert losses[-1] < losses[0], losses
    print(f"rank {rank} of {size}: stage {stage}: {losses[-1]:.4f}")
