"""Networks of dense layers: softmax regression, perceptrons, and a bag of words."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import prod
from typing import Literal

from torch import Tensor, nn

from fedloom.errors import BadExperiment, unknown

NORMS: dict[str, Callable[[int], nn.Module] | None] = {"none": None, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def dense_parts(
    inputs: int,
    widths: Sequence[int],
    classes: int,
    bias: bool = True,
    dropout: float | None = None,
    norm: Callable[[int], nn.Module] | None = None,
) -> list[tuple[str, nn.Module]]:
    """Hidden dense layers with ReLU (and a norm, and dropout), then the output layer, all named."""
    parts: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
    for number, width in enumerate(widths, 1):
        parts += [(f"dense{number}", nn.Linear(inputs, width, bias=bias))]
        parts += [] if norm is None else [(f"norm{number}", norm(width))]
        parts += [(f"relu_dense{number}", nn.ReLU())]
        if dropout is not None:
            parts.append((f"dropout{number}", nn.Dropout(dropout)))
        inputs = width
    return [*parts, ("output", nn.Linear(inputs, classes))]


def linear(shape: tuple[int, ...], classes: int, vocabulary: int = 0) -> nn.Module:
    """Softmax regression: one dense layer from the inputs to the classes."""
    return nn.Sequential(OrderedDict(dense_parts(prod(shape), (), classes)))


def mlp(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    *,
    widths: Sequence[int] = (100, 64),
    norm: Literal["none", "batch", "layer"] = "none",
) -> nn.Module:
    """FedDD's perceptron: hidden layers of 100 and 64, or of the given widths, each with a norm if one is named."""
    if not isinstance(norm, str) or norm not in NORMS:
        raise BadExperiment(unknown("norm", str(norm), NORMS))
    if not isinstance(widths, list | tuple):
        raise BadExperiment(f"widths must be a list of hidden layer sizes such as [100, 64]; got {widths!r}")
    for width in widths:
        check_width("widths", width)
    return nn.Sequential(OrderedDict(dense_parts(prod(shape), widths, classes, norm=NORMS[norm])))


def two_nn(shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, width: int = 200) -> nn.Module:
    """McMahan's 2NN: two hidden layers of 200; with width 100 it is FedDC's EMNIST network."""
    return mlp(shape, classes, widths=(check_width("width", width),) * 2)


def ra_mlp(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, hidden: int = 1, dropout: float = 0.5
) -> nn.Module:
    """RA-Fed's perceptron: one hidden layer of 200 (its code) or two (its paper), with dropout."""
    if not isinstance(hidden, int) or hidden not in (1, 2):
        raise BadExperiment(f"hidden must be 1 (the published code) or 2 (the paper's text) layers; got {hidden!r}")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise BadExperiment(f"dropout must be a number from 0 to below 1; got {dropout!r}")
    return nn.Sequential(OrderedDict(dense_parts(prod(shape), (200,) * hidden, classes, dropout=dropout)))


class FastText(nn.Module):
    """The mean embedding of a text's words through two dense layers; linear throughout, as fastText is."""

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dense1 = nn.Linear(width, width)
        self.output = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores per class [n, classes] of tokens [n, length], where 0 is padding and does not count."""
        real = (tokens != 0).unsqueeze(-1)  # [n, length, 1]
        words = real.sum(1).clamp(min=1)  # the mean of an empty text is the zero vector
        mean = (self.embedding(tokens) * real).sum(1) / words  # [n, width]
        scores: Tensor = self.output(self.dense1(mean))
        return scores


def fasttext(shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, width: int = 128) -> nn.Module:
    """RA-Fed's text classifier: an embedding and two dense layers."""
    return FastText(vocabulary, check_width("width", width), classes)


def check_width(argument: str, width: int) -> int:
    """The width; anything but a positive integer is refused."""
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise BadExperiment(f"{argument} must be a whole number of neurons, 1 or more; got {width!r}")
    return width


def check_whole(argument: str, value: int, most: int | None = None) -> int:
    """The number; anything but a whole number from 1 to `most` is refused."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        upto = "1 or more" if most is None else f"from 1 to {most}"
        raise BadExperiment(f"{argument} must be a whole number {upto}; got {value!r}")
    return value
