"""Downloads of named datasets from Hugging Face, once, into the data folder."""

import csv
import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedloom.data.files import client_codes
from fedloom.data.named import NAMED, Hub, expected
from fedloom.data.sampling import held_out
from fedloom.errors import BadData


def fetch(name: str, folder: Path) -> None:
    """Download a named dataset into the folder; if that fails, raise which file to put there."""
    hub = NAMED[name].hub
    if hub is None:
        raise _missing(name, folder, "No download is known for this set")
    try:
        import datasets  # an optional extra
    except ImportError:
        remedy = "Or install the downloader with: pip install 'fedloom[hub]'"
        raise _missing(name, folder, remedy) from None
    try:
        train = datasets.load_dataset(hub.repository, split="train")
        test = None if hub.test is None else datasets.load_dataset(hub.repository, split=hub.test)
        write = _write_images if NAMED[name].rows else _write_texts
        write(name, hub, train, test, folder)
    except Exception as error:  # the remedy does not depend on what the downloader raises
        tried = f"Downloading {hub.repository} with fedloom[hub] failed ({type(error).__name__}: {error})"
        raise _missing(name, folder, f"{tried}; to have it downloaded, check the connection and the disk") from error


def _missing(name: str, folder: Path, remedy: str) -> BadData:
    """The error for a dataset that is not in the folder."""
    return BadData(
        f"data '{name}' are missing. Put in place {expected(name, folder)}. {remedy}. "
        "The folder is the one given, else FEDLOOM_DATA, else fedloom's cache folder."
    )


def _write_images(name: str, hub: Hub, train: Any, test: Any, folder: Path) -> None:
    """Write images, labels and writers as one .npz."""
    arrays: dict[str, Any] = {}
    clients: dict[str, list[str] | None] = {"train": None, "test": None}
    for part, rows in (("train", train), ("test", test)):
        if rows is not None:
            arrays[f"y_{part}"] = np.array(list(rows[hub.y]), np.int64)
            arrays[f"x_{part}"] = np.stack([np.asarray(row[hub.x], np.uint8) for row in rows])
            clients[part] = None if hub.client is None else [str(one) for one in rows[hub.client]]
    ids = client_codes(clients["train"], clients["test"])
    arrays |= {f"client_{part}": one for part, one in zip(("train", "test"), ids) if one is not None}
    if hub.first_labels is not None:
        for part in ("train", "test"):
            first = arrays[f"y_{part}"] < hub.first_labels
            arrays |= {f"{kind}_{part}": arrays[f"{kind}_{part}"][first] for kind in ("x", "y")}
    if test is None:
        chosen = held_out(arrays["y_train"])
        for kind in [key.removesuffix("_train") for key in arrays]:
            arrays[f"{kind}_test"] = arrays[f"{kind}_train"][chosen]
            arrays[f"{kind}_train"] = arrays[f"{kind}_train"][~chosen]
    _atomically(folder / f"{name}.npz", lambda file: np.savez(file, **arrays))


def _write_texts(name: str, hub: Hub, train: Any, test: Any, folder: Path) -> None:
    """Write texts and labels as two tables."""
    for part, rows in (("train", train), ("test", test)):
        table = io.StringIO(newline="")
        csv.writer(table).writerows([("text", "label"), *zip(rows[hub.x], rows[hub.y])])
        path = folder / f"{name.replace('-', '_')}_{part}.csv"
        _atomically(path, partial(_write_bytes, table.getvalue().encode()))


def _write_bytes(content: bytes, file: IO[bytes]) -> None:
    """Write bytes."""
    file.write(content)


def _atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under another name and rename it, so that no half-written file is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
