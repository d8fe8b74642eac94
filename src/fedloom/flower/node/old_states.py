"""What a node's folder of clients' states holds, run by run, and clearing what no run will ask for again."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from fedloom.errors import BadData
from fedloom.flower.node.state_store import NAME
from fedloom.flower.protocol.first_weights import START

DAY = 86_400.0  # seconds
WEIGHTS = re.compile(rf"{START}-[0-9a-f]+\.safetensors")


class Held(NamedTuple):
    """The states of one run's clients, or the weights that runs began with."""

    path: Path
    clients: int  # 0: weights
    files: int
    size: int  # bytes
    written: float  # seconds since 1970, of the newest file


def held_in(folder: Path) -> list[Held]:
    """What a node's folder holds, the oldest first; a folder of something else is refused."""
    if not folder.is_dir():
        raise BadData(f"'{folder}' is not a folder; expected a node's folder of client states.")
    found = []
    for path in folder.iterdir():
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [file for file in files if not file.is_dir()]
        ours = [bool(NAME.fullmatch(file.name) if path.is_dir() else WEIGHTS.fullmatch(file.name)) for file in files]
        if not all(ours):
            strange = files[ours.index(False)].relative_to(folder)
            raise BadData(f"'{folder}' has '{strange}', which is no client's state; name a node's folder of states.")
        facts = [file.stat() for file in files] or [path.stat()]
        clients = {file.parent for file in files} if path.is_dir() else ()
        size, written = sum(one.st_size for one in facts if files), max(one.st_mtime for one in facts)
        found.append(Held(path, len(clients), len(files), size, written))
    return sorted(found, key=lambda one: one.written)


def remove_older(folder: Path, days: float) -> list[Held]:
    """Remove what nothing was written to for so many days, and return it."""
    old = [one for one in held_in(folder) if time.time() - one.written > days * DAY]
    for one in old:
        if one.path.is_dir():
            shutil.rmtree(one.path)
        else:
            one.path.unlink()
    return old
