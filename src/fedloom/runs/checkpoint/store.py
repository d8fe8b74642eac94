"""Checkpoints on the disk: one folder each, named after its round and the hash of its manifest.

The manifest holds the hash of every other file, and the folder's name that of the manifest, so that no change in a
checkpoint goes unnoticed. A folder gets its name when all of it is on the disk, and loses it before it is removed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.core.types import State
from fedloom.errors import BadData
from fedloom.files import remove_folder, sync, write_new
from fedloom.reading.tensors import read_tensors
from fedloom.runs.checkpoint.tensors import names

MANIFEST = "manifest.json"
NAME = re.compile(r"round-(\d+)-([0-9a-f]{32})")
UNFINISHED = re.compile(r"\.new-(\d+)-\d+")
HIDDEN = "."  # names of unfinished checkpoints, and of those that are being removed


class Damaged(Exception):
    """A checkpoint differs from what was written."""


class Found(NamedTuple):
    """A complete checkpoint."""

    path: Path
    facts: dict[str, Any]  # the manifest without the files' hashes
    files: dict[str, Path]


def save(folder: Path, number: int, files: Mapping[str, Iterable[bytes | memoryview]], facts: dict[str, Any]) -> Path:
    """Write the checkpoint of round `number` into `folder`."""
    parts = folder / f"{HIDDEN}new-{number}-{os.getpid()}"
    if parts.exists():
        remove_folder(parts)
    os.mkdir(parts)
    try:
        written = {name: write_new(parts / name, chunks)._asdict() for name, chunks in files.items()}
        text = json.dumps({"round": number, **facts, "files": written}, indent=1).encode()
        write_new(parts / MANIFEST, [text])
        sync(parts)
        path = folder / f"round-{number}-{sha256(text).hexdigest()[:32]}"
        if not path.exists():  # else the same bytes were saved before
            os.rename(parts, path)
            sync(folder)
    except OSError:
        with suppress(OSError):  # free the space if the disk is full
            remove_folder(parts)
        raise
    return path


def list_all(folder: Path) -> list[Path]:
    """All checkpoints, the newest first."""
    if not folder.is_dir():
        return []
    named = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return [path for _, path in sorted(((int(m[1]), p) for m, p in named if m), reverse=True)]


def rounds(folder: Path) -> list[int]:
    """The rounds of all checkpoints, and of one that is being written."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = [NAME.fullmatch(name) or UNFINISHED.fullmatch(name) for name in names]
    return sorted({int(one[1]) for one in found if one})


def read(path: Path) -> Found:
    """Read and verify a checkpoint; raise `Damaged` if a byte differs from what was written."""
    name = NAME.fullmatch(path.name)
    assert name is not None
    try:
        text = (path / MANIFEST).read_bytes()
        if sha256(text).hexdigest()[:32] != name[2]:
            raise Damaged(f"{MANIFEST} has changed")
        facts = json.loads(text)
        files, number = facts.pop("files"), facts["round"]
        for file, wanted in files.items():
            if Path(file).name != file:
                raise Damaged(f"{MANIFEST} names '{file}', which is not a file in its folder")
            size = (path / file).stat().st_size
            if size != wanted["size"]:
                raise Damaged(f"{file} has {size} bytes instead of {wanted['size']}")
            with (path / file).open("rb") as opened:
                if file_digest(opened, "sha256").hexdigest() != wanted["sha256"]:
                    raise Damaged(f"{file} has changed")
    except OSError as problem:
        raise Damaged(f"{Path(problem.filename or path).name} cannot be read: {problem.strerror}") from problem
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as problem:  # no manifest that fedloom writes raises these
        raise Damaged(f"{MANIFEST} is not one") from problem
    if number != int(name[1]):
        raise Damaged(f"it is of round {number!r}")
    return Found(path, facts, {file: path / file for file in files})


def tensors(found: Found, file: str) -> State:
    """The tensors of one file, in its order; they may be mapped from it, so copy those that you keep."""
    try:
        held = read_tensors(found.files[file])
    except BadData as problem:
        raise Damaged(str(problem)) from problem
    return {name: held[name] for name in names(found.files[file])}


def tidy(folder: Path, keep: Iterable[Path]) -> None:
    """Remove all checkpoints but those in `keep`, and the remains of unfinished ones."""
    kept = {path.name for path in keep}
    for path in folder.iterdir():
        if path.is_dir() and path.name not in kept and (path.name.startswith(HIDDEN) or NAME.fullmatch(path.name)):
            remove(path)


def remove(path: Path) -> None:
    """Remove a checkpoint, which is none from the first moment on."""
    gone = path
    if not path.name.startswith(HIDDEN):
        gone = path.with_name(f"{HIDDEN}old-{path.name}")
        os.rename(path, gone)
    remove_folder(gone)
