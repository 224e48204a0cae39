"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ..basics import Sum, size
from .mpi_ops import allreduce

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Does as ``torch.nn.BatchNorm1d`` to ``3d``, with the mean and the variance over the batches of all ranks. The batches may differ in length."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm does not take {input.dim()} dimensions\n  hint: give 2 or more")

    def forward(self, input: torch.Tensor) -> Any:
        """The values, normalised."""
        values = input
        self._check_input_dim(values)
        uses_batch = self.training or not self.track_running_stats
        if not uses_batch or size() == 1:
            return super().forward(values)
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        channels = values.shape[1]
        # The sums need more range and precision than float16 and bfloat16 have, so these are summed as float32.
        wide = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
        others = [at for at in range(values.dim()) if at != 1]
        count = torch.full((1,), values.numel() / channels, dtype=wide.dtype, device=values.device)
        total = allreduce(torch.cat([wide.sum(others), count]), op=Sum)
        mean, count = total[:-1] / total[-1], total[-1].detach()
        shape = [1, channels] + [1] * (values.dim() - 2)
        apart = wide - mean.reshape(shape)
        variance = allreduce((apart * apart).sum(others), op=Sum) / count
        if self.training and self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                of_new = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked or 1)
                unbiased = variance * (count / (count - 1).clamp(min=1))
                self.running_mean.mul_(1 - of_new).add_(mean.to(self.running_mean.dtype), alpha=of_new)
                self.running_var.mul_(1 - of_new).add_(unbiased.to(self.running_var.dtype), alpha=of_new)
        result = apart * torch.rsqrt(variance + self.eps).reshape(shape)
        if self.affine:
            result = result * self.weight.reshape(shape) + self.bias.reshape(shape)
        return result.to(values.dtype)
