"""A small MobileNet (version 2) for small images: blocks of depthwise convolutions."""

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from fedloom.errors import BadExperiment, unknown
from fedloom.models.dense import check_width
from fedloom.models.resnet import NORMS

EXPAND = 4  # how many times wider a block is inside
STAGES = ((1, 1, 1), (2, 2, 2), (4, 2, 2), (6, 2, 2))  # times the width, blocks, stride of the first


class Block(nn.Module):
    """A 1x1 convolution that widens, a 3x3 convolution of every channel by itself, a 1x1 convolution that narrows."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        inner = EXPAND * inputs
        self.widen = nn.Conv2d(inputs, inner, 1, bias=False)
        self.norm1 = norm(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner, bias=False)
        self.norm2 = norm(inner)
        self.narrow = nn.Conv2d(inner, width, 1, bias=False)
        self.norm3 = norm(width)
        self.relu = nn.ReLU6()
        self.added = stride == 1 and inputs == width

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] to [n, width, h / stride, w / stride]."""
        inner = self.relu(self.norm1(self.widen(x)))
        inner = self.relu(self.norm2(self.depthwise(inner)))
        narrow: Tensor = self.norm3(self.narrow(inner))
        return x + narrow if self.added else narrow


def mobilenet(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, width: int = 16, norm: str = "batch"
) -> nn.Module:
    """A 3x3 stem, stages of blocks `width` to 6 `width` wide, a global mean, the output layer; norm: batch or group."""
    if not isinstance(norm, str) or norm not in NORMS:
        raise BadExperiment(unknown("norm", str(norm), NORMS))
    if norm == "group" and check_width("width", width) % 2:
        raise BadExperiment(f"width must be even with norm 'group', which has two groups; got {width}")
    make_norm, inputs = NORMS[norm], check_width("width", width)
    parts: list[tuple[str, nn.Module]] = [
        ("conv", nn.Conv2d(shape[0], inputs, 3, padding=1, bias=False)),
        ("norm", make_norm(inputs)),
        ("relu", nn.ReLU6()),
    ]
    for stage, (times, blocks, stride) in enumerate(STAGES, 1):
        for number in range(1, blocks + 1):
            block = Block(inputs, times * width, stride if number == 1 else 1, make_norm)
            parts.append((f"block{stage}_{number}", block))
            inputs = times * width
    parts += [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("output", nn.Linear(inputs, classes))]
    return nn.Sequential(OrderedDict(parts))
