"""Transformers' Trainer with two processes of ours, on a model without downloads."""

import tempfile

import torch
import transformers


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
    output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=3, per_device_train_batch_size=2,
    report_to=[], save_strategy="no", disable_tqdm=True,
)
trainer = transformers.Trainer(model, arguments, train_dataset=Tokens())
trainer.train()
size = torch.distributed.get_world_size()
sums = [torch.zeros(1) for _ in range(size)]
torch.distributed.all_gather(sums, model.transformer.wte.weight.detach().sum().reshape(1))
assert torch.distributed.get_backend() == "ringpull" and arguments.world_size == 2 and all(one == sums[0] for one in sums)
print(f"rank {arguments.process_index} of {arguments.world_size}: {sums[0].item():.4f}")
