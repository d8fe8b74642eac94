"""Mask: some of a few regions that the model is divided into, and the rest of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.chance import Chance, absorb
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Reply, Setting, State
from fedloom.errors import BadExperiment, unknown
from fedloom.neurons.map import NeuronMap, rounded
from fedloom.neurons.weights import HiddenWeights

Divided = NeuronMap | HiddenWeights  # by neuron, or by element
MODES = ("neuron", "element")
DEALS = ("drawn", "fixed", "turns")
LEVELS = {"L": (0.5,), "S": (0.25,), "MIX": (0.5, 0.25)}  # shares for `Tiers`: half, a quarter, clients by turns


@dataclass(frozen=True)
class Regions(Mask):
    """A client trains `share * count` of the `count` regions (at least one), drawn anew every round, and the rest.

    By `neuron`, the hidden neurons of every layer are split into equal regions and a number belongs to the region of
    its output neuron; by `element`, the weights of hidden layers are split one by one. Numbers of no region (the output
    layer; by `element` also biases and norms) are the rest, which every client trains. Regions are fixed during a run
    unless `redraw`. The first round trains everything if `full_first`. Every `period` rounds (0: never) all clients
    take the last regions, so that the others stay untrained.

    With `coverage`, `trained` or another `deal`, regions are not drawn for each client by itself but dealt to the
    cohort. Of the regions in some order the first `trained` (None: all) are trained in a round. Each of them is the
    start of `coverage` clients, the last one of all that are left (None: of equally many clients), and a client trains
    as many regions as its share says, in order from its start on. The deal is `drawn` anew every round, `fixed` for the
    run, or goes on by `turns`, so that a client trains every region within `count` rounds.

    Recorded from replies that arrived: `coverage`, the fraction of the model's numbers that were sent;
    `regions_trained`; `fewest_clients`, the least number of clients of a trained region; the `staleness` of each
    region, the rounds since it was trained, with mean and maximum; and `tau`, the largest number of rounds that any
    client has not trained some region.
    """

    count: int = 4
    mode: Literal["neuron", "element"] = "neuron"
    redraw: bool = False
    full_first: bool = True
    period: int = 10
    coverage: int | None = None
    trained: int | None = None
    deal: Literal["drawn", "fixed", "turns"] = "drawn"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise BadExperiment(unknown("mode of regions", self.mode, MODES))
        if self.count < 1:
            raise BadExperiment(f"count (of regions) is {self.count}; a model has at least 1 region.")
        if self.period < 0:
            raise BadExperiment(f"period (of rounds with the last regions) is {self.period}; 0 stands for never.")
        if self.deal not in DEALS:
            raise BadExperiment(unknown("deal of regions", self.deal, DEALS))
        if self.coverage is not None and self.coverage < 1:
            raise BadExperiment(
                f"coverage (clients of a trained region) is {self.coverage}; it is at least 1, or none."
            )
        if self.trained is not None and not 1 <= self.trained <= self.count:
            raise BadExperiment(f"trained (regions a round) is {self.trained}; there are 1 to {self.count}, or none.")

    @property
    def dealt(self) -> bool:
        """Whether regions are dealt to a whole cohort."""
        return self.coverage is not None or self.trained is not None or self.deal != "drawn"

    @property
    def alone(self) -> bool:
        """Unless regions are dealt to a cohort."""
        return not self.dealt

    @property
    def depends_on_cohort(self) -> bool:
        """If regions are dealt to it."""
        return self.dealt

    @property
    def of_neurons(self) -> bool:
        """By `neuron` it does."""
        return self.mode == "neuron"

    @property
    def rows(self) -> bool:
        """Regions of neurons are whole rows."""
        return self.mode == "neuron"

    def init(self, setting: Setting, model: Tensor) -> State:
        """No region was trained."""
        since = torch.zeros(setting.fleet.size, self.count, dtype=torch.int64, device=model.device)
        return {
            "chosen": since.bool(),  # [N, count] when each client was last asked
            "since": since,  # [N, count] rounds since each client trained each region, by its replies
            "clients": since[:0].sum(0),  # [count] how many trained each region this round
            "coverage": model.new_zeros(()),
        }

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return the chosen regions as a mask over numbers, which is not a sub-model of whole neurons."""
        whole = share.device.type == "cpu" and bool((share >= 1).all())
        if whole or (self.full_first and chance.round == 1):
            every = torch.ones(len(ids), self.count, dtype=torch.bool, device=ids.device)
            return Portion(), self._asked(memory, ids, every)
        divided = setting.neurons if self.mode == "neuron" else setting.hidden_weights
        if self.redraw:
            (region,) = _numbered((share, *self._keys(divided, chance)), self, divided)
        else:
            region = _standing(self, divided, chance.seed, chance.device)
        if self.dealt:
            chosen = self.chosen(ids, share, chance)
            return Portion(F.pad(chosen, (0, 1), value=True)[:, region]), self._asked(memory, ids, chosen)
        chosen, mask = _drawn((ids, share, chance.key("regions drawn"), region), self.count, self._last(chance))
        return Portion(mask), self._asked(memory, ids, chosen)

    def _last(self, chance: Chance) -> bool:
        """Whether all take the last regions in this round."""
        return bool(self.period) and chance.round % self.period == 0

    def _asked(self, memory: State, ids: Tensor, chosen: Tensor) -> State:
        """The memory with what these clients are asked for; others may not have answered yet."""
        return {**memory, "chosen": memory["chosen"].index_put((ids,), chosen)}

    @property
    def learns(self) -> bool:
        """Observations are recorded only; no decision depends on them."""
        return False

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Update which client trained which region when."""
        since = memory["since"] + 1
        trained = memory["chosen"][reply.ids] & reply.arrived[:, None]  # [C, count]
        since[reply.ids] = since[reply.ids].masked_fill(trained, 0)
        sent = reply.arrived[:, None] if reply.mask is None else reply.mask  # a lost reply has an empty mask
        return {
            **memory,
            "since": since,
            "clients": trained.sum(0),
            "coverage": sent.any(0).mean(dtype=model.dtype),
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
        """The regions that each client trains [C, count]."""
        last = self._last(chance)
        if not self.dealt or last:
            return _chosen(ids, share, chance.key("regions drawn"), self.count, last)
        some, regions = self.trained or self.count, torch.arange(self.count, device=ids.device)
        drawn = chance if self.deal == "drawn" else chance._replace(round=0)
        place = drawn.key("regions dealt", regions).argsort().argsort()  # of each region in the order
        place = (place + chance.round) % self.count if self.deal == "turns" else place
        seats = drawn.key("regions' seats", ids).argsort().argsort()  # the order of clients
        start = seats * some // len(ids) if self.coverage is None else seats // self.coverage
        each = rounded(share.double(), self.count, "half-up").clamp(1, some)[:, None]
        return ((place - start.clamp(max=some - 1)[:, None]) % some < each) & (place < some)

    def _keys(self, divided: Divided, chance: Chance) -> Iterator[Tensor]:
        """Random keys that decide the region of each neuron of a group or, by `element`, of each number of a weight."""
        drawn = chance if self.redraw else chance._replace(round=0)
        for name, span in _parts(divided):
            yield drawn.key(f"regions: {name}", torch.arange(span.stop - span.start, device=drawn.device))

    def members(self, divided: Divided, chance: Chance) -> Tensor:
        """The numbers of each region [count, P]; the rest belongs to all of them."""
        return _members(list(self._keys(divided, chance)), self, divided, chance.device)


def _parts(divided: Divided) -> list[tuple[str, slice]]:
    """Names and places of all that is divided into regions: groups of neurons, or weights."""
    if isinstance(divided, NeuronMap):
        return list(divided.spans(divided.size))
    return [(span.name, slice(span.start, span.stop)) for span in divided.spans]


def _members(keys: list[Tensor], how: Regions, divided: Divided, device: torch.device) -> Tensor:
    regions = torch.arange(how.count, device=device)[:, None]
    dealt = [key.argsort().argsort() * how.count // len(key) for key in keys]  # as equal in number as possible
    if isinstance(divided, NeuronMap):
        return divided.expand(torch.cat([regions[:0, 0], *dealt]) == regions, rows=True)
    members = torch.ones(how.count, divided.total, dtype=torch.bool, device=device)
    for (_, span), region in zip(_parts(divided), dealt):
        members[:, span] = region == regions
    return members


def _number(inputs: tuple[Tensor, ...], how: Regions, divided: Divided) -> tuple[Tensor, ...]:
    """The region of every number [P]; `count` stands for the rest."""
    share, *keys = inputs  # without hidden neurons there are no keys
    members = _members(keys, how, divided, share.device)
    return (members.byte().argmax(0).masked_fill(members.all(0), how.count),)


_numbered = Captured(_number)


@lru_cache(maxsize=16)
def _standing(how: Regions, divided: Divided, seed: int, device: torch.device) -> Tensor:
    """The region of every number [P] for regions that are fixed during a run."""
    return _number((torch.ones(1, device=device), *how._keys(divided, Chance(seed, 0, device))), how, divided)[0]


def _chosen(ids: Tensor, share: Tensor, key: Tensor, count: int, last: bool) -> Tensor:
    """The regions that each client trains [C, count]: the last ones, or random ones."""
    each = rounded(share.double(), count, "half-up").clamp(min=1)[:, None]
    regions = torch.arange(count, device=ids.device)
    if last:
        return regions >= count - each
    return absorb(absorb(key, ids[:, None]), regions).argsort(1).argsort(1) < each


def _draw(inputs: tuple[Tensor, ...], count: int, last: bool) -> tuple[Tensor, ...]:
    """The regions that each client trains [C, count], and the mask of their numbers with the rest [C, P]."""
    ids, share, key, region = inputs
    chosen = _chosen(ids, share, key, count, last)
    return chosen, F.pad(chosen, (0, 1), value=True)[:, region]


_drawn = Captured(_draw)
