"""`Stamp`, the identity of a message: run, round, client, attempt, direction and base model, written into its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, get_args

import torch
from torch import Tensor

from fedloom.codec.container import raw_bytes
from fedloom.errors import BadExperiment, unknown

Direction = Literal["down", "up"]  # a task, a reply
WIDTHS = {"round": 8, "client": 20, "attempt": 4}  # decimal digits; a client may have a 64-bit number


@dataclass(frozen=True)
class Stamp:
    """The identity of a message, unique among all messages of all runs."""

    run: str
    round: int
    client: int
    base: str  # `base_hash` of the model that the message belongs to
    attempt: int = 1
    direction: Direction = "up"

    def __post_init__(self) -> None:
        """Refuse fields that do not fit the header."""
        for name, width in WIDTHS.items():
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 10**width:
                raise BadExperiment(
                    f"{name} of a stamp is {number!r}; expected a whole number of up to {width} digits."
                )
        if len(self.base) != 16 or set(self.base) - set("0123456789abcdef"):
            raise BadExperiment(f"base of a stamp is {self.base!r}; expected what base_hash(model) returns.")
        if self.direction not in get_args(Direction):
            raise BadExperiment(unknown("direction of a stamp", str(self.direction), get_args(Direction)))

    def pieces(self) -> dict[str, str]:
        """The stamp's fields as texts of fixed lengths, so that a header's length is known beforehand."""
        return {
            "run": short_hash(self.run.encode()),  # hashed, since a run may have any name
            **{name: f"{getattr(self, name):0{width}}" for name, width in WIDTHS.items()},
            "direction": f"{self.direction:4}",
            "base": self.base,
        }

    def __str__(self) -> str:
        """The text in the header: one entry, since six names would be a tenth of a small message's overhead."""
        return "/".join(self.pieces().values())


def base_hash(model: Tensor) -> str:
    """A short hash of a model's numbers [P], computed once per round, not per message."""
    return short_hash(raw_bytes(model.detach().to("cpu", torch.float32).contiguous().numpy()))


def short_hash(data: bytes | memoryview) -> str:
    """64 bits of blake2b, in hexadecimal."""
    return blake2b(data, digest_size=8).hexdigest()
