"""What a round cost: bytes of messages, seconds, and who did the work."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fedloom.core.types import State

TRANSPORT = ("transport_down", "transport_up")  # columns: bytes that links carry besides messages
# columns of clients.parquet that a simulated world measures, and adds to reports
MEASURED = ("seconds", "seconds_down", "seconds_compute", "seconds_up", "joules", "bytes_down", "bytes_up")


class Bytes(NamedTuple):
    """Sizes of messages in bytes; every tensor is [] (the same for all) or [C] (one per client)."""

    values: Tensor  # the numbers of the model, and whatever a local rule adds
    indices: Tensor  # which numbers these are
    overhead: Tensor  # header, checksum, report

    @property
    def total(self) -> Tensor:
        """All three together."""
        return self.values + self.indices + self.overhead

    def per_client(self, count: int) -> Bytes:
        """Sizes [C], also where one size holds for all `count` clients."""
        return Bytes(*(part.expand(count) if part.dim() == 0 else part for part in self))


class Costs(NamedTuple):
    """What a round cost the C clients that were asked, also those whose reply did not arrive."""

    down: Bytes  # tasks [C]
    up: Bytes  # replies [C], whether they were sent or not
    trained: Tensor | None = None  # [C] who received the task and did the work; None: everybody
    sent: Tensor | None = None  # [C] bytes that clients really sent; None: `up` of those that arrived
    columns: State | None = None  # further columns of clients.parquet [C each]
    duration: Tensor | None = None  # [] seconds until the server went on; None where time is not measured
    row: dict[str, float] | None = None  # further columns of rounds.parquet
