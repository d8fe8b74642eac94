"""Residual networks for small images: ResNet-20 and ResNet-18 without the ImageNet stem.

A block that changes the shape has a 1x1 convolution and a norm as its shortcut. ResNet-20 then has 272,474 parameters
on CIFAR-10; with zero-padded shortcuts it would have 269,722. Both agree with the papers' 0.27 million, and with the
convolution every residual stream is a plain addition, whose neurons can be cut like those of any other layer.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedloom.errors import BadExperiment, unknown

# two groups, as in FedDC's ResNet-18
NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm2d, "group": partial(nn.GroupNorm, 2)}


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm(width)
        self.shortcut = nn.Sequential()  # empty: the identity
        if stride != 1 or inputs != width:
            self.shortcut.add_module("conv", nn.Conv2d(inputs, width, 1, stride=stride, bias=False))
            self.shortcut.add_module("norm", norm(width))

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] to [n, width, h / stride, w / stride]."""
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def resnet(channels: int, classes: int, widths: tuple[int, ...], blocks: int, norm: str) -> nn.Module:
    """A 3x3 stem, stages of blocks that halve the image from the second stage on, a global mean, the output layer."""
    if not isinstance(norm, str) or norm not in NORMS:
        raise BadExperiment(unknown("norm", str(norm), NORMS))
    make_norm, inputs = NORMS[norm], widths[0]
    parts: list[tuple[str, nn.Module]] = [
        ("conv", nn.Conv2d(channels, inputs, 3, padding=1, bias=False)),
        ("norm", make_norm(inputs)),
        ("relu", nn.ReLU()),
    ]
    for stage, width in enumerate(widths, 1):
        for number in range(1, blocks + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            parts.append((f"block{stage}_{number}", Block(inputs, width, stride, make_norm)))
            inputs = width
    parts += [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("output", nn.Linear(inputs, classes))]
    return nn.Sequential(OrderedDict(parts))


def resnet20(shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, norm: str = "batch") -> nn.Module:
    """SAFARI's network: three stages of three blocks, 16, 32 and 64 wide; norm is batch or group."""
    return resnet(shape[0], classes, (16, 32, 64), 3, norm)


def resnet18(shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, norm: str = "batch") -> nn.Module:
    """FedUMF's network: four stages of two blocks, 64 to 512 wide; norm is batch or group."""
    return resnet(shape[0], classes, (64, 128, 256, 512), 2, norm)
