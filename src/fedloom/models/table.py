"""The table of networks: their names, what each takes, and `build`, which makes one by its name."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedloom.errors import BadExperiment, BadModel, unknown
from fedloom.models import attention, conv, dense, mobilenet, pixels, recurrent, resnet, staged, text

Takes = Literal["numbers", "images", "signals", "tokens", "sequences"]  # sequences: tokens or signals
SIGNALS = ("channels", "length")
WORDS = ("tokens", "sequences")  # of which the second take signals as well
AXES = {"images": ("channels", "height", "width"), "signals": SIGNALS, "sequences": SIGNALS}


class Entry(NamedTuple):
    """A network: how to make it, what it is, and what it takes."""

    make: Callable[..., nn.Module]  # (shape, classes, vocabulary=0, **settings)
    about: str
    takes: Takes = "numbers"  # of any shape
    smallest: int = 1  # size of an image's or a signal's axes


def entry(net: conv.ConvNet, about: str, takes: Takes = "images") -> Entry:
    """The entry of a plain convolutional network."""
    return Entry(net, about, takes, net.smallest)


MODELS: dict[str, Entry] = {
    "linear": Entry(dense.linear, "softmax regression"),
    "mlp": Entry(dense.mlp, "FedDD's perceptron for MNIST: 100, 64 (settings: widths, norm)"),
    "mlp-exits": Entry(staged.mlp_exits, "four stages of 64, each with an exit (setting: widths)"),
    "2nn": Entry(dense.two_nn, "McMahan's and FedDC's perceptron for MNIST: 200, 200 (setting: width)"),
    "ra-mlp": Entry(dense.ra_mlp, "RA-Fed's perceptron for MNIST: 200, dropout (settings: hidden, dropout)"),
    "cnn1": entry(conv.CNN1, "FedDD's network for Fashion-MNIST: conv 10, 20 of 5x5; dense 50"),
    "cnn2": entry(conv.CNN2, "FedDD's network for CIFAR-10: conv 16, 32, 64 of 3x3; dense 500, 100"),
    "cnn-mcmahan": entry(conv.MCMAHAN, "McMahan's network for MNIST: conv 32, 64 of 5x5; dense 512"),
    "cnn-feddc": entry(conv.FEDDC, "FedDC's network for CIFAR: conv 64, 64 of 5x5; dense 384, 192"),
    "ra-cnn": entry(conv.RA_CNN, "RA-Fed's network for CIFAR-10: conv 6, 16 of 5x5; dense 120, 84"),
    "spu-emnist": entry(conv.SPU_EMNIST, "FedSPU's network for EMNIST: conv 20, 20 of 3x3 with batch norm"),
    "spu-cifar": entry(conv.SPU_CIFAR, "FedSPU's network for CIFAR-10: conv 6, 16 with batch norm; dense 120, 84"),
    "spu-speech": entry(conv.SPU_SPEECH, "FedSPU's network for Google Speech: conv 50, 50 of 2x2 with batch norm"),
    **{
        f"het-{family}-{number}": entry(net, f"FedDD's sub-model {number} of 5 for CIFAR-10, family {family}")
        for family, nets in (("a", conv.HET_A), ("b", conv.HET_B))
        for number, net in enumerate(nets, 1)
    },
    "resnet20": Entry(resnet.resnet20, "SAFARI's network for CIFAR-10: 16, 32, 64 wide (setting: norm)", "images"),
    "resnet18": Entry(resnet.resnet18, "FedUMF's network for CIFAR-10: 64 to 512 wide (setting: norm)", "images"),
    "har-cnn": entry(conv.HAR, "for UCI-HAR's signals: conv 32, 64, 64 of 5", "signals"),
    "fasttext": Entry(dense.fasttext, "RA-Fed's bag of words for AG News (setting: width)", "tokens"),
    "char-conv": Entry(
        text.char_conv, "causal convolutions, scores at every place of a text (settings: width, layers)", "tokens"
    ),
    "char-gru": Entry(
        text.char_gru, "gated recurrent units, scores at every place of a text (settings: width, layers)", "tokens"
    ),
    "transformer": Entry(
        attention.transformer, "blocks of attention for texts (settings: width, depth, heads, places)", "tokens"
    ),
    "lstm": Entry(
        recurrent.lstm, "long short-term memory for texts or signals (settings: width, layers, places)", "sequences"
    ),
    "gru": Entry(
        recurrent.gru, "gated recurrent units for texts or signals (settings: width, layers, places)", "sequences"
    ),
    "vit": Entry(
        attention.vit, "a vision transformer for small images (settings: width, depth, heads, patch)", "images"
    ),
    "mobilenet": Entry(
        mobilenet.mobilenet, "a MobileNet of version 2 for small images (settings: width, norm)", "images"
    ),
    "fcn": Entry(
        pixels.fcn, "dilated convolutions of 3x3, scores at every pixel of an image (setting: width)", "images"
    ),
    "unet": Entry(
        pixels.unet, "a U-Net of two levels, scores at every pixel of an image (settings: width, norm)", "images", 4
    ),
}


def build(name: str, shape: tuple[int, ...], classes: int, vocabulary: int = 0, **settings: Any) -> nn.Module:
    """Build a network by name for examples of this shape; `vocabulary` is above 0 for tokens, of which 0 is padding."""
    if name not in MODELS:
        raise BadExperiment(unknown("model", name, MODELS))
    check_input(name, shape, vocabulary)
    if classes < 1:
        raise BadModel(f"{name}: classes must be 1 or more; got {classes}")
    make = MODELS[name].make
    known = [key for key, value in signature(make).parameters.items() if value.kind is Parameter.KEYWORD_ONLY]
    for key in settings:
        if key not in known:
            hint = unknown(f"setting of {name}", key, known) if known else f"{name} has no settings; got '{key}'"
            raise BadExperiment(hint)
    try:
        return make(tuple(shape), classes, vocabulary, **settings)
    except (RuntimeError, TypeError, MemoryError) as problem:  # what torch raises for sizes that are too large
        given = ", ".join(f"{key}={value!r}" for key, value in settings.items()) or "no settings"
        why = str(problem).splitlines()[0]
        raise BadModel(f"{name} cannot be built for {'x'.join(map(str, shape))} with {given}: {why}") from problem


def check_input(name: str, shape: tuple[int, ...], vocabulary: int) -> None:
    """Refuse examples that the network cannot take, and suggest a network that can."""
    if not shape or any(size < 1 for size in shape):
        raise BadModel(f"shape must be the size of each axis of one example, 1 or more; got {tuple(shape)}")
    takes, smallest = MODELS[name].takes, MODELS[name].smallest
    got = "x".join(map(str, shape))
    if vocabulary and takes not in WORDS:
        hint = "try fasttext, or char-conv for an answer at every place"
        raise BadModel(f"{name} needs numbers; got {got} word numbers (vocabulary {vocabulary}); {hint}")
    if vocabulary and len(shape) != 1:
        raise BadModel(f"{name} needs one axis of word numbers; got {got}; join the axes of the data")
    other = "har-cnn" if len(shape) == 2 and shape[1] >= MODELS["har-cnn"].smallest else "mlp"
    if takes == "tokens" and not vocabulary:
        raise BadModel(f"{name} needs word numbers, with vocabulary above 0; got {got} numbers; try {other}")
    if takes not in AXES or vocabulary:
        return
    axes = AXES[takes]
    if len(shape) != len(axes):
        raise BadModel(f"{name} needs {takes} [{', '.join(axes)}]; got {got}; try {other}")
    if min(shape[1:]) < smallest:
        least = "x".join([str(smallest)] * len(shape[1:]))
        raise BadModel(f"{name} needs {takes} of at least {least}; got {got}; try {other}")


def example(shape: tuple[int, ...], vocabulary: int = 0) -> Tensor:
    """Two blank examples [2, *shape] to run or trace a network; two, since batch norm refuses one."""
    return torch.ones((2, *shape), dtype=torch.int64) if vocabulary else torch.zeros(2, *shape)


def usual_input(name: str, shape: tuple[int, ...] | None, vocabulary: int | None) -> tuple[tuple[int, ...], int]:
    """The shape of an example and the vocabulary for a network, where they are not given."""
    takes = MODELS[name].takes if name in MODELS else "numbers"
    if vocabulary is None:
        vocabulary = 1000 if takes == "tokens" or (takes in WORDS and shape is None) else 0
    if shape is None:
        shape = (64,) if vocabulary else (9, 128) if takes == "signals" else (3, 32, 32)
    return shape, vocabulary
