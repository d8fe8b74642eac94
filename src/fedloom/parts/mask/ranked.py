"""Mask: the best neurons of a ranking, up to each client's share."""

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
    """The place of each hidden neuron in its group [K]."""

    place: Tensor  # index in its group
    width: Tensor  # neurons of its group
    step: Tensor  # a multiple of this is kept of its group


@lru_cache(maxsize=16)
def places(neurons: NeuronMap, device: torch.device) -> Places:
    """The places of all neurons, copied to a device once."""
    groups = [(span.stop - span.start, neurons.steps[group]) for group, span in neurons.spans(neurons.size)]
    facts = [(place, width, step) for width, step in groups for place in range(width)]
    return Places(*torch.tensor(facts, dtype=torch.int64).view(-1, 3).T.contiguous().to(device))


def ordered(at: Places, chance: Chance) -> Tensor:
    """The rank by place: the leading neurons of every group first."""
    return at.place


def rolling(at: Places, chance: Chance) -> Tensor:
    """The rank in a window that moves by one neuron every round and wraps around."""
    return (at.place - (chance.round - 1)) % at.width


def _lead(inputs: tuple[Tensor, ...], width: Tensor, step: Tensor, rounding: Rounding) -> tuple[Tensor, ...]:
    """Which neurons rank below each client's share of their group [C, K]; `NeuronMap.cut` without sorting."""
    rank, share = inputs
    count = rounded(share[:, None], width.double(), rounding)
    return (rank < torch.where(count < width, (count // step * step).maximum(step), count),)


_leading = Captured(_lead)


def _shuffle(neurons: NeuronMap, ids: Tensor, key: Tensor) -> Tensor:
    """Random numbers in [0, 1) for every client and hidden neuron [C, K]."""
    return uniform(absorb(absorb(key, ids[:, None]), torch.arange(neurons.size, device=ids.device)))


def _draw(inputs: tuple[Tensor, ...], neurons: NeuronMap, rounding: Rounding) -> tuple[Tensor, ...]:
    """Random neurons of every group, as many as each client's share [C, K]."""
    ids, share, key = inputs
    return (neurons.cut(_shuffle(neurons, ids, key), share, rounding=rounding),)


_drawn = Captured(_draw)


POSITIONS: dict[str, Callable[[Places, Chance], Tensor]] = {"ordered": ordered, "rolling": rolling}
RANKINGS = (*POSITIONS, "random", "l1", "l2", "gradient", "change")


def portion(neurons: NeuronMap, keep: Tensor, share: Tensor, own: Tensor | None = None) -> Portion:
    """The portion of the neurons `keep` [C, K]; no mask if every share is 1, which is FedAvg to the last bit.

    `own` [C, O]: the outputs that each client is sent; all if None.
    """
    whole = share.device.type == "cpu" and bool((share >= 1).all())
    if own is not None:
        return Portion(neurons.expand(torch.cat((keep, own), 1)), None if whole else keep)
    return Portion() if whole else Portion(neurons.expand(keep), keep)


@dataclass(frozen=True)
class Ranked(Mask):
    """The best `share` of every group of neurons.

    By position: `ordered`, `rolling`, `random`. By value on the server: the `l1` or `l2` norm of each neuron's weights,
    of its last `gradient` (the cohort's mean update per step) or of the model's last `change`.
    """

    by: str = "ordered"
    rounding: Rounding = "floor"

    def __post_init__(self) -> None:
        if self.by not in RANKINGS:
            raise BadExperiment(unknown("ranking", self.by, RANKINGS))

    @property
    def of_neurons(self) -> bool:
        """It does."""
        return True

    @property
    def steady(self) -> bool:
        """The share alone decides the number of neurons."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """What rankings by gradient or change remember of the last round."""
        if self.by == "gradient":
            return {"gradient": torch.zeros_like(model)}
        return {"last": model} if self.by == "change" else {}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Rank neurons, cut at the shares, expand to numbers."""
        keep, memory = self.kept(memory, setting, model, ids, share, chance)
        return portion(setting.neurons, keep, share), memory

    def kept(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Tensor, State]:
        """The neurons that each client is sent [C, K], and the new memory."""
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
        """Only gradients come from single replies; the model is public."""
        return self.by == "gradient"

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Remember the cohort's mean update per step as the gradient."""
        if self.by != "gradient":
            return memory
        weight = reply.arrived / reply.report["steps"].clamp(min=1) / reply.arrived.sum().clamp(min=1)
        return {"gradient": weight.to(model.dtype) @ (reply.params - model)}
