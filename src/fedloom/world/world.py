"""`World`, the settings of a simulated world."""

from __future__ import annotations

from pydantic import Field

from fedloom.core.clock import Compute
from fedloom.core.section import Section


class World(Section):
    """What is simulated in addition to the devices and their channel; all of it needs a fleet of devices."""

    compute: Compute = Field(default="cycles", description="seconds by FedDD's formula, or by the network's operations")
    deadline: float | None = Field(default=None, gt=0, description="seconds after which a reply is too late")
    first: int | None = Field(default=None, ge=1, description="replies that the server waits for; select more clients")
    server_up: float | None = Field(default=None, gt=0, description="bit/s that all uploads share")
    server_down: float | None = Field(default=None, gt=0, description="bit/s that all downloads share")
    pieces: int | None = Field(default=None, ge=1, description="pieces that a reply travels in")
    piece_loss: float = Field(default=0.1, ge=0, le=1, description="probability that a piece is lost")
    trace: str | None = Field(default=None, description="file with each client's availability and link over time")
    patience: int | None = Field(
        default=10, ge=1, description="rounds in a row without a reply after which a run stops"
    )
