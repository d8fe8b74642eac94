"""Which part is each client sent? Neurons are ranked, and the ranking is cut at the client's share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.chance import Chance, absorb, uniform
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Reply, Setting, State
from fedloom.errors import BadExperiment, unknown
from fedloom.neurons.map import NeuronMap, Rounding, checked, rounded


class Places(NamedTuple):
    """What is known of each hidden neuron [K]."""

    place: Tensor  # in its group
    width: Tensor  # of its group
    step: Tensor  # of its group a multiple of this is kept


@lru_cache(maxsize=16)
def places(neurons: NeuronMap, device: torch.device) -> Places:
    """Where the neurons stand, sent to a device once."""
    groups = [(span.stop - span.start, neurons.steps[group]) for group, span in neurons.spans(neurons.size)]
    facts = [(place, width, step) for width, step in groups for place in range(width)]
    return Places(*torch.tensor(facts, dtype=torch.int64).view(-1, 3).T.contiguous().to(device))


def ordered(at: Places, chance: Chance) -> Tensor:
    """The leading neurons of every group first."""
    return at.place


def rolling(at: Places, chance: Chance) -> Tensor:
    """A window that moves on by one neuron a round and wraps around."""
    return (at.place - (chance.round - 1)) % at.width


def _lead(inputs: tuple[Tensor, ...], width: Tensor, step: Tensor, rounding: Rounding) -> tuple[Tensor, ...]:
    """The share of each client [C, K] of neurons that stand first in their groups: as `NeuronMap.cut`, unsorted."""
    rank, share = inputs
    count = rounded(share[:, None], width.double(), rounding)
    return (rank < torch.where(count < width, (count // step * step).maximum(step), count),)


_leading = Captured(_lead)


def _shuffle(neurons: NeuronMap, ids: Tensor, key: Tensor) -> Tensor:
    """Numbers in [0, 1) for every client and hidden neuron [C, K]."""
    return uniform(absorb(absorb(key, ids[:, None]), torch.arange(neurons.size, device=ids.device)))


def _draw(inputs: tuple[Tensor, ...], neurons: NeuronMap, rounding: Rounding) -> tuple[Tensor, ...]:
    """Random neurons of every group, the share of each client [C, K]."""
    ids, share, key = inputs
    return (neurons.cut(_shuffle(neurons, ids, key), share, rounding=rounding),)


_drawn = Captured(_draw)


POSITIONS: dict[str, Callable[[Places, Chance], Tensor]] = {"ordered": ordered, "rolling": rolling}
RANKINGS = (*POSITIONS, "random", "l1", "l2", "gradient", "change")


def portion(neurons: NeuronMap, keep: Tensor, share: Tensor, own: Tensor | None = None) -> Portion:
    """What a keep [C, K] sends; if everyone may have everything, no mask at all, which is FedAvg to the last bit.

    `own` [C, O]: and of which outputs.
    """
    whole = share.device.type == "cpu" and bool((share >= 1).all())
    if own is not None:
        return Portion(neurons.expand(torch.cat((keep, own), 1)), None if whole else keep)
    return Portion() if whole else Portion(neurons.expand(keep), keep)


@dataclass(frozen=True)
class Ranked(Mask):
    """The best `share` of every group of neurons.

    By position: `ordered`, `rolling`, `random`. By what the server knows of each neuron: the `l1` or `l2` norm of its
    weights, of its last `gradient` (the cohort's mean update per step) or of the model's last `change`.
    """

    by: str = "ordered"
    rounding: Rounding = "floor"

    def __post_init__(self) -> None:
        if self.by not in RANKINGS:
            raise BadExperiment(unknown("ranking", self.by, RANKINGS))

    @property
    def steady(self) -> bool:
        """The share alone says how many."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """What the last rounds must leave behind for a ranking by value."""
        if self.by == "gradient":
            return {"gradient": torch.zeros_like(model)}
        return {"last": model} if self.by == "change" else {}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Rank, cut, expand."""
        keep, memory = self.kept(memory, setting, model, ids, share, chance)
        return portion(setting.neurons, keep, share), memory

    def kept(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Tensor, State]:
        """Which neurons each client is sent [C, K]."""
        neurons = setting.neurons
        if self.by == "random":
            (keep,) = _drawn((ids, checked(share, ids.device), chance.key("mask")), neurons, self.rounding)
            return keep, memory
        if self.by in POSITIONS:
            at = places(neurons, ids.device)
            rank = POSITIONS[self.by](at, chance)
            (keep,) = _leading((rank, checked(share, ids.device)), at.width, at.step, self.rounding)
            return keep, memory
        values = memory.get("gradient", model)
        if self.by == "change":
            values, memory = model - memory["last"], {"last": model}
        scores = neurons.score(values, "l1" if self.by == "l1" else "l2").expand(len(ids), -1)
        return neurons.cut(scores, share, rounding=self.rounding), memory

    @property
    def learns(self) -> bool:
        """Only from gradients; the model is everybody's."""
        return self.by == "gradient"

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """The cohort's mean update per step stands for the gradient."""
        if self.by != "gradient":
            return memory
        weight = reply.arrived / reply.report["steps"].clamp(min=1) / reply.arrived.sum().clamp(min=1)
        return {"gradient": weight.to(model.dtype) @ (reply.params - model)}
