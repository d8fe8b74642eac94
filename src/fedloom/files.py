"""Files that are written whole or not at all, and are on the disk before they get their names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from errno import EDQUOT, EFBIG, ENOSPC
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fedloom.errors import RunStopped

resume_with = ContextVar("resume_with", default="fedloom run --resume {folder}")  # the command, for messages


class Written(NamedTuple):
    """The hash and size of a written file."""

    sha256: str
    size: int  # bytes


def write_new(path: Path, chunks: Iterable[bytes | memoryview], mode: int = 0o644) -> Written:
    """Write a file that does not exist yet, and wait until the disk has it."""
    digest, size = sha256(), 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        for chunk in chunks:
            digest.update(chunk)
            left = memoryview(chunk)
            size += len(left)
            while left:
                left = left[os.write(file, left) :]  # the system may write less than it is given
        os.fsync(file)
    finally:
        os.close(file)
    return Written(digest.hexdigest(), size)


def replace_file(path: Path, chunks: Iterable[bytes | memoryview], mode: int = 0o644) -> None:
    """Write a temporary file next to `path`, then rename it to `path`."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)  # of a run that was killed; the folder is locked, so no other process writes it
    try:
        write_new(temporary, chunks, mode)
        os.rename(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until the disk has a file's contents, or a folder's names."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove_folder(folder: Path) -> None:
    """Remove a folder and all that is in it."""
    for name in os.listdir(folder):
        inside = folder / name
        if inside.is_dir() and not inside.is_symlink():
            remove_folder(inside)
        else:
            os.unlink(inside)
    os.rmdir(folder)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise RunStopped, with what to do, in place of errors of the disk."""
    try:
        yield
    except OSError as problem:
        where = problem.filename or folder
        todo = "make the folder writable, or copy it elsewhere"
        if problem.errno in (ENOSPC, EDQUOT, EFBIG):
            todo = f"free some room on the disk of '{folder}'"
        raise RunStopped(
            f"cannot write '{where}': {problem.strerror or problem}; {todo}, then go on from the last checkpoint with "
            f"`{resume_with.get().format(folder=folder)}`."
        ) from problem
