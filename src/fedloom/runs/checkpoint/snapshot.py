"""What changes from round to round? All of it, taken down after a round and put back before another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

from fedloom.core.types import State
from fedloom.method import SERVER_SLOTS, Memory
from fedloom.runs.build import Simulation
from fedloom.runs.checkpoint.store import Found, tensors
from fedloom.runs.checkpoint.tensors import pack
from fedloom.runs.ledger import Ledger

SERVER, CLIENTS, COLUMNS, ROWS = "server.safetensors", "clients.safetensors", "ledger.safetensors", "rounds.parquet"


class Reached(NamedTuple):
    """Where a run stands between two rounds."""

    round: int  # the last that was played
    model: Tensor  # [P]
    memory: Memory


class Snapshot(NamedTuple):
    """Everything that a run has to remember, by the file it is saved in."""

    round: int
    tensors: dict[str, State]
    rows: list[dict[str, Any]]  # of the ledger, one a round

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(value.numel() * value.element_size() for own in self.tensors.values() for value in own.values())

    def copied(self) -> Snapshot:
        """The same on the host, in memory that no later round writes to."""
        copies = {file: {n: v.cpu() if v.is_cuda else v.clone() for n, v in own.items()}
                  for file, own in self.tensors.items()}  # fmt: skip
        return self._replace(tensors=copies)

    def files(self) -> dict[str, Iterable[bytes | memoryview]]:
        """The contents of every file."""
        from fedloom.runs.parquet import table_bytes

        packed: dict[str, Iterable[bytes | memoryview]] = {file: pack(own) for file, own in self.tensors.items()}
        return {**packed, ROWS: [table_bytes(self.rows)]}


def take(world: Simulation, ledger: Ledger, at: Reached) -> Snapshot:
    """All that moved so far: a view, which the next round may write to."""
    server = {"model": at.model, **_named("memory", at.memory)}
    server |= {f"counts.{name}": value for name, value in _counts(world).items()}
    if world.world is not None:
        server["now"] = world.world.now
    clients = _named("clients", {"states": world.engine.states.save(), "residuals": world.wire.residuals.save()})
    rows, columns, kept = ledger.save()
    return Snapshot(
        at.round,
        {SERVER: server, CLIENTS: clients, COLUMNS: _named("ledger", {"clients": columns, "kept": kept})},
        rows,
    )


def put_back(world: Simulation, ledger: Ledger, found: Found) -> Reached:
    """The simulation as it was when the checkpoint was taken."""
    from fedloom.runs.parquet import table_rows

    server, device = tensors(found, SERVER), world.model.device
    memory = _parted("memory", server)
    whole: Memory = {}
    for slot in SERVER_SLOTS:
        whole[slot] = getattr(world.method, slot).resume(world.setting, world.model, memory.get(slot, {}))
    whole["local"] = {name: value.to(device, copy=True) for name, value in memory.get("local", {}).items()}
    for name, value in _counts(world).items():
        value.copy_(server[f"counts.{name}"])
    if world.world is not None:
        world.world.now = server["now"].to(device, copy=True)
    clients = _parted("clients", tensors(found, CLIENTS))
    world.engine.states.load(clients.get("states", {}))
    world.wire.residuals.load(clients.get("residuals", {}))
    columns = _parted("ledger", tensors(found, COLUMNS))
    ledger.load(table_rows(found.files[ROWS]), columns.get("clients", {}), columns.get("kept", {}))
    return Reached(found.facts["round"], server["model"].to(device, copy=True), whole)


def _counts(world: Simulation) -> State:
    """Whole numbers that a network counts by itself, such as the batches that batch norm has seen."""
    return {name: v for name, v in world.setting.module.state_dict().items() if not v.is_floating_point()}


def _named(kind: str, states: dict[str, State]) -> State:
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
