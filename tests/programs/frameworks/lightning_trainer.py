"""Runs Lightning's Trainer in two processes of our launcher. The code is as in its documentation, except for the backend's name. Rank 1 is
asked to stop."""

import os
import signal

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

import ringpull


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        inputs, targets = batch
        return (self.layer(inputs) - targets).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stops(lightning.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_rank == 1 and trainer.global_step == 5:
            os.kill(os.getpid(), signal.SIGUSR1)
        trainer.should_stop |= ringpull.should_stop()


ringpull.stop_on(signal.SIGUSR1)
lightning.seed_everything(0)
inputs = torch.rand(64, 4)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices="auto" if torch.distributed.is_initialized() else 2,
    strategy=DDPStrategy(process_group_backend="ringpull"),
    max_epochs=100,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[Stops()],
)
model = Line()
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
ends = [torch.zeros(2) for _ in range(torch.distributed.get_world_size())]
torch.distributed.all_gather(ends, torch.stack([model.layer.weight.detach().sum(), torch.tensor(float(trainer.global_step))]))
assert torch.distributed.get_backend() == "ringpull" and trainer.world_size == 2 and all(one.equal(ends[0]) for one in ends)
assert 5 <= trainer.global_step <= 10, trainer.global_step
print(f"rank {trainer.global_rank} of {trainer.world_size}: {ends[0][0].item():.4f}")
