"""Where are checkpoints, and are they whole? One folder each, named after its round and its manifest's hash.

The manifest holds the hash of every other file, and the folder's name that of the manifest, so that nothing in a
checkpoint can change unnoticed. A folder gets its name when all of it is on the disk, and loses it before it goes.
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

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedloom.core.types import State
from fedloom.files import remove_folder, sync, write_new
from fedloom.runs.checkpoint.tensors import names

MANIFEST = "manifest.json"
NAME = re.compile(r"round-(\d+)-([0-9a-f]{32})")
HIDDEN = "."  # what is not finished, or on its way out


class Damaged(Exception):
    """A checkpoint that is not what was written."""


class Found(NamedTuple):
    """A checkpoint that is whole."""

    path: Path
    facts: dict[str, Any]  # the manifest's, apart from the files' hashes
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
        if not path.exists():  # else it was saved before, to the last bit
            os.rename(parts, path)
            sync(folder)
    except OSError:
        with suppress(OSError):  # a full disk needs the room
            remove_folder(parts)
        raise
    return path


def list_all(folder: Path) -> list[Path]:
    """All checkpoints, the newest first."""
    if not folder.is_dir():
        return []
    named = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return [path for _, path in sorted(((int(m[1]), p) for m, p in named if m), reverse=True)]


def read(path: Path) -> Found:
    """A checkpoint, if every byte is what was written; else `Damaged` says what is wrong."""
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
                raise Damaged(f"{MANIFEST} names '{file}', which is not a file beside it")
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
    ) as problem:  # of an honest manifest this cannot be
        raise Damaged(f"{MANIFEST} is not one") from problem
    if number != int(name[1]):
        raise Damaged(f"it is of round {number!r}")
    return Found(path, facts, {file: path / file for file in files})


def tensors(found: Found, file: str) -> State:
    """The tensors of one file, in its order; they may still lie in it, so copy what is to be kept."""
    try:
        held = load_file(found.files[file])
        return {name: held[name] for name in names(found.files[file])}
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as problem:
        raise Damaged(f"{file} cannot be read: {problem}") from problem


def tidy(folder: Path, keep: Iterable[Path]) -> None:
    """Remove all checkpoints but some, and what unfinished ones left."""
    kept = {path.name for path in keep}
    for path in folder.iterdir():
        if path.is_dir() and path.name not in kept and (path.name.startswith(HIDDEN) or NAME.fullmatch(path.name)):
            gone = path
            if not path.name.startswith(HIDDEN):
                gone = path.with_name(f"{HIDDEN}old-{path.name}")
                os.rename(path, gone)
            remove_folder(gone)
