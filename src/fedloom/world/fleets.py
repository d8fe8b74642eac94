"""The devices of a fleet: named distributions, or a user's own table.

Each value is a pure function of (seed, client, column). Every preset draws each column from a range: uniformly in
FedDD's Table 4, log-uniformly in the others. Columns are independent but for `cycles` and `flops`, which share a draw.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.devices import RANGES, Devices, allowed, expected
from fedloom.core.transport import NEUTRAL, SEGMENT, Transport
from fedloom.errors import BadExperiment, unknown
from fedloom.world.table import TABLES, read_devices

Range = tuple[float, float]
UNIFORM = ("table4",)  # the others are log-uniform
GIGA = 2.0**30
OWN = Devices._fields[:-1]  # columns of devices, without those of their transport


def equal() -> dict[str, Range]:
    """All alike: a Raspberry Pi 4 (1.5 GHz, 8 GFLOP/s in Linpack, 4 GiB) on 10 Mbit/s down and 1 Mbit/s up."""
    alike = {"cycles": 1.5e9, "cycles_per_example": 1e6, "flops": 8e9, "up": 1e6, "down": 1e7, "latency": 0.05}
    rest = {"memory": 4 * GIGA, "reliability": 1, "availability": 1, "compute_watts": 5, "radio_watts": 1, "fading": 0}
    return {column: (value, value) for column, value in {**alike, **rest}.items()}


def table4() -> dict[str, Range]:
    """FedDD's simulation (its Table 4): 1-5 kbit/s up, 40-200 kbit/s down, 1-10 GHz, 1-10 Mcycles an example.

    The paper has no latency; FLOP/s (one a cycle), memory and watts are not its own but orders of magnitude.
    """
    return {
        **equal(),
        "cycles": (1e9, 1e10),
        "cycles_per_example": (1e6, 1e7),
        "flops": (1e9, 1e10),
        "up": (1e3, 5e3),
        "down": (4e4, 2e5),
        "latency": (0, 0),
    }


def iot() -> dict[str, Range]:
    """Single-board computers on NB-IoT to LTE-M: 3GPP Cat-NB1 (26/62 kbit/s, up to 10 s) to Cat-M1 (1/1 Mbit/s, 15 ms).

    Computing and watts are between a Raspberry Pi Zero 2 and a Pi 4, by order of magnitude.
    """
    return {
        **equal(),
        "cycles": (1e9, 1.5e9),
        "flops": (1e9, 8e9),
        "up": (6.2e4, 1e6),
        "down": (2.6e4, 1e6),
        "latency": (0.015, 10),
        "memory": (0.5 * GIGA, 4 * GIGA),
        "reliability": (0.9, 0.99),
        "availability": (0.8, 1),
        "compute_watts": (1.5, 6),
        "radio_watts": (0.5, 1),
        "fading": (0.3, 0.3),
    }


def mobile_4g() -> dict[str, Range]:
    """Phones on LTE: 13/6 Mbit/s and 1-3 W of radio (Huang et al., MobiSys 2012), 44-66 ms (Opensignal, US 2019).

    The rates are medians. The spread around them, computing, memory and how often a phone is idle are orders of
    magnitude.
    """
    return {
        **equal(),
        "cycles": (1.5e9, 3e9),
        "flops": (5e9, 5e10),
        "up": (2e6, 1.8e7),
        "down": (4e6, 4e7),
        "latency": (0.044, 0.066),
        "memory": (1 * GIGA, 4 * GIGA),
        "reliability": (0.95, 0.999),
        "availability": (0.3, 0.9),
        "compute_watts": (2, 5),
        "radio_watts": (1.3, 3),
        "fading": (0.5, 0.5),
    }


def mobile_5g() -> dict[str, Range]:
    """Phones on mid-band 5G: 68-287 Mbit/s down (Ookla, US networks' medians 2022-23), 20 up (Opensignal, US 2022).

    The spread of the uplink, latency, computing and watts are orders of magnitude.
    """
    return {
        **mobile_4g(),
        "cycles": (2e9, 3.5e9),
        "flops": (2e10, 2e11),
        "up": (1e7, 4e7),
        "down": (6.8e7, 2.87e8),
        "latency": (0.02, 0.05),
        "memory": (2 * GIGA, 8 * GIGA),
        "radio_watts": (2, 4),
    }


def home() -> dict[str, Range]:
    """Personal computers on fixed lines around the FCC's broadband benchmark of 2024 (100 Mbit/s down, 20 up).

    The spread, latency, computing, memory and watts are orders of magnitude.
    """
    return {
        **equal(),
        "cycles": (2e9, 5e9),
        "flops": (1e11, 5e12),
        "up": (5e6, 8e7),
        "down": (2.5e7, 4e8),
        "latency": (0.01, 0.04),
        "memory": (4 * GIGA, 32 * GIGA),
        "reliability": (0.99, 0.9999),
        "availability": (0.3, 0.9),
        "compute_watts": (30, 300),
        "radio_watts": (5, 10),
        "fading": (0.1, 0.1),
    }


def datacentre() -> dict[str, Range]:
    """Silos with an NVIDIA A100 each (19.5 TFLOP/s of float32, 40-80 GB, 400 W: its data sheet) on 1-10 Gbit/s.

    Training reaches about a third of the peak; that and the links are orders of magnitude.
    """
    return {
        **equal(),
        "cycles": (1.4e9, 1.4e9),
        "flops": (5e12, 1e13),
        "up": (1e9, 1e10),
        "down": (1e9, 1e10),
        "latency": (0.001, 0.05),
        "memory": (40e9, 80e9),
        "reliability": (0.9999, 1),
        "compute_watts": (400, 400),
        "radio_watts": (10, 20),
    }


FLEETS: dict[str, Callable[[], dict[str, Range]]] = {
    "equal": equal,
    "table4": table4,
    "iot": iot,
    "mobile-4g": mobile_4g,
    "mobile-5g": mobile_5g,
    "home": home,
    "datacentre": datacentre,
}


def flower() -> dict[str, float]:
    """Flower 1.41 with fedloom's nodes, TLS and keys, over TCP: waits, round trips and requests of an exchange.

    Seconds are those of loopback: 0.5 until a node looks again, within which the server notices the last answer; 0.1
    until its processes notice a task and its reply; 0.2 of signatures, TLS and Python. Round trips, one after the
    other: a look, two for a task's objects, an announcement, and two for a reply's objects, of which `latency` stands
    for half of one each way; the objects' first bytes overlap with the app's start. A chunk of 5 MiB is one of two at a
    time. Bytes are those of 12 requests.
    """
    return {
        "overhead_seconds": 0.8,
        "round_trips": 4.0,
        "round_trips_per_megabyte": 0.1,
        "header_factor": 1.055,  # 52 bytes for 1,448, TLS's 22 for 16,384, and what confirms the other direction
        "requests_up": 12_000.0,
        "requests_down": 4_300.0,
        "first_window": 10.0 * SEGMENT,
        "packet_loss": 0.0,
    }


TRANSPORTS: dict[str, Callable[[], dict[str, float]]] = {"none": NEUTRAL.copy, "flower": flower}


def make_devices(
    source: str, total: int, seed: int, base: str = "equal", transport: str = "none", **fixed: Any
) -> Devices:
    """The devices of clients 0 to `total` - 1: a preset by name, or a user's table (.csv, .parquet).

    Columns that a table lacks are drawn from the preset `base`, or are those of the `transport`; `fixed` sets a column
    to one value for all clients.
    """
    table = source.endswith(TABLES)
    for name in (source, base) if not table else (base,):
        if name not in FLEETS:
            raise BadExperiment(unknown("fleet", name, FLEETS))
    if transport not in TRANSPORTS:
        raise BadExperiment(unknown("transport of a fleet", transport, TRANSPORTS))
    columns = draw(base if table else source, total, seed)
    if table:
        columns |= read_devices(Path(source), total)
    for column, value in fixed.items():
        columns[column] = _alike(column, value, total)
    given = {name: columns.pop(name) for name in Transport._fields if name in columns}
    return Devices(**columns, transport=_transport(TRANSPORTS[transport](), given, total))


def _transport(usual: dict[str, float], given: dict[str, Tensor], total: int) -> Transport | None:
    """The columns given and the usual ones for the others; None if they add nothing to messages."""
    if usual == NEUTRAL and not given:
        return None
    columns = {name: given.get(name, _alike(name, usual[name], total)) for name in Transport._fields}
    adds = any(bool((column != NEUTRAL[name]).any()) for name, column in columns.items())
    return Transport(**columns) if adds else None


def draw(name: str, total: int, seed: int) -> dict[str, Tensor]:
    """A preset's columns [N each]."""
    ranges, chance, clients = FLEETS[name](), Chance(seed, 0), torch.arange(total)
    columns = {}
    for place, column in enumerate(OWN):
        low, high = ranges[column]
        place = OWN.index("cycles") if column == "flops" else place
        level = chance.uniform("devices", clients, place).double()
        if low == high:
            columns[column] = torch.full_like(level, low)
        elif name in UNIFORM:
            columns[column] = low + (high - low) * level
        else:
            columns[column] = low * (high / low) ** level
    return columns


def _alike(column: str, value: Any, total: int) -> Tensor:
    """One value for all clients; refused if no device can have it."""
    if column not in RANGES:
        raise BadExperiment(unknown("column of a fleet", column, RANGES))
    number = not isinstance(value, bool) and isinstance(value, int | float) and isfinite(value)
    if not number or not bool(allowed(column, torch.tensor(float(value), dtype=torch.float64))):
        raise BadExperiment(f"{column} of the fleet is {value!r}; expected {expected(column)}.")
    return torch.full((total,), float(value), dtype=torch.float64)
