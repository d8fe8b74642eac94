"""Which part is each client sent? Neurons are ranked, and the ranking is cut at the client's share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedloom.chance import Chance, absorb, uniform
from fedloom.engine.capture import Captured
from fedloom.errors import BadExperiment, unknown
from fedloom.neurons.map import NeuronMap, Rounding, checked
from fedloom.part import Mask
from fedloom.types import Portion, Reply, Setting, State


@lru_cache(maxsize=16)
def places(neurons: NeuronMap, device: torch.device) -> tuple[Tensor, Tensor]:
    """Each hidden neuron's place in its group and the width of that group [K]."""
    spans = [span for _, span in neurons.spans(neurons.size)]
    place = [n for span in spans for n in range(span.stop - span.start)]
    width = [span.stop - span.start for span in spans for _ in range(span.stop - span.start)]
    return torch.tensor(place, device=device), torch.tensor(width, device=device)


def ordered(neurons: NeuronMap, ids: Tensor, chance: Chance) -> Tensor:
    """The leading neurons of every group first."""
    place, _ = places(neurons, ids.device)
    return -place.expand(len(ids), -1)


def rolling(neurons: NeuronMap, ids: Tensor, chance: Chance) -> Tensor:
    """A window that moves on by one neuron a round and wraps around."""
    place, width = places(neurons, ids.device)
    return -((place - (chance.round - 1)) % width).expand(len(ids), -1)


def shuffled(neurons: NeuronMap, ids: Tensor, chance: Chance) -> Tensor:
    """Every client its own random order, new each round."""
    return _shuffle(neurons, ids, chance.key("mask"))


def _shuffle(neurons: NeuronMap, ids: Tensor, key: Tensor) -> Tensor:
    """Numbers in [0, 1) for every client and hidden neuron [C, K]."""
    return uniform(absorb(absorb(key, ids[:, None]), torch.arange(neurons.size, device=ids.device)))


def _draw(inputs: tuple[Tensor, ...], neurons: NeuronMap, rounding: Rounding) -> tuple[Tensor, ...]:
    """Random neurons of every group, the share of each client [C, K]."""
    ids, share, key = inputs
    return (neurons.cut(_shuffle(neurons, ids, key), share, rounding=rounding),)


_drawn = Captured(_draw)


POSITIONS: dict[str, Callable[[NeuronMap, Tensor, Chance], Tensor]] = {
    "ordered": ordered,
    "rolling": rolling,
    "random": shuffled,
}
VALUES = ("l1", "l2", "gradient", "change")


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
        if self.by not in POSITIONS and self.by not in VALUES:
            raise BadExperiment(unknown("ranking", self.by, (*POSITIONS, *VALUES)))

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
            scores = POSITIONS[self.by](neurons, ids, chance)
        else:
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
