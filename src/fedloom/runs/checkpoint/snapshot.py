"""Snapshots of all that changes from round to round, taken after a round and restored before another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

from fedloom.core.flight import Flight
from fedloom.core.types import State
from fedloom.method import SERVER_SLOTS, Memory
from fedloom.runs.build import Prepared
from fedloom.runs.checkpoint.flight import load_flight, save_flight
from fedloom.runs.checkpoint.store import Found, tensors
from fedloom.runs.checkpoint.tensors import pack
from fedloom.runs.inputs import Inputs
from fedloom.runs.ledger import Ledger
from fedloom.step import begin_flight

SERVER, ENGINE, COLUMNS, ROWS = "server.safetensors", "engine.safetensors", "ledger.safetensors", "rounds.parquet"
FLIGHT = "flight.safetensors"  # where rounds have no barrier


class Progress(NamedTuple):
    """The progress of a run between two rounds."""

    round: int  # the last that was played
    model: Tensor  # [P]
    memory: Memory
    flight: Flight | None = None  # where rounds have no barrier; it changes in place
    seconds: float = 0.0  # virtual, where evaluations go by them


class Snapshot(NamedTuple):
    """All that a checkpoint saves, by file."""

    round: int
    tensors: dict[str, State]
    rows: list[dict[str, Any]]  # of the ledger, one a round

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(value.numel() * value.element_size() for own in self.tensors.values() for value in own.values())

    def copied(self) -> Snapshot:
        """A copy on the host, in memory that no later round writes to."""
        copies = {file: {n: v.cpu() if v.is_cuda or file == FLIGHT else v.clone() for n, v in own.items()}
                  for file, own in self.tensors.items()}  # fmt: skip  # nothing writes to what a flight holds
        return self._replace(tensors=copies)

    def files(self) -> dict[str, Iterable[bytes | memoryview]]:
        """The contents of every file."""
        from fedloom.runs.parquet import table_bytes

        packed: dict[str, Iterable[bytes | memoryview]] = {file: pack(own) for file, own in self.tensors.items()}
        return {**packed, ROWS: [table_bytes(self.rows)]}


def take_snapshot(prepared: Prepared, ledger: Ledger, at: Progress) -> Snapshot:
    """Take a snapshot; its tensors are views, which the next round may write to."""
    server = {"model": at.model, **_named("memory", at.memory)}
    rows, columns, kept = ledger.save()
    tables = _named("ledger", {"clients": columns, "kept": kept})
    flight = {} if at.flight is None else {FLIGHT: save_flight(at.flight)}
    return Snapshot(at.round, {SERVER: server, ENGINE: prepared.engine.save(), COLUMNS: tables, **flight}, rows)


def restore_snapshot(prepared: Prepared, ledger: Ledger, found: Found) -> Progress:
    """Restore the run as it was when the checkpoint was taken."""
    at, method, setting = server_of(prepared.inputs, found), prepared.inputs.method, prepared.inputs.setting
    if not method.pace.barrier:
        flight = begin_flight(method, setting, at.model)
        load_flight(flight, tensors(found, FLIGHT), method, setting)
        at = at._replace(flight=flight)
    prepared.engine.load(tensors(found, ENGINE))
    ledger.load(*ledger_of(found))
    return at


def ledger_of(found: Found) -> tuple[list[dict[str, Any]], State, State]:
    """What `Ledger.save` gave when the checkpoint was taken."""
    from fedloom.runs.parquet import table_rows

    columns = _parted("ledger", tensors(found, COLUMNS))
    return table_rows(found.files[ROWS]), columns.get("clients", {}), columns.get("kept", {})


def server_of(inputs: Inputs, found: Found) -> Progress:
    """The server as it was when the checkpoint was taken."""
    server, device = tensors(found, SERVER), inputs.model.device
    memory = _parted("memory", server)
    whole: Memory = {}
    for slot in SERVER_SLOTS:
        whole[slot] = getattr(inputs.method, slot).resume(inputs.setting, inputs.model, memory.get(slot, {}))
    whole["local"] = {name: value.to(device, copy=True) for name, value in memory.get("local", {}).items()}
    return Progress(found.facts["round"], server["model"].to(device, copy=True), whole)


def _named(kind: str, states: dict[str, State]) -> State:
    """States of several owners as one, named `kind.owner.name`."""
    return {f"{kind}.{owner}.{name}": value for owner, state in states.items() for name, value in state.items()}


def _parted(kind: str, flat: State) -> dict[str, State]:
    """The opposite of `_named`."""
    states: dict[str, State] = {}
    for whole, value in flat.items():
        first, _, rest = whole.partition(".")
        if first == kind:
            owner, _, name = rest.partition(".")
            states.setdefault(owner, {})[name] = value
    return states
