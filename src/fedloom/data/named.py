"""The named datasets: what each is, what its file must hold, and where it can be downloaded."""

from pathlib import Path
from typing import NamedTuple

from fedloom.data.prepare import Scale


class Hub(NamedTuple):
    """A dataset's repository on Hugging Face, and its column names."""

    repository: str
    x: str
    y: str
    client: str | None = None
    test: str | None = "test"  # None: there is no test set; a fifth of the training set is taken
    first_labels: int | None = None  # only labels below this number are taken


class NamedDataset(NamedTuple):
    """A dataset that is loaded by its name."""

    about: str
    classes: int
    rows: tuple[int, ...]  # shape of one example as a model sees it; () for texts
    dtype: str  # of x in the file
    scale: Scale | None = None  # None: measured on the training set if x is uint8
    hub: Hub | None = None


CIFAR10_SCALE = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))

NAMED = {
    "mnist": NamedDataset(
        "handwritten digits, 60,000 + 10,000 grey images of 28x28, 10 classes",
        *(10, (1, 28, 28), "uint8", ((0.1307,), (0.3081,))),
        Hub("ylecun/mnist", "image", "label"),
    ),
    "fashion-mnist": NamedDataset(
        "articles of clothing, 60,000 + 10,000 grey images of 28x28, 10 classes",
        *(10, (1, 28, 28), "uint8", ((0.2860,), (0.3530,))),
        Hub("zalando-datasets/fashion_mnist", "image", "label"),
    ),
    "cifar10": NamedDataset(
        "objects and animals, 50,000 + 10,000 colour images of 32x32, 10 classes",
        *(10, (3, 32, 32), "uint8", CIFAR10_SCALE),
        Hub("uoft-cs/cifar10", "img", "label"),
    ),
    "cifar100": NamedDataset(
        "objects and animals, 50,000 + 10,000 colour images of 32x32, 100 classes",
        *(100, (3, 32, 32), "uint8", None),
        Hub("uoft-cs/cifar100", "img", "fine_label"),
    ),
    "emnist": NamedDataset(
        "handwritten digits and letters by writer, about 814,000 grey images of 28x28, 62 classes",
        *(62, (1, 28, 28), "uint8", None),
        Hub("flwrlabs/femnist", "image", "character", client="writer_id", test=None),
    ),
    "emnist-letters-10": NamedDataset(
        "the first ten handwritten letters of EMNIST (EMNIST-L), grey images of 28x28, 10 classes",
        *(10, (1, 28, 28), "uint8", None),
        Hub("tanganke/emnist_letters", "image", "label", first_labels=10),
    ),
    "speech-commands": NamedDataset(
        "spoken words as 32x32 spectrograms (Google Speech Commands), 35 classes",
        *(35, (1, 32, 32), "float32"),
    ),
    "uci-har": NamedDataset(
        "movements of 30 people from phone sensors, 7,352 + 2,947 windows of 9x128, 6 classes, own clients",
        *(6, (9, 128), "float32"),
    ),
    "ag-news": NamedDataset(
        "news headlines and summaries, up to 120,000 + 7,600 texts, 4 classes",
        *(4, (), "text"),
        hub=Hub("fancyzhx/ag_news", "text", "label"),
    ),
}


def expected(name: str, folder: Path) -> str:
    """What a named dataset's file must hold, for an error message."""
    named = NAMED[name]
    if not named.rows:
        stem = folder / name.replace("-", "_")
        return f"{stem}_train.csv and {stem}_test.csv, each with columns text and label (0 to {named.classes - 1})"
    shape = ", ".join(str(size) for size in named.rows)
    if named.dtype == "uint8":  # as images are usually stored: no axis for grey, colours last
        channels, height, width = named.rows
        shape = f"{height}, {width}" if channels == 1 else f"{height}, {width}, {channels}"
    return (
        f"{folder / name}.npz (np.savez) with arrays x_train and x_test, {named.dtype} [n, {shape}], "
        f"y_train and y_test, integers 0 to {named.classes - 1} [n], "
        "and, if known, client_train and client_test, integers [n]"
    )
