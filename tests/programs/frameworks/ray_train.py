"""Runs Ray Train's TorchTrainer. It starts its processes itself, and our backend refuses them."""

import ray
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

ray.init(num_cpus=3, include_dashboard=False)
trainer = TorchTrainer(
    lambda: None,
    torch_config=TorchConfig(backend="ringpull"),
    scaling_config=ray.train.ScalingConfig(num_workers=2),
)
trainer.fit()
