"""Lightning's Trainer with two processes of ours: as its documentation has it, but for the backend's name."""

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        inputs, targets = batch
        return (self.layer(inputs) - targets).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0)
inputs = torch.rand(64, 4)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices="auto" if torch.distributed.is_initialized() else 2,
    strategy=DDPStrategy(process_group_backend="ringpull"),
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
model = Line()
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
sums = [torch.zeros(1) for _ in range(torch.distributed.get_world_size())]
torch.distributed.all_gather(sums, model.layer.weight.detach().sum().reshape(1))
assert torch.distributed.get_backend() == "ringpull" and trainer.world_size == 2 and all(one == sums[0] for one in sums)
print(f"rank {trainer.global_rank} of {trainer.world_size}: {sums[0].item():.4f}")
