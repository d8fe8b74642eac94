"""Which part is each client sent? Some of a few regions that the model is divided into, and the rest with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.errors import BadExperiment, unknown
from fedloom.mask.hidden import into_hidden
from fedloom.neurons.map import NeuronMap, rounded
from fedloom.part import Mask
from fedloom.types import Portion, Reply, Setting, State

MODES = ("neuron", "element")
LEVELS = {"L": (0.5,), "S": (0.25,), "MIX": (0.5, 0.25)}  # shares for `Tiers`: half, a quarter, clients by turns


@dataclass(frozen=True)
class Regions(Mask):
    """A client trains `share * count` of the `count` regions (at least one), drawn anew every round, and the rest.

    By `neuron`, the hidden neurons of every layer are split into equal regions and a number belongs to the region of
    its output neuron; by `element`, the weights of hidden layers are split one by one. What belongs to no region (the
    output layer; by `element` also biases and norms) is the rest, which everyone trains. Regions stand still during a
    run unless `redraw`. The first round trains everything if `full_first`. Every `period` rounds (0: never) all take
    the last regions, which leaves the others untrained.

    Recorded, of replies that arrived: `coverage`, the part of the model's numbers that somebody sent;
    `regions_trained`; `fewest_clients` of one of those; the `staleness` of each region, the rounds since anyone trained
    it, with mean and maximum; and `tau`, the most rounds that some client has not trained some region.
    """

    count: int = 4
    mode: Literal["neuron", "element"] = "neuron"
    redraw: bool = False
    full_first: bool = True
    period: int = 10

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise BadExperiment(unknown("mode of regions", self.mode, MODES))
        if self.count < 1:
            raise BadExperiment(f"count (of regions) is {self.count}; a model has at least 1 region.")
        if self.period < 0:
            raise BadExperiment(f"period (of rounds with the last regions) is {self.period}; 0 stands for never.")

    @property
    def rows(self) -> bool:
        """By neuron."""
        return self.mode == "neuron"

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nobody trained anything yet."""
        since = torch.zeros(setting.fleet.size, self.count, dtype=torch.int64, device=model.device)
        return {
            "ids": since[:0, 0],
            "chosen": since[:0].bool(),  # [C, count] this round, by those `ids`
            "since": since,  # [N, count] rounds since a client trained a region, as far as was heard
            "clients": since[:0].sum(0),  # [count] how many trained each region this round
            "coverage": model.new_zeros(()),
        }

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """The chosen regions as a mask over numbers; it is not made of neurons kept at both ends."""
        whole = share.device.type == "cpu" and bool((share >= 1).all())
        if whole or (self.full_first and chance.round == 1):
            every = torch.ones(len(ids), self.count, dtype=torch.bool, device=ids.device)
            return Portion(), {**memory, "ids": ids, "chosen": every}
        members = self.members(setting.neurons, chance)  # [count, P]
        region, rest = members.byte().argmax(0), members.all(0)
        chosen = self.chosen(ids, share, chance)
        return Portion(chosen[:, region] | rest), {**memory, "ids": ids, "chosen": chosen}

    @property
    def learns(self) -> bool:
        """What is observed is recorded, and decides nothing."""
        return False

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Who was heard of having trained what."""
        since = memory["since"]
        asked = torch.zeros_like(since, dtype=torch.bool).index_put((memory["ids"],), memory["chosen"])
        trained = asked[reply.ids] & reply.arrived[:, None]  # [C, count]
        sent = reply.arrived[:, None] if reply.mask is None else reply.mask & reply.arrived[:, None]
        return {
            **memory,
            "since": (since + 1).index_put((reply.ids,), torch.where(trained, 0, since[reply.ids] + 1)),
            "clients": trained.sum(0),
            "coverage": sent.any(0).to(model.dtype).mean(),
        }

    def record(self, memory: State) -> State:
        """Coverage and staleness."""
        clients, since = memory["clients"], memory["since"]
        some, stale = clients > 0, since.amin(0)
        fewest = torch.where(some, clients, len(since)).amin()
        return {
            "coverage": memory["coverage"],
            "regions_trained": some.sum(),
            "fewest_clients": torch.where(some.any(), fewest, 0),
            "staleness_mean": stale.double().mean(),
            "staleness_max": stale.amax(),
            "tau": since.amax(),
            "staleness": stale,
        }

    def chosen(self, ids: Tensor, share: Tensor, chance: Chance) -> Tensor:
        """Which regions each client trains [C, count]."""
        each = rounded(share.double(), self.count, "half-up").clamp(min=1)[:, None]
        regions = torch.arange(self.count, device=ids.device)
        if self.period and chance.round % self.period == 0:
            return regions >= self.count - each
        return chance.key("regions drawn", ids[:, None], regions).argsort(1).argsort(1) < each

    def members(self, neurons: NeuronMap, chance: Chance) -> Tensor:
        """Which numbers belong to each region [count, P]; the rest belongs to all."""
        drawn = chance if self.redraw else chance._replace(round=0)
        regions = torch.arange(self.count, device=drawn.device)[:, None]
        if self.mode == "neuron":
            dealt = [self._deal(drawn, group, span) for group, span in neurons.spans(neurons.size)]
            return neurons.expand(torch.cat([regions[:0, 0], *dealt]) == regions, rows=True)
        members = torch.ones(self.count, neurons.total, dtype=torch.bool, device=drawn.device)
        for tensor in into_hidden(neurons):
            if len(tensor.shape) > 1:  # not a bias
                span = slice(tensor.start, tensor.stop)
                members[:, span] = self._deal(drawn, tensor.name, span) == regions
        return members

    def _deal(self, chance: Chance, name: str, span: slice) -> Tensor:
        """The region of each member of a group of neurons or of a tensor, as equal in number as possible."""
        size = span.stop - span.start
        keys = chance.key(f"regions: {name}", torch.arange(size, device=chance.device))
        region: Tensor = keys.argsort().argsort() * self.count // size
        return region
