"""Channels, which lose messages: a pure function of (seed, round, client), equal for all methods.

A client whose download is lost does not train. A client whose upload is lost has trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.devices import Devices, known_devices
from fedloom.core.types import Setting
from fedloom.errors import BadExperiment, unknown

WAYS = ("down", "up")


class Delivered(NamedTuple):
    """Which messages to and from each of the cohort arrive."""

    down: Tensor  # [C] bool
    up: Tensor  # [C] bool


class Channel(ABC):
    """A rule by which messages are lost."""

    @abstractmethod
    def __call__(self, ids: Tensor, devices: Devices | None, chance: Chance) -> Delivered:
        """Which of this round's messages of the clients `ids` [C] arrive; `devices` are the fleet's [N]."""


@dataclass(frozen=True)
class Bernoulli(Channel):
    """Every message is lost independently, with this probability; None: by the device's reliability.

    For one loss per round trip, as in SAFARI, set `up` alone: the client trains, and its reply is lost. For separate
    links set `up` and `down`. With a `swing` each client's probability rises and falls by that much around its own, as
    far as 0 and 1 allow, once in `period` rounds, with a phase per client.
    """

    up: float | None = 0.0
    down: float | None = 0.0
    swing: float = 0.0
    period: float = 50.0  # rounds

    def __post_init__(self) -> None:
        for name, value in (("up", self.up), ("down", self.down)):
            _probability(f"{name} (of losing a message)", 0.0 if value is None else value)
        _probability("swing (of the probability of losing a message)", self.swing)
        if not self.period > 0:
            raise BadExperiment(f"period (of the swing) is {self.period} rounds; it must be above 0.")

    def __call__(self, ids: Tensor, devices: Devices | None, chance: Chance) -> Delivered:
        """Draw both directions independently."""
        return Delivered(*(chance.uniform(f"loss {way}", ids) >= self.lost(way, ids, devices, chance) for way in WAYS))

    def lost(self, way: str, ids: Tensor, devices: Devices | None, chance: Chance) -> Tensor:
        """The probability that a client's message is lost in this round [C]; `way` is down or up."""
        given = self.down if way == "down" else self.up
        if given is None:
            mean = 1 - known_devices(devices, "a channel by reliability").reliability[ids]
        else:
            mean = torch.full(ids.shape, given, dtype=torch.float64, device=ids.device)
        if not self.swing:
            return mean
        phase = chance._replace(round=0).uniform("swing", ids).double()
        wave = torch.sin(2 * torch.pi * (chance.round / self.period + phase))
        return mean + wave * torch.minimum(mean, 1 - mean).clamp(max=self.swing)


@dataclass(frozen=True)
class Bursty(Channel):
    """Losses in bursts (Gilbert and Elliott): a client's link is good or bad, and changes from round to round.

    It turns bad with probability `enter` and good again with probability `leave`, so that a bad period lasts
    `1 / leave` rounds on average and the link is bad `enter / (enter + leave)` of the time, from the first round on.
    Messages are lost independently, with probability `good` or `bad`; with `down` False no download is lost.
    """

    enter: float = 0.1
    leave: float = 0.4
    good: float = 0.0
    bad: float = 1.0
    down: bool = True

    def __post_init__(self) -> None:
        for name in ("enter", "leave", "good", "bad"):
            _probability(name, getattr(self, name))
        if self.enter + self.leave == 0:
            raise BadExperiment("enter and leave are both 0; a link that never changes is Bernoulli's.")

    def __call__(self, ids: Tensor, devices: Devices | None, chance: Chance) -> Delivered:
        """Draw both directions independently, given the state that they share."""
        lost = torch.where(self.is_bad(ids, chance), self.bad, self.good)
        up = chance.uniform("loss up", ids) >= lost
        return Delivered(chance.uniform("loss down", ids) >= lost if self.down else torch.ones_like(up), up)

    def is_bad(self, ids: Tensor, chance: Chance) -> Tensor:
        """Whose link is bad in this round [C], from no more rounds than are needed to know the state.

        One draw per round moves the state from either value. Most draws lead from both values to one, which makes
        earlier rounds irrelevant; the others keep the state or, in `flips`, swap it.
        """
        low, high = sorted((self.enter, 1 - self.leave))
        flips = self.enter > 1 - self.leave
        still = chance._replace(round=0)
        state = still.uniform("first link", ids) < self.enter / (self.enter + self.leave)
        certain = torch.zeros_like(state)
        swapped = torch.zeros_like(state)
        last, block = chance.round, 16
        while last > 1 and not bool(certain.all()):
            rounds = torch.arange(last, max(1, last - block), -1, device=ids.device)  # newest first
            draw = still.uniform("link", ids[:, None], rounds)
            decides = (draw < low) | (draw >= high)
            at = decides.byte().argmax(1, keepdim=True)  # the newest round that decides, if any
            here = decides.any(1)
            kept = torch.where(here, at[:, 0], len(rounds))  # number of rounds after it
            swaps = kept % 2 == 1 if flips else torch.zeros_like(here)
            found = (draw.gather(1, at)[:, 0] < low) ^ swapped ^ swaps
            state = torch.where(here & ~certain, found, state)
            swapped = torch.where(certain, swapped, swapped ^ swaps)
            certain |= here
            last, block = last - len(rounds), 2 * block
        return torch.where(certain, state, state ^ swapped)


@dataclass(frozen=True)
class Pieces:
    """A reply travels in `count` pieces, each lost independently with probability `loss`.

    The pieces are equal slices of the model, or equal parts of every layer's neurons with the weights into them. What
    a method adds to a reply, and its report, travel separately and are not lost with the pieces.
    """

    count: int = 4
    loss: float = 0.1
    by: Literal["slices", "neurons"] = "slices"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadExperiment(f"count (of pieces) is {self.count}; a reply has at least 1.")
        _probability("loss (of a piece)", self.loss)
        if self.by not in ("slices", "neurons"):
            raise BadExperiment(unknown("kind of pieces", self.by, ("slices", "neurons")))

    def piece_of(self, setting: Setting) -> Tensor:
        """The piece in which each number of the model travels [P]."""
        device = setting.fleet.examples.device
        if self.by == "slices":
            return torch.arange(setting.layout.total, device=device) * self.count // setting.layout.total
        neurons = setting.neurons
        dealt = [
            torch.arange(span.stop - span.start, device=device) * self.count // (span.stop - span.start)
            for _, span in neurons.spans(neurons.full_size)
        ]
        every = torch.cat([torch.arange(0, device=device), *dealt])
        members = neurons.expand(every == torch.arange(self.count, device=device)[:, None], rows=True)
        return members.byte().argmax(0)  # numbers of no neuron belong to all pieces, and travel in the first

    def survive(self, ids: Tensor, chance: Chance) -> Tensor:
        """Which pieces of each reply arrive [C, count]."""
        return chance.uniform("loss of pieces", ids[:, None], torch.arange(self.count, device=ids.device)) >= self.loss


def _probability(name: str, value: float) -> None:
    """Refuse what is no probability."""
    if not 0 <= value <= 1:
        raise BadExperiment(f"{name} is {value}; a probability lies between 0 and 1.")
