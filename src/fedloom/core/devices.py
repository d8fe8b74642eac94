"""How fast, how well connected and how reliable is every client?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.errors import BadExperiment

FADING = "fading"  # what the chance of rates is asked for


class Devices(NamedTuple):
    """What the N clients run on and are connected by; one number per client in double precision [N]."""

    cycles: Tensor  # per second
    cycles_per_example: Tensor  # to train on one example once
    flops: Tensor  # floating-point operations per second, while training
    up: Tensor  # bit/s
    down: Tensor  # bit/s
    latency: Tensor  # seconds before the first bit of a message arrives
    memory: Tensor  # bytes that training may take
    reliability: Tensor  # the probability that a message arrives
    availability: Tensor  # the probability of being there in a round
    compute_watts: Tensor  # while training
    radio_watts: Tensor  # while sending or receiving
    fading: Tensor  # by which part the rates of both links may differ from round to round

    @property
    def size(self) -> int:
        """N."""
        return int(self.up.shape[0])

    def at(self, ids: Tensor) -> Devices:
        """Those of some clients [C]."""
        return Devices(*(value[ids] for value in self))

    def to(self, device: torch.device | str) -> Devices:
        """The same numbers on another torch device."""
        return Devices(*(value.to(device) for value in self))

    def now(self, chance: Chance, ids: Tensor | None = None) -> Devices:
        """Those of some clients (None: of all) at this round's rates, each times a number in 1 -+ its fading."""
        own = self if ids is None else self.at(ids)
        return own.faded(chance.uniform(FADING, torch.arange(self.size, device=chance.device) if ids is None else ids))

    def faded(self, draw: Tensor) -> Devices:
        """The same at rates that numbers in [0, 1) decide."""
        factor = 1 + self.fading * (2 * draw.double() - 1)
        return self._replace(up=self.up * factor, down=self.down * factor)


RANGES: dict[str, tuple[float, float, bool, bool]] = {  # lowest, highest, and whether these two are allowed themselves
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
}


def allowed(column: str, values: Tensor) -> Tensor:
    """Which of a column's values a device can have; NaN never."""
    low, high, at_low, at_high = RANGES[column]
    return ((values > low) | (at_low & (values == low))) & ((values < high) | (at_high & (values == high)))


def expected(column: str) -> str:
    """A column's range in words."""
    low, high, at_low, at_high = RANGES[column]
    below = "" if high == torch.inf else f" and {'at most' if at_high else 'below'} {high:g}"
    return f"a finite number {'not below' if at_low else 'above'} {low:g}{below}"


def known_devices(devices: Devices | None, who: str) -> Devices:
    """The fleet's devices; refused where nobody said what they are."""
    if devices is None:
        raise BadExperiment(
            f"{who} needs a fleet with devices, and this experiment's fleet has none; choose one, as in "
            "--set fleet=table4."
        )
    return devices
