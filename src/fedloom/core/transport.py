"""What a network and its protocol add to messages: waits, round trips, bytes, and TCP on slow, far or lossy links."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SEGMENT = 1448  # bytes of a TCP segment's content
TIMEOUT = 0.2  # seconds besides a round trip after which TCP sends again what was not confirmed


class Transport(NamedTuple):
    """Costs of messages besides their bytes at the link's rates; one double-precision number per client [N].

    A client's exchange is a task and its reply. With `NEUTRAL` values nothing is added.
    """

    overhead_seconds: Tensor  # of an exchange: waits for polls, and an app's start
    round_trips: Tensor  # of an exchange, one after the other, whatever its size
    round_trips_per_megabyte: Tensor  # of a message, one after the other
    header_factor: Tensor  # bytes on the link for a byte of a message
    requests_up: Tensor  # bytes of an exchange's requests and answers
    requests_down: Tensor
    first_window: Tensor  # bytes that TCP sends in the first round trip, and twice as many in each next; 0: no limit
    packet_loss: Tensor  # the probability that the link loses a packet, which TCP sends again

    def wait(self, latency: Tensor) -> Tensor:
        """Seconds of an exchange besides those of its messages.

        A round trip is a packet each way, and waits for TCP's timeout if one is lost.
        """
        trip = 2 * latency
        lost = 1 - (1 - self.packet_loss) ** 2
        return self.overhead_seconds + self.round_trips * (trip + lost * (trip + TIMEOUT))

    def carried(self, size: Tensor, requests: Tensor) -> Tensor:
        """Bytes on the link for messages of `size` bytes, with lost packets; none for no message."""
        return (self.header_factor * size + requests * (size > 0)) / (1 - self.packet_loss)

    def added(self, ids: Tensor, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """Bytes that the links of clients `ids` carry besides tasks and replies of these sizes, down and up [C]."""
        own = Transport(*(column[ids] for column in self))
        carried = own.carried(down, own.requests_down), own.carried(up, own.requests_up)
        return (carried[0] - down).round().long(), (carried[1] - up).round().long()

    def delay(self, size: Tensor, carried: Tensor, rate: Tensor, latency: Tensor) -> Tensor:
        """Seconds of a message in which the link waits for an answer: round trips of its parts, and TCP's slow start.

        Each window of the slow start takes a round trip, until the link is busy for all of it or nothing is left.
        """
        trip, window = 2 * latency, torch.where(self.first_window > 0, self.first_window, torch.inf)
        enough = (rate * trip / (8 * window)).clamp(min=0.5).log2().floor() + 1  # windows that leave the link idle
        whole = (carried / window + 1).log2().ceil() - 1  # windows before the last
        idle = torch.minimum(enough, whole).clamp(min=0)
        busy = torch.where(idle > 0, (2**idle - 1) * 8 * self.first_window / rate, 0.0)
        return self.round_trips_per_megabyte * size / 1e6 * trip + idle * trip - busy

    def rate(self, rate: Tensor, latency: Tensor) -> Tensor:
        """The link's rate in bit/s, or TCP's under this loss of packets if that is less.

        By Padhye, Firoiu, Towsley and Kurose (SIGCOMM 1998), with a confirmation for each packet.
        """
        loss, trip = self.packet_loss, 2 * latency
        timeouts = (3 * (3 * loss / 8).sqrt()).clamp(max=1) * loss * (1 + 32 * loss**2)
        seconds = trip * (2 * loss / 3).sqrt() + (trip + TIMEOUT) * timeouts  # for one segment
        return torch.minimum(rate, 8 * SEGMENT / seconds)


NEUTRAL = {name: 1.0 if name == "header_factor" else 0.0 for name in Transport._fields}
