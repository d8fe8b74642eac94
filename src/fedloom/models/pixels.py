"""Networks with an answer at every pixel of an image: a stack of convolutions, and a small U-Net."""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedloom.errors import BadExperiment, BadModel, unknown
from fedloom.models.dense import check_width

DILATIONS = (1, 2, 4)  # together they look 7 pixels far
STEP = 4  # two levels of the U-Net halve each side twice
Norm = Callable[[int], nn.Module]


def _each_channel(width: int) -> nn.Module:
    """A norm of every channel by itself; any channel can be cut, which larger groups do not allow."""
    return nn.GroupNorm(width, width)


NORMS: dict[str, Norm] = {"none": lambda width: nn.Identity(), "instance": _each_channel}


def fcn(shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, width: int = 16) -> nn.Module:
    """Three dilated 3x3 convolutions with ReLU, then a 1x1 convolution; scores are as large as the image."""
    channels, parts = shape[0], OrderedDict[str, nn.Module]()
    for number, far in enumerate(DILATIONS, 1):
        parts[f"conv{number}"] = nn.Conv2d(channels, check_width("width", width), 3, padding=far, dilation=far)
        parts[f"relu{number}"] = nn.ReLU()
        channels = width
    parts["output"] = nn.Conv2d(channels, classes, 1)
    return nn.Sequential(parts)


def _block(inputs: int, width: int, norm: Norm) -> nn.Sequential:
    """Two 3x3 convolutions with norm and ReLU; a norm of single channels would take away a bias before it."""
    parts: list[nn.Module] = []
    bias = norm is NORMS["none"]
    for channels in (inputs, width):
        parts += [nn.Conv2d(channels, width, 3, padding=1, bias=bias), norm(width), nn.ReLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Two halvings and two doublings of the image; what each halving saw is joined to the doubling of its size."""

    def __init__(self, channels: int, width: int, classes: int, norm: Norm) -> None:
        super().__init__()
        self.down1 = _block(channels, width, norm)
        self.down2 = _block(width, 2 * width, norm)
        self.bottom = _block(2 * width, 4 * width, norm)
        self.up2 = _block(6 * width, 2 * width, norm)
        self.up1 = _block(3 * width, width, norm)
        self.output = nn.Conv2d(width, classes, 1)
        self.halved, self.doubled = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)  # `double` is a method of modules

    def forward(self, x: Tensor) -> Tensor:
        """Scores [n, classes, h, w] of images [n, channels, h, w]."""
        large = self.down1(x)  # [n, width, h, w]
        middle = self.down2(self.halved(large))  # [n, 2 width, h / 2, w / 2]
        small = self.bottom(self.halved(middle))  # [n, 4 width, h / 4, w / 4]
        middle = self.up2(torch.cat((middle, self.doubled(small)), 1))
        large = self.up1(torch.cat((large, self.doubled(middle)), 1))
        scores: Tensor = self.output(large)
        return scores


def unet(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, width: int = 8, norm: str = "instance"
) -> nn.Module:
    """A U-Net of two levels, `width`, 2 `width` and 4 `width` wide; norm is instance or none."""
    if not isinstance(norm, str) or norm not in NORMS:
        raise BadExperiment(unknown("norm", str(norm), NORMS))
    if any(size % STEP for size in shape[1:]):
        got = "x".join(map(str, shape))
        raise BadModel(
            f"unet needs images whose height and width are multiples of {STEP}; got {got}; pad them, or try fcn"
        )
    return UNet(shape[0], check_width("width", width), classes, NORMS[norm])
