"""Traces of availability and links over time, read from a table."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.world.table import clients_in, read_numbers, refuse, unique

FACTS = ("available", "up_factor", "down_factor", "reliability")


class Link(NamedTuple):
    """The clients' links at one time."""

    available: Tensor  # [C] bool
    up: Tensor  # [C] factor of the uplink's rate
    down: Tensor  # [C] factor of the downlink's rate
    reliability: Tensor  # [C] probability that a message arrives


class Trace(NamedTuple):
    """Steps in time: a row holds from its second until the client's next row, and the trace repeats."""

    times: Tensor  # [T] all seconds at which anything changes, rising
    keys: Tensor  # [R] client * T + place in `times`, rising
    first: Tensor  # [N + 1] where each client's rows begin
    facts: Tensor  # [R + 1, 4] in the order of `FACTS`; the last row is for clients that have none
    period: float  # seconds after which the trace repeats

    def __call__(self, ids: Tensor, seconds: Tensor) -> Link:
        """The links of the clients `ids` [C] at `seconds`, one time for all or one each [C]."""
        place = torch.searchsorted(self.times, (seconds % self.period).expand(ids.shape).contiguous(), right=True) - 1
        row = torch.searchsorted(self.keys, ids * len(self.times) + place, right=True) - 1
        start, stop = self.first[ids], self.first[ids + 1]
        row = torch.where(
            row < start, stop - 1, row
        )  # before its first row a client is as after its last: the trace repeats
        found = self.facts[torch.where(start == stop, len(self.facts) - 1, row)]
        return Link(found[:, 0] > 0, found[:, 1], found[:, 2], found[:, 3])

    def to(self, device: torch.device | str) -> Trace:
        """The trace on another torch device."""
        times, keys, first, facts = (value.to(device) for value in self[:4])
        return Trace(times, keys, first, facts, self.period)


def read_trace(path: Path, total: int, clients: Tensor | None = None, period: float | None = None) -> Trace:
    """Read a trace from a table, with one row for each change of a client.

    Columns are `time` (seconds from 0), `client` (0 to `total` - 1) and any of `available` (0 or 1), `up_factor`,
    `down_factor` (above 0) and `reliability` (0 to 1), which are 1 if left out. Clients without rows are always
    available, at their full rates. `clients` [N] are the table's numbers of the clients in the fleet, if some are left
    out. Without a `period` the last step lasts as long as the one before it.
    """
    columns = read_numbers(path, ("time", "client"), FACTS)
    client, time = clients_in(path, columns["client"], total), columns["time"]
    refuse(path, "time", time, time >= 0, "seconds, not below 0")
    facts = torch.ones(len(time), len(FACTS), dtype=torch.float64)
    for place, name in enumerate(FACTS):
        if name in columns:
            values = facts[:, place] = columns[name]
            good, wanted = {
                "available": ((values == 0) | (values == 1), "0 or 1"),
                "reliability": ((values >= 0) & (values <= 1), "a probability between 0 and 1"),
            }.get(name, (values > 0, "a number above 0"))
            refuse(path, name, values, good, wanted)
    times, place = time.unique(return_inverse=True)
    keys, order = (client * len(times) + place).sort(stable=True)
    refuse(path, "time", time, unique(order, keys[1:] == keys[:-1]), "every client once a time; this is its second row")
    last = float(times[-1])
    if period is None:
        period = last + (last - float(times[-2]) if len(times) > 1 else 1.0)
    refuse(path, "time", time, time < period, f"seconds before the period ends, at {period:g}")
    trace = Trace(
        times=times,
        keys=keys,
        first=torch.searchsorted(keys, torch.arange(total + 1) * len(times)),
        facts=torch.cat((facts[order], torch.ones(1, len(FACTS), dtype=torch.float64))),
        period=period,
    )
    return trace if clients is None else _of(trace, clients)


def _of(trace: Trace, clients: Tensor) -> Trace:
    """The trace of some clients, renumbered in their order."""
    size = len(trace.times)
    owner = trace.keys // size
    number = torch.full((len(trace.first) - 1,), -1).index_put((clients,), torch.arange(len(clients)))
    kept = number[owner] >= 0
    keys, order = (number[owner] * size + trace.keys % size)[kept].sort()
    facts = torch.cat((trace.facts[:-1][kept][order], trace.facts[-1:]))
    first = torch.searchsorted(keys, torch.arange(len(clients) + 1) * size)
    return trace._replace(keys=keys, first=first, facts=facts)
