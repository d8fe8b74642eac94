"""Plain convolutional networks: convolutions, each with pooling, then dense layers."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import NamedTuple

from torch import nn

from fedloom.models.dense import dense_parts

# convolution, norm and pooling over one axis (signals) and over two (images)
LAYERS = {1: (nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d), 2: (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d)}


class Conv(NamedTuple):
    """The sizes of one convolution."""

    width: int
    kernel: int
    padding: int = 0
    stride: int = 1


@dataclass(frozen=True)
class ConvNet:
    """The sizes of a network; called with an input shape and a number of classes, it builds the module."""

    convs: tuple[Conv, ...]
    dense: tuple[int, ...] = ()
    norm: bool = False  # batch norm after every convolution
    pool_first: bool = False  # pool before ReLU: equal values, less work
    bias: bool = True  # of the hidden dense layers

    def __call__(self, shape: tuple[int, ...], classes: int, vocabulary: int = 0) -> nn.Module:
        """Build the module for inputs [channels, length] or [channels, height, width]."""
        channels, *sizes = shape
        conv_layer, norm_layer, pool_layer = LAYERS[len(sizes)]
        parts: list[tuple[str, nn.Module]] = []
        for number, (width, kernel, padding, stride) in enumerate(self.convs, 1):
            parts.append((f"conv{number}", conv_layer(channels, width, kernel, stride=stride, padding=padding)))
            if self.norm:
                parts.append((f"norm{number}", norm_layer(width)))
            relu, pool = (f"relu{number}", nn.ReLU()), (f"pool{number}", pool_layer(2))
            parts += [pool, relu] if self.pool_first else [relu, pool]
            channels = width
        inputs = channels * prod(self.after(size) for size in sizes)
        return nn.Sequential(OrderedDict(parts + dense_parts(inputs, self.dense, classes, self.bias)))

    def after(self, size: int) -> int:
        """The size of an axis after the convolutions and pools."""
        for conv in self.convs:
            size = ((size + 2 * conv.padding - conv.kernel) // conv.stride + 1) // 2
        return size

    @property
    def smallest(self) -> int:
        """The smallest size of an axis that leaves at least 1."""
        return next(size for size in count(1) if self.after(size) >= 1)


def het(convs: tuple[int, ...], dense: tuple[int, ...]) -> ConvNet:
    """One member of FedDD's heterogeneous families: five 3x3 convolutions and two hidden dense layers."""
    return ConvNet(tuple(Conv(width, 3, padding=1) for width in convs), dense)


CNN1 = ConvNet((Conv(10, 5), Conv(20, 5)), (50,), pool_first=True)
CNN2 = ConvNet((Conv(16, 3, 1), Conv(32, 3, 1), Conv(64, 3, 1)), (500, 100))
MCMAHAN = ConvNet((Conv(32, 5, 2), Conv(64, 5, 2)), (512,))
FEDDC = ConvNet((Conv(64, 5), Conv(64, 5)), (384, 192))
RA_CNN = ConvNet((Conv(6, 5), Conv(16, 5)), (120, 84))
SPU_EMNIST = ConvNet((Conv(20, 3, 1), Conv(20, 3, 1)), norm=True)
SPU_CIFAR = ConvNet((Conv(6, 3, 1), Conv(16, 3, 1)), (120, 84), norm=True, bias=False)
SPU_SPEECH = ConvNet((Conv(50, 2, 2, 2), Conv(50, 2, 2, 2)), norm=True)
HAR = ConvNet((Conv(32, 5, 2), Conv(64, 5, 2), Conv(64, 5, 2)))

# Some input sizes in the paper do not fit the layer before; the printed outputs are used. Its het-a 4 and 5 are equal.
HET_A = (
    het((64, 128, 256, 512, 512), (100, 100)),
    het((64, 128, 256, 256, 512), (100, 100)),
    het((64, 128, 256, 256, 512), (80, 100)),
    het((32, 128, 256, 256, 512), (80, 100)),
    het((32, 128, 256, 256, 512), (80, 100)),
)
HET_B = (
    het((64, 128, 256, 512, 512), (100, 100)),
    het((64, 128, 256, 512, 256), (100, 100)),
    het((64, 128, 256, 256, 256), (80, 80)),
    het((32, 96, 256, 256, 256), (80, 80)),
    het((32, 96, 128, 128, 256), (80, 80)),
)
