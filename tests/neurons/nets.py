"""Small networks of every kind that the neuron map understands, and random ones."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from fedloom.neurons.map import NeuronMap


class Apply(nn.Module):
    """A function as a layer of a Sequential; torch.fx traces into it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """A body plus a shortcut."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Dense(nn.Module):
    """A body concatenated with its input."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], dim=1)


class Gate(nn.Module):
    """Squeeze and excitation: channels scaled by a function of their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(width, 2)
        self.excite = nn.Linear(2, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return x * gate.unsqueeze(-1).unsqueeze(-1)


class Padded(nn.Module):
    """Option A: the shortcut halves the image and adds channels of zeros on both sides."""

    def __init__(self, inputs: int, extra: int) -> None:
        super().__init__()
        self.extra = extra
        self.body = nn.Conv2d(inputs, inputs + 2 * extra, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra))
        return F.relu(self.body(x) + shortcut)


class Bag(nn.Module):
    """fastText: the mean embedding of the words that are not padding, then two layers."""

    def __init__(self, vocabulary: int = 20, width: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.dense = nn.Linear(width, 5)
        self.head = nn.Linear(5, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        real = (tokens != 0).unsqueeze(-1).float()
        mean = (self.words(tokens) * real.expand_as(self.words(tokens))).sum(1) / real.sum(1).clamp(min=1)
        return F.log_softmax(self.head(self.dense(mean)), dim=1)


class OffsetBag(nn.Module):
    """fastText with EmbeddingBag, whose inputs are words and offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.words(words, offsets))


def block(inputs: int, width: int, stride: int = 1) -> nn.Module:
    """A ResNet block with batch norm."""
    body = nn.Sequential(
        nn.Conv2d(inputs, width, 3, stride, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
    )
    if stride == 1 and inputs == width:
        return Residual(body)
    return Residual(body, nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)))


def resnet(widths: tuple[int, ...], blocks: int) -> nn.Module:
    """A residual network for 3-channel images with 10 classes; (64, 128, 256, 512), 2 is ResNet-18."""
    parts: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    inputs = widths[0]
    for stage, width in enumerate(widths):
        for number in range(blocks):
            parts.append(block(inputs, width, 2 if stage and not number else 1))
            inputs = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def cnn() -> nn.Module:
    """Two convolutions with batch norm and pooling, flattened into two dense layers; one slope belongs to no neuron."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Sigmoid(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(6 * 2 * 2, 8), nn.PReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def mlp(*widths: int) -> nn.Module:
    """Dense layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


ACTIVATIONS = (nn.ReLU, nn.Sigmoid, nn.GELU, nn.Tanh, nn.PReLU)


@st.composite
def mlps(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A perceptron with batch norms, residuals and concatenations, and an input for it."""
    inputs = width = draw(st.integers(1, 5))
    parts: list[nn.Module] = [nn.Linear(inputs, width := draw(st.integers(1, 6)))]
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(("linear", "norm", "act", "residual", "dense", "split")))
        other = draw(st.integers(1, 6))
        if kind == "linear":
            parts, width = [*parts, nn.Linear(width, other, bias=draw(st.booleans()))], other
        elif kind == "norm":
            parts.append(nn.BatchNorm1d(width))
        elif kind == "act":
            parts.append(draw(st.sampled_from(ACTIVATIONS))())
        elif kind == "residual":
            parts.append(Residual(nn.Sequential(nn.Linear(width, other), nn.Tanh(), nn.Linear(other, width))))
        elif kind == "dense":
            parts, width = [*parts, Dense(nn.Linear(width, other))], width + other
        else:
            parts += [Apply(lambda x: x[:, None]), nn.Dropout(0.0), Apply(lambda x: x.squeeze(1))]
    torch.manual_seed(draw(st.integers(0, 99)))
    return nn.Sequential(*parts, nn.Linear(width, draw(st.integers(1, 4)))), torch.randn(3, inputs)


@st.composite
def cnns(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A convolutional network with the shapes of ResNet, DenseNet, MobileNet and ResNeXt mixed, and an input for it."""
    width, size = draw(st.integers(2, 5)), 8
    parts: list[nn.Module] = [nn.Conv2d(2, width, 3, padding=1)]
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(
            st.sampled_from(
                ("conv", "norm", "act", "residual", "project", "dense", "depth", "grouped", "gate", "pool", "padded")
            )
        )
        other = draw(st.integers(1, 5))
        if kind == "conv":
            parts, width = [*parts, nn.Conv2d(width, other, 3, padding=1, bias=draw(st.booleans()))], other
        elif kind == "norm":
            parts.append(nn.BatchNorm2d(width, affine=draw(st.booleans())))
        elif kind == "act":
            act = draw(st.sampled_from(ACTIVATIONS))
            parts.append(nn.PReLU(width) if act is nn.PReLU else act())
        elif kind == "residual":
            body = nn.Sequential(nn.Conv2d(width, other, 1), nn.BatchNorm2d(other), nn.Conv2d(other, width, 1))
            parts.append(Residual(body))
        elif kind == "project":
            parts, width = [*parts, Residual(nn.Conv2d(width, other, 1), nn.Conv2d(width, other, 1))], other
        elif kind == "dense":
            parts, width = [*parts, Dense(nn.Conv2d(width, other, 3, padding=1))], width + other
        elif kind == "depth":
            times = draw(st.integers(1, 2))
            parts, width = [*parts, nn.Conv2d(width, width * times, 3, padding=1, groups=width)], width * times
        elif kind == "grouped":
            parts += [nn.Conv2d(width, 4, 1), nn.Conv2d(4, 6, 3, padding=1, groups=2)]
            width = 6
        elif kind == "gate":
            parts.append(Gate(width))
        elif kind == "pool" and size > 1:
            parts, size = [*parts, draw(st.sampled_from((nn.MaxPool2d, nn.AvgPool2d)))(2)], size // 2
        elif kind == "padded" and size > 1:
            parts, width, size = [*parts, Padded(width, 1)], width + 2, size // 2
    if draw(st.booleans()):
        parts, size = [*parts, nn.AdaptiveAvgPool2d(1)], 1
    permuted = [Apply(lambda x: x.permute(0, 2, 3, 1))] if draw(st.booleans()) else []
    hidden = draw(st.integers(1, 5))
    parts += [*permuted, nn.Flatten(), nn.Linear(width * size * size, hidden), nn.ReLU(), nn.Linear(hidden, 3)]
    torch.manual_seed(draw(st.integers(0, 99)))
    return nn.Sequential(*parts), torch.randn(3, 2, 8, 8)


def random_keep(map: NeuronMap, seed: int, cohort: int | None = None) -> Tensor:
    """Any neurons, at least one of every group; [K] or [cohort, K]."""
    chance = torch.Generator().manual_seed(seed)
    keep = torch.rand(cohort or 1, map.size, generator=chance) < 0.6
    for group, span in map.spans(map.size):
        sure = torch.randint(map.widths[group], (len(keep), 1), generator=chance)
        keep[:, span] = keep[:, span].scatter(1, sure, True)
    spans = dict(map.spans(map.size))
    for first, *others in map.alike:
        for group in others:
            keep[:, spans[group]] = keep[:, spans[first]].flip(-1)  # as many, and others
    return keep if cohort else keep[0]
