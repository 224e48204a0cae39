"""Runs Transformers' Trainer in two processes of our launcher, on a model that needs no download. Rank 1 wants to stop after some steps."""

import tempfile

import torch
import transformers

import ringpull


class Stops(transformers.TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        control.should_training_stop |= ringpull.should_stop(arguments.process_index == 1 and state.global_step == 3)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, at):
        row = torch.full((8,), at % 7)
        return {"input_ids": row, "labels": row}


transformers.set_seed(0)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1))
# With GPUs ddp_backend="ringpull" of TrainingArguments is enough; for CPUs Accelerate accepts nothing but Gloo.
torch.distributed.init_process_group("ringpull")
arguments = transformers.TrainingArguments(
    output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=40, per_device_train_batch_size=2,
    report_to=[], save_strategy="no", disable_tqdm=True,
)
trainer = transformers.Trainer(model, arguments, train_dataset=Tokens(), callbacks=[Stops()])
trainer.train()
size = torch.distributed.get_world_size()
ends = [torch.zeros(2) for _ in range(size)]
torch.distributed.all_gather(ends, torch.stack([model.transformer.wte.weight.detach().sum(), torch.tensor(float(trainer.state.global_step))]))
assert torch.distributed.get_backend() == "ringpull" and arguments.world_size == 2 and all(one.equal(ends[0]) for one in ends)
assert 3 <= trainer.state.global_step <= 8, trainer.state.global_step
print(f"rank {arguments.process_index} of {arguments.world_size}: {ends[0][0].item():.4f}")
