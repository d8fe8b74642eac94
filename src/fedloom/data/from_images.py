"""`from_images`: folders of pictures, a folder per class."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedloom.data.dataset import Dataset
from fedloom.data.prepare import Part, assembled
from fedloom.errors import BadData, BadExperiment
from fedloom.reading.cap import check_room, reason

if TYPE_CHECKING:
    from PIL.Image import Image

KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PROGRESS_EVERY = 2.0  # seconds
COLOURS = 8  # bytes of a pixel while a picture is unpacked
PIXEL = 18  # of three colours: as read, joined, and as float32


def from_images(
    folder: str | Path,
    size: int | tuple[int, int] | None = None,
    *,
    client: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Dataset:
    """Pictures in `CLASS/.../FILE`, or in `train/CLASS/...` and `test/CLASS/...`, standardised by colour.

    Args:
        folder: where the folders of classes are; their names are kept.
        size: height and width that pictures are resized to, or one number for both; needed where sizes differ.
        client: a regular expression that finds the client's name in a picture's path below `folder`: its first group,
            or all that it matches.
        tell: called with progress while pictures are read.
    """
    folder = Path(folder)
    parts = {name: folder / name for name in ("train", "test")}
    whole = not all(path.is_dir() for path in parts.values())
    files = {name: _files(path) for name, path in ({"train": folder} if whole else parts).items()}
    for name, found in files.items():
        if not found:
            raise BadData(
                f"{folder if whole else parts[name]}: no pictures in CLASS/FILE ({', '.join(KINDS[:3])} ...)."
            )
    pattern = _pattern(client)
    every = [path for found in files.values() for path, _ in found]
    pictures = _read(every, _height_and_width(size), tell)
    names, read = sorted({label for found in files.values() for _, label in found}), []
    for found in files.values():
        x, pictures = pictures[: len(found)], pictures[len(found) :]
        ids = None if pattern is None else [_client(pattern, path.relative_to(folder).as_posix()) for path, _ in found]
        read.append(Part(x, np.array([names.index(label) for _, label in found]), ids))
    data = assembled(folder.name, read[0], read[1] if len(read) == 2 else None, str(folder))
    return data._replace(class_names=tuple(names), classes=len(names))


def has_images(folder: Path) -> bool:
    """Whether a folder holds folders with pictures."""
    return folder.is_dir() and next(iter(_files(folder)), None) is not None


def _files(folder: Path) -> list[tuple[Path, str]]:
    """The pictures below a folder of classes, each with its class, in the order of their paths."""
    found = (path for path in sorted(folder.glob("*/**/*")) if path.suffix.lower() in KINDS and path.is_file())
    return [(path, path.relative_to(folder).parts[0]) for path in found]


def _height_and_width(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """The size as height and width."""
    pair = (size, size) if isinstance(size, int) else tuple(size or ())
    if size is not None and (len(pair) != 2 or min(pair) < 1):
        raise BadExperiment(f"size is {size!r}; expected pixels, as in size=32, or height and width, size=[32,48].")
    return (pair[0], pair[1]) if pair else None


def _pattern(client: str | None) -> re.Pattern[str] | None:
    """The expression that finds a client's name."""
    try:
        return None if client is None else re.compile(client)
    except re.error as problem:
        raise BadExperiment(f"client is {client!r}, which is no regular expression ({problem}).") from None


def _client(pattern: re.Pattern[str], path: str) -> str:
    """The client's name in a path."""
    found = pattern.search(path)
    if found is None:
        raise BadData(f"{path}: no client's name by {pattern.pattern!r}; expected one in every path.")
    return found[1] if pattern.groups else found[0]


def _read(files: list[Path], size: tuple[int, int] | None, tell: Callable[[str], None] | None) -> NDArray[np.uint8]:
    """All pictures [n, h, w, colours], grey [n, h, w] if all are grey."""
    try:
        from PIL import Image
    except ImportError:
        raise BadData("pictures are read by Pillow, which is not installed; run pip install pillow.") from None
    read: list[Any] = []
    told = time.perf_counter()
    for path in files:
        try:
            with Image.open(path) as picture:
                wide, high = picture.size  # by its header
                check_room(path, COLOURS * wide * high)
                if not read:
                    high, wide = size or (high, wide)
                    check_room(f"{path} and {len(files) - 1:,} pictures of its size", len(files) * PIXEL * wide * high)
                read.append(_pixels(picture, size))
        except BadData:
            raise
        except Exception as problem:  # what damaged pictures raise depends on their kind
            raise BadData(f"{path} cannot be read as a picture ({reason(problem)}).") from problem
        if size is None and read[-1].shape[:2] != read[0].shape[:2]:
            raise BadData(
                f"{path} has {'x'.join(map(str, read[-1].shape[:2]))} pixels and {files[0].name} "
                f"{'x'.join(map(str, read[0].shape[:2]))}; say a size for all: size=32 or size=[HEIGHT,WIDTH]."
            )
        if tell is not None and time.perf_counter() - told > PROGRESS_EVERY:
            told = time.perf_counter()
            tell(f"read {len(read):,} of {len(files):,} pictures")
    if any(one.ndim == 3 for one in read):
        read = [one if one.ndim == 3 else np.repeat(one[:, :, None], 3, 2) for one in read]
    return np.stack(read)


def _pixels(picture: Image, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """A picture's pixels, grey or in three colours."""
    picture = picture.convert("L" if picture.mode in ("1", "L", "I;16") else "RGB")
    if size is not None and picture.size != size[::-1]:
        picture = picture.resize(size[::-1])
    return np.asarray(picture, np.uint8)
