"""What does a node remember of its clients? Of each its state after its last round and the one before that round.

A round may come twice: delivered twice, or played again by a server that was killed and resumed. It then begins from
the state that it began from, and ends as it ended. Files are written whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from fedloom.codec import Rejected
from fedloom.codec.stamp import short_hash
from fedloom.core.types import State
from fedloom.files import replace_file
from fedloom.runs.checkpoint.tensors import pack

BEFORE, AFTER, ROUND = "before.", "after.", "round"


class Kept(NamedTuple):
    """One client's states."""

    round: int  # its last
    before: State | None  # None: it was met for the first time then
    after: State

    def at(self, number: int) -> State | None:
        """The state that round `number` begins from; None: a newcomer's."""
        if number > self.round:
            return self.after
        if number == self.round:
            return self.before
        raise Rejected("round", f"the client's state is that after round {self.round}; round {number} is long over.")


class Store:
    """The states of one run's clients: in files of a folder or, where none is given, in Flower's Context.state."""

    def __init__(self, context_state: Any, folder: str, run: str) -> None:
        self._context, self._run = context_state, short_hash(run.encode())  # a run may have any name
        self._folder = Path(folder) / self._run if folder else None

    def get(self, client: int) -> Kept | None:
        """What is kept of a client; None: nothing, or nothing that can be read."""
        data = self._read(client)
        if data is None:
            return None
        try:
            tensors = load_tensors(data)
            return Kept(int(tensors[ROUND]), _named(BEFORE, tensors) or None, _named(AFTER, tensors))
        except (SafetensorError, KeyError, ValueError):
            return None  # as if it had been lost: the client comes back as a newcomer

    def put(self, client: int, kept: Kept) -> None:
        """Keep it, really, before anybody hears of it."""
        tensors: State = {ROUND: torch.tensor(kept.round)}
        tensors |= {BEFORE + name: value for name, value in (kept.before or {}).items()}
        tensors |= {AFTER + name: value for name, value in kept.after.items()}
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._folder / f"{client}.safetensors", pack(tensors))
            return
        from flwr.app import ConfigRecord

        self._context[self._name(client)] = ConfigRecord({"tensors": b"".join(bytes(part) for part in pack(tensors))})

    def _read(self, client: int) -> bytes | None:
        if self._folder is not None:
            file = self._folder / f"{client}.safetensors"
            return file.read_bytes() if file.exists() else None
        record = self._context.get(self._name(client))
        data = None if record is None else record.get("tensors")
        return data if isinstance(data, bytes) else None

    def _name(self, client: int) -> str:
        return f"fedloom.{self._run}.{client}"


def _named(kind: str, tensors: State) -> State:
    return {name.removeprefix(kind): value for name, value in tensors.items() if name.startswith(kind)}
