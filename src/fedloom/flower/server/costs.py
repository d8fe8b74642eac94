"""What did a round take? Measured: bytes as they were sent, seconds by phase, memory of the node."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.types import State
from fedloom.flower.protocol.records import Item
from fedloom.flower.protocol.transport import Bytes
from fedloom.world.simulated import DOWNLOAD_LOST, LATE, UNAVAILABLE

PHASES = ("seconds_down", "seconds_start", "seconds_decode", "seconds_compute", "seconds_encode", "seconds_up")


class Spent(NamedTuple):
    """What a round took [C each], as far as nodes answered; zero elsewhere."""

    fate: Tensor  # places in `fedloom.world.simulated.FATES`
    phases: State  # seconds, by `PHASES`
    rss_bytes: Tensor  # the most memory that the node's process held
    bytes_down: Tensor
    bytes_up: Tensor
    transport_down: Tensor  # bytes of the client's part of what else its node's link carried, reckoned
    transport_up: Tensor
    duration: Tensor  # [] seconds until the server went on

    @property
    def trained(self) -> Tensor:
        """Who was reached, whatever became of it [C]."""
        return (self.fate != UNAVAILABLE) & (self.fate != DOWNLOAD_LOST)

    def columns(self) -> State:
        """One column each, for tables [C each]."""
        total = torch.stack(list(self.phases.values())).sum(0)
        sizes = {"rss_bytes": self.rss_bytes, "bytes_down": self.bytes_down, "bytes_up": self.bytes_up}
        sizes |= {"transport_down": self.transport_down, "transport_up": self.transport_up}
        return {"fate": self.fate, "seconds": total, **self.phases, **sizes}


def phases_of(sent: float, came: float, facts: dict[str, Any], own: dict[str, Any]) -> dict[str, float]:
    """Seconds of one client's part, from what its node says; clocks of two machines differ, so nothing is below 0.

    Waiting is what is left of the time between sending and hearing once the node's own work is taken off. A node works
    for its clients one after another, and what it does for others is waiting on the way up.
    """
    found = {name: _seconds(own.get(name)) for name in ("seconds_decode", "seconds_compute", "seconds_encode")}
    whole = max(0.0, came - sent)
    start = min(_seconds(facts.get("seconds_start")), whole)
    began = _seconds(facts.get("began"))
    down = min(max(0.0, began - sent - start), whole)
    up = max(0.0, whole - down - start - sum(found.values()))
    return {"seconds_down": down, "seconds_start": start, **found, "seconds_up": up}


def _seconds(value: Any) -> float:
    """A number that a node says, if it can be one."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**62
    return float(value) if real else 0.0


def work_of(facts: dict[str, Any]) -> float:
    """Seconds that a node was busy with a message, as it says."""
    began, ended = _seconds(facts.get("began")), _seconds(facts.get("ended"))
    return max(0.0, ended - began) + _seconds(facts.get("seconds_start"))


def memory_of(facts: dict[str, Any]) -> int:
    """Bytes that a node's process held, if it says so."""
    return int(_seconds(facts.get("rss")))


class Table:
    """The rows of a round while it is played."""

    def __init__(self, clients: list[int]) -> None:
        self.clients = clients
        self.down, self.up = dict.fromkeys(clients, 0), dict.fromkeys(clients, 0)  # bytes
        self._carried = dict.fromkeys(clients, (0, 0))  # bytes down and up beside these
        self._fate = dict.fromkeys(clients, UNAVAILABLE)
        self._phases = {client: dict.fromkeys(PHASES, 0.0) for client in clients}
        self._memory = dict.fromkeys(clients, 0)

    def fate(self, client: int, fate: int) -> None:
        """What has become of a client so far."""
        self._fate[client] = fate

    def sent(self, client: int, size: int) -> None:
        """Its task is on its way."""
        self.down[client], self._fate[client] = size, LATE  # until it is heard of

    def came(self, client: int, item: Item, facts: dict[str, Any], sent: float, came: float) -> None:
        """Something came of it, whatever that may be."""
        self.up[client] += item.size
        self._phases[client] = phases_of(sent, came, facts, item.facts)
        self._memory[client] = memory_of(facts)

    def carried(self, clients: list[int], link: Bytes) -> None:
        """What the link of a node has carried, of which these clients' bytes are a part; they share the rest."""
        down = max(0, round(link.down) - sum(self.down[client] for client in clients))
        up = max(0, round(link.up) - sum(self.up[client] for client in clients))
        for place, client in enumerate(clients):
            self._carried[client] = (down + place) // len(clients), (up + place) // len(clients)

    def spent(self, duration: Tensor) -> Spent:
        """All of it."""

        def column(values: dict[int, Any], kind: torch.dtype) -> Tensor:
            return torch.tensor([values[client] for client in self.clients], dtype=kind)

        phases = {
            name: torch.tensor([self._phases[client][name] for client in self.clients], dtype=torch.float64)
            for name in PHASES
        }
        memory, down, up = (column(values, torch.int64) for values in (self._memory, self.down, self.up))
        other_down, other_up = column(self._carried, torch.int64).view(-1, 2).unbind(1)
        return Spent(column(self._fate, torch.int64), phases, memory, down, up, other_down, other_up, duration)
