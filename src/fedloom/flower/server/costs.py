"""What a round cost, client by client: fate, seconds by phase, bytes, memory of the node's process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedloom.core.costs import Bytes, Costs
from fedloom.core.flight import LATE, UNAVAILABLE
from fedloom.flower.protocol.records import Payload
from fedloom.flower.server.transport import LinkBytes
from fedloom.world.simulated import reached

PHASES = ("seconds_down", "seconds_start", "seconds_decode", "seconds_compute", "seconds_encode", "seconds_up")


def phase_seconds(sent: float, came: float, facts: dict[str, Any], own: dict[str, Any]) -> dict[str, float]:
    """Seconds of each phase of one client's round; `facts` are its node's and `own` the client's.

    Clocks of two machines differ, so nothing is below 0. The way up takes what is left of the time between sending and
    receiving. A node trains its clients one after another: its work for the others counts as the way up.
    """
    found = {name: _number(own.get(name)) for name in ("seconds_decode", "seconds_compute", "seconds_encode")}
    whole = max(0.0, came - sent)
    start = min(_number(facts.get("seconds_start")), whole)
    began = _number(facts.get("began"))
    down = min(max(0.0, began - sent - start), whole)
    up = max(0.0, whole - down - start - sum(found.values()))
    return {"seconds_down": down, "seconds_start": start, **found, "seconds_up": up}


def busy_seconds(facts: dict[str, Any]) -> float:
    """Seconds that a node worked on a message, as it reports."""
    began, ended = _number(facts.get("began")), _number(facts.get("ended"))
    return max(0.0, ended - began) + _number(facts.get("seconds_start"))


def memory_bytes(facts: dict[str, Any]) -> int:
    """Bytes that a node's process held, as it reports."""
    return int(_number(facts.get("rss")))


def _number(value: Any) -> float:
    """A number that a node reports; 0 if it is none, or cannot be seconds or bytes."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**62
    return float(value) if real else 0.0


class CostRecorder:
    """Collects a round's costs while its messages travel."""

    def __init__(self, clients: list[int]) -> None:
        self.clients = clients
        self.down, self.up = dict.fromkeys(clients, 0), dict.fromkeys(clients, 0)  # bytes
        self._transport = dict.fromkeys(clients, (0, 0))  # bytes down and up besides
        self._fate = dict.fromkeys(clients, UNAVAILABLE)
        self._phases = {client: dict.fromkeys(PHASES, 0.0) for client in clients}
        self._memory = dict.fromkeys(clients, 0)

    def set_fate(self, client: int, fate: int) -> None:
        """A client's fate so far; a later one replaces it."""
        self._fate[client] = fate

    def fate(self, client: int) -> int:
        """A client's fate so far."""
        return self._fate[client]

    def record_task(self, client: int, size: int) -> None:
        """A task of `size` bytes was sent."""
        self.down[client], self._fate[client] = size, LATE  # until an answer comes

    def record_reply(self, client: int, reply: Payload, facts: dict[str, Any], sent: float, came: float) -> None:
        """A reply came, sound or not, in a message with these `facts`."""
        self.up[client] += reply.size
        self._phases[client] = phase_seconds(sent, came, facts, reply.facts)
        self._memory[client] = memory_bytes(facts)

    def record_link(self, clients: list[int], link: LinkBytes) -> None:
        """A node's link carried so many bytes; its clients share what their own bytes leave of them."""
        down = max(0, round(link.down) - sum(self.down[client] for client in clients))
        up = max(0, round(link.up) - sum(self.up[client] for client in clients))
        for place, client in enumerate(clients):
            self._transport[client] = (down + place) // len(clients), (up + place) // len(clients)

    def measured(self, down: Bytes, up: Bytes, duration: Tensor) -> Costs:
        """The round's costs [C each], zero where a node did not answer; `down` and `up` are sizes by kind."""

        def column(values: dict[int, Any], kind: torch.dtype = torch.int64) -> Tensor:
            return torch.tensor([values[client] for client in self.clients], dtype=kind)

        phases = {
            name: torch.tensor([self._phases[client][name] for client in self.clients], dtype=torch.float64)
            for name in PHASES
        }
        fate, sent = column(self._fate), column(self.up)
        transport_down, transport_up = column(self._transport).view(-1, 2).unbind(1)
        columns = {
            "fate": fate,  # places in `fedloom.core.flight.FATES`
            "seconds": torch.stack(list(phases.values())).sum(0),
            **phases,
            "rss_bytes": column(self._memory),  # the most memory that the node's process held
            "bytes_down": column(self.down),
            "bytes_up": sent,
            # what Flower added to the bytes of the client's node, split among its clients; reckoned
            "transport_down": transport_down,
            "transport_up": transport_up,
        }
        return Costs(down, up, reached(fate), sent, columns, duration)
