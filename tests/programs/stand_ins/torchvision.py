"""Replaces torchvision: it has the few names that Horovod's examples use, computed images and a small model."""

from types import SimpleNamespace

import digits
import torch


class MNIST(torch.utils.data.Dataset):
    """Images of digits."""

    def __init__(self, root, train=True, download=False, transform=None):
        self.images, self.labels = digits.images(train)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.images[index]), int(self.labels[index])


def compose(steps):
    def apply(image):
        for step in steps:
            image = step(image)
        return image

    return apply


def classifier():
    """A model that takes images of any size and gives 1000 classes."""
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))


datasets = SimpleNamespace(MNIST=MNIST)
models = SimpleNamespace(resnet50=classifier)
transforms = SimpleNamespace(
    Compose=compose,
    ToTensor=lambda: lambda image: torch.from_numpy(image[None].astype("float32") / 255),
    Normalize=lambda mean, deviation: lambda image: (image - mean[0]) / deviation[0],
)
