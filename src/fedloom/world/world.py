"""`World`, the settings of a simulated world."""

from __future__ import annotations

from pydantic import Field

from fedloom.core.clock import Compute
from fedloom.core.section import Section, told


class World(Section):
    """What is simulated in addition to the devices and their channel; all of it needs a fleet of devices."""

    compute: Compute = Field(default="cycles", description="seconds by FedDD's formula, or by the network's operations")
    deadline: float | None = told("after this a reply is too late", "seconds", gt=0)
    first: int | None = told("replies that the server waits for; select more clients", "replies", ge=1)
    server_up: float | None = told("what all uploads share", "bit/s", gt=0)
    server_down: float | None = told("what all downloads share", "bit/s", gt=0)
    pieces: int | None = told("pieces that a reply travels in", "pieces", ge=1)
    piece_loss: float = told("probability that a piece is lost", default=0.1, ge=0, le=1)
    trace: str | None = Field(default=None, description="file with each client's availability and link over time")
    patience: int | None = told("rounds in a row without a reply after which a run stops", "rounds", default=10, ge=1)
