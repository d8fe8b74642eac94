"""Clients' states on a node: a file for each state, named by the round that it is of, `CLIENT/ROUND-ATTEMPT-BEFORE`.

A round may come twice: delivered twice, or repeated by a server that was killed, resumed or rolled back. The client
then starts from the state that it started from the first time, so a state stays while the server may go back to it.
Rounds that the server has gone back before are void, and so are their states. Files are written whole or not at all,
and only their owner reads them: a state tells of its client's data.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from fedloom.codec import Rejected
from fedloom.codec.stamp import short_hash
from fedloom.core.types import State
from fedloom.errors import BadData
from fedloom.flower.node.state_files import StateFiles, StateFolder, StateRecords
from fedloom.flower.protocol.history import History
from fedloom.runs.checkpoint.tensors import pack

NAME = re.compile(r"(\d+)-(\d+)-(\d+)\.safetensors")
NOTHING = 0  # the round that a client's first state is the successor of
KEPT = "history.kept"  # next to a state: the rounds that the server could go back to when it was written


class Entry(NamedTuple):
    """A saved state."""

    round: int
    attempt: int
    before: int  # the round of the state that it was made from

    @property
    def name(self) -> str:
        """Its file's name."""
        return f"{self.round}-{self.attempt}-{self.before}.safetensors"


class Start(NamedTuple):
    """What a client's round starts from."""

    round: int  # of the state
    state: State | None  # None: the client is new, or its state is lost


class StateStore:
    """The states of one run's clients: in files of a folder or, where none is given, in Flower's Context.state."""

    def __init__(self, context_state: Any, folder: str, run: str, history: History, barrier: bool = True) -> None:
        """`barrier`: whether a checkpoint has no task in flight, whose client would begin it anew."""
        self._run, self._history, self._barrier = short_hash(run.encode()), history, barrier  # a run may have any name
        self._files: StateFiles = StateRecords(context_state, self._run)
        if folder:
            self._files = StateFolder(Path(folder) / self._run)

    def start_of(self, client: int, number: int) -> Start:
        """What round `number` of a client starts from: its newest state before that round."""
        entries = self._entries(client)
        ours = [one for one in entries if self._history.has(one.attempt, one.round)]
        past = [one for one in ours if one.round < number]
        found = past[-1].round if past else NOTHING
        later = next((one for one in ours if one.round >= number), None)
        void = max((one for one in entries if one not in ours), key=lambda one: (one.attempt, one.round), default=None)
        gone: float | None = later.before if later is not None and later.before != found else None
        if void is not None and not self._kept_for(client, void):
            gone = self._history.start_after(void.attempt)
        if gone is not None:
            raise Rejected(
                "round",
                f"round {number} starts from the client's state after round {gone}, which is not kept any more; it has "
                f"those after rounds {', '.join(str(one.round) for one in entries)}.",
            )
        return Start(found, self._state(client, past[-1]) if past else None)

    def _kept_for(self, client: int, void: Entry) -> bool:
        """Whether the state that the run went back to is among those kept when the last void one was written."""
        start = self._history.start_after(void.attempt)
        return start == NOTHING or start >= void.before or start in self._read(client, void).get(KEPT, torch.empty(0))

    def put(self, client: int, number: int, attempt: int, start: Start, state: State) -> None:
        """Write a client's state after a round, and remove those that no round can start from any more.

        It is on disk when this returns, before the reply leaves.
        """
        new, kept = Entry(number, attempt, start.round), self._history.kept
        self._files.write(client, new.name, pack({**state, KEPT: torch.tensor(kept, dtype=torch.int64)}))
        entries = self._entries(client)
        past = [one for one in entries if one.round < number and self._history.has(one.attempt, one.round)]
        needed = {new, *past[-1:]}
        for checkpoint in kept:
            needed |= set([one for one in past if one.round <= checkpoint][-1 if self._barrier else -2 :])
        for one in entries:
            if one not in needed:
                self._files.remove(client, one.name)

    def _entries(self, client: int) -> list[Entry]:
        """A client's states, the oldest first."""
        found = [NAME.fullmatch(name) for name in self._files.names(client)]
        return sorted(Entry(*(int(part) for part in one.groups())) for one in found if one)

    def _state(self, client: int, entry: Entry) -> State | None:
        """A state; None if it cannot be read, as if it were lost: the client starts as a new one."""
        return {name: value for name, value in self._read(client, entry).items() if name != KEPT} or None

    def _read(self, client: int, entry: Entry) -> State:
        """The tensors of a file; none if it cannot be read."""
        try:
            return load_tensors(self._files.read(client, entry.name))
        except BadData:  # it is too large
            raise
        except (SafetensorError, OSError, KeyError, ValueError):
            return {}
