"""Devices of clients: speed, links, reliability and power."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.transport import Transport
from fedloom.errors import BadExperiment

FADING = "fading"  # the purpose of the random stream that varies link rates


class Devices(NamedTuple):
    """Facts of the N clients' devices and links; one double-precision number per client [N]."""

    cycles: Tensor  # per second
    cycles_per_example: Tensor  # to train on one example once
    flops: Tensor  # floating-point operations per second, while training
    up: Tensor  # bit/s
    down: Tensor  # bit/s
    latency: Tensor  # seconds before the first bit of a message arrives
    memory: Tensor  # bytes that training may take
    reliability: Tensor  # the probability that a message arrives
    availability: Tensor  # the probability of being available in a round
    compute_watts: Tensor  # while training
    radio_watts: Tensor  # while sending or receiving
    fading: Tensor  # the largest relative change of both links' rates from round to round
    transport: Transport | None = None  # what messages cost besides; None: nothing

    @property
    def size(self) -> int:
        """N, the number of clients."""
        return int(self.up.shape[0])

    def at(self, ids: Tensor) -> Devices:
        """The devices of some clients [C]."""
        return self._each(lambda column: column[ids])

    def to(self, device: torch.device | str) -> Devices:
        """A copy on another `torch.device`."""
        return self._each(lambda column: column.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Devices:
        """The devices with every column changed."""
        *own, transport = self
        added = None if transport is None else Transport(*map(change, transport))
        return Devices(**dict(zip(self._fields, map(change, own))), transport=added)

    def now(self, chance: Chance, ids: Tensor | None = None) -> Devices:
        """The devices of some clients (None: all) at this round's rates, which vary by a factor in 1 -+ `fading`."""
        own = self if ids is None else self.at(ids)
        return own.faded(chance.uniform(FADING, torch.arange(self.size, device=chance.device) if ids is None else ids))

    def faded(self, draw: Tensor) -> Devices:
        """The devices at link rates that `draw`, numbers in [0, 1), decides."""
        factor = 1 + self.fading * (2 * draw.double() - 1)
        return self._replace(up=self.up * factor, down=self.down * factor)


RANGES: dict[str, tuple[float, float, bool, bool]] = {  # lowest, highest, and whether these two values are allowed
    "cycles": (0, torch.inf, False, False),
    "cycles_per_example": (0, torch.inf, False, False),
    "flops": (0, torch.inf, False, False),
    "up": (0, torch.inf, False, False),
    "down": (0, torch.inf, False, False),
    "latency": (0, torch.inf, True, False),
    "memory": (0, torch.inf, False, False),
    "reliability": (0, 1, False, True),
    "availability": (0, 1, False, True),
    "compute_watts": (0, torch.inf, True, False),
    "radio_watts": (0, torch.inf, True, False),
    "fading": (0, 1, True, False),
    "overhead_seconds": (0, torch.inf, True, False),
    "round_trips": (0, torch.inf, True, False),
    "round_trips_per_megabyte": (0, torch.inf, True, False),
    "header_factor": (1, torch.inf, True, False),
    "requests_up": (0, torch.inf, True, False),
    "requests_down": (0, torch.inf, True, False),
    "first_window": (0, torch.inf, True, False),
    "packet_loss": (0, 1, True, False),
}


def allowed(column: str, values: Tensor) -> Tensor:
    """Which values of a column are possible; NaN is not."""
    low, high, at_low, at_high = RANGES[column]
    return ((values > low) | (at_low & (values == low))) & ((values < high) | (at_high & (values == high)))


def expected(column: str) -> str:
    """The range of a column in words."""
    low, high, at_low, at_high = RANGES[column]
    below = "" if high == torch.inf else f" and {'at most' if at_high else 'below'} {high:g}"
    return f"a finite number {'not below' if at_low else 'above'} {low:g}{below}"


def known_devices(devices: Devices | None, who: str) -> Devices:
    """The fleet's devices; `BadExperiment` if the fleet has none."""
    if devices is None:
        raise BadExperiment(
            f"{who} needs a fleet with devices, and this experiment's fleet has none; choose one, as in "
            "--set fleet=table4."
        )
    return devices
