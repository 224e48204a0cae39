"""Runs Accelerate's training loop in two processes of our launcher."""

import torch
from accelerate import Accelerator

# Accelerate takes InitProcessGroupKwargs(backend="ringpull") with GPUs; for CPUs it accepts nothing but Gloo.
torch.distributed.init_process_group("ringpull")
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
inputs = torch.rand(64, 4)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
for batch, targets in loader:
    loss = (model(batch) - targets).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
sums = accelerator.gather(accelerator.unwrap_model(model).weight.detach().sum().reshape(1))
assert torch.distributed.get_backend() == "ringpull" and accelerator.num_processes == 2 and (sums == sums[0]).all(), sums
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {sums[0].item():.4f}")
