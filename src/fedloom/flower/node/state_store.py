"""Clients' states on a node: for each client the state after its last round and the state before that round.

A round may come twice: delivered twice, or repeated by a server that was killed and resumed. The client then starts
from the same state and ends in the same state. Files are written whole or not at all, and only their owner reads them:
a state tells of its client's data.
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


class SavedState(NamedTuple):
    """One client's saved states."""

    round: int  # the client's last
    before: State | None  # None: that round was its first
    after: State

    def start_of(self, number: int) -> State | None:
        """The state that round `number` starts from; None for a new client."""
        if number > self.round:
            return self.after
        if number == self.round:
            return self.before
        raise Rejected(
            "round", f"the client's state is that after round {self.round}; it cannot repeat round {number}."
        )


class StateStore:
    """The states of one run's clients: in files of a folder or, where none is given, in Flower's Context.state."""

    def __init__(self, context_state: Any, folder: str, run: str) -> None:
        self._context, self._run = context_state, short_hash(run.encode())  # a run may have any name
        self._folder = Path(folder) / self._run if folder else None

    def get(self, client: int) -> SavedState | None:
        """A client's saved states; None if there are none, or none that can be read."""
        data = self._read(client)
        if data is None:
            return None
        try:
            tensors = load_tensors(data)
            return SavedState(int(tensors[ROUND]), _named(BEFORE, tensors) or None, _named(AFTER, tensors))
        except (SafetensorError, KeyError, ValueError):
            return None  # as if lost: the client starts as a new one

    def put(self, client: int, saved: SavedState) -> None:
        """Write a client's states; they are on disk when this returns, before the reply leaves."""
        tensors: State = {ROUND: torch.tensor(saved.round)}
        tensors |= {BEFORE + name: value for name, value in (saved.before or {}).items()}
        tensors |= {AFTER + name: value for name, value in saved.after.items()}
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._folder / f"{client}.safetensors", pack(tensors), mode=0o600)
            return
        from flwr.app import ConfigRecord

        self._context[self._name(client)] = ConfigRecord({"tensors": b"".join(bytes(part) for part in pack(tensors))})

    def _read(self, client: int) -> bytes | None:
        """A client's bytes, from its file or from Flower's records."""
        if self._folder is not None:
            file = self._folder / f"{client}.safetensors"
            return file.read_bytes() if file.exists() else None
        record = self._context.get(self._name(client))
        data = None if record is None else record.get("tensors")
        return data if isinstance(data, bytes) else None

    def _name(self, client: int) -> str:
        """The name of a client's record in Flower's Context.state."""
        return f"fedloom.{self._run}.{client}"


def _named(kind: str, tensors: State) -> State:
    """The tensors of one of the two states, which their names begin with."""
    return {name.removeprefix(kind): value for name, value in tensors.items() if name.startswith(kind)}
