"""Mask: one set of weights for all clients, chosen now and then by squared gradients per second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, Self

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.clock import BYTES, PASSES, processed
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Reply, Setting, State
from fedloom.core.work import Work
from fedloom.errors import BadExperiment

BITS, FLOPS = 1e7, 1e9  # per second, where a fleet has no devices


@dataclass(frozen=True)
class PrunedByTime(Mask):
    """The weights that all clients train, chosen anew in every `every`-th round by squared gradients per second."""

    every: int = 10
    remove: float = 0.3
    half_life: float = 10_000
    regrow: Literal["last", "zero"] = "last"
    seconds: tuple[float, ...] | None = None
    constant: float | None = None
    density: float = 1.0
    work: Work = Work()

    def __post_init__(self) -> None:
        for name, value, low, high in (("every", self.every, 1, torch.inf), ("remove", self.remove, 0, 1)):
            if not low <= value <= high:
                raise BadExperiment(f"{name} is {value}; expected a number from {low} to {high}.")

    def for_work(self, work: Work) -> Self:
        """Seconds are of this work."""
        return replace(self, work=work)

    @property
    def learns(self) -> bool:
        """From squared gradients."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """Everything is in use; `last` holds the values of weights that are not."""
        return {"mask": torch.ones_like(model, dtype=torch.bool), "last": torch.zeros_like(model)}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return the weights in use, for everybody."""
        mask = memory["mask"]
        if chance.round <= self.every and mask.device.type == "cpu":
            return Portion(), memory
        return Portion(mask.repeat(len(ids), 1)), memory

    def settle(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Choose the weights anew where clients reported; what leaves is kept, and 0 in the model."""
        if "squares" not in reply.extras:
            return model, memory
        assert reply.chance is not None
        weight = setting.fleet.examples[reply.ids].double()[:, None]
        squares = torch.where(reply.arrived[:, None], reply.extras["squares"].double() * weight, 0).sum(0)
        old, values = memory["mask"], torch.where(memory["mask"], model, memory["last"])
        fraction = self.remove * 0.5 ** (reply.chance.round / self.half_life)
        new = torch.where(reply.arrived.any(), self.chosen(setting, model, old, squares, fraction), old)
        back = values if self.regrow == "last" else model
        return torch.where(new, back, 0), {"mask": new, "last": values}

    def chosen(self, setting: Setting, model: Tensor, mask: Tensor, squares: Tensor, fraction: float) -> Tensor:
        """The weights to use next [P]."""
        certain, t = torch.ones_like(mask), torch.zeros_like(squares)
        spans = [span for layer in setting.layers for span in layer.weights]
        for span, seconds in zip(spans, self.seconds or _seconds(setting, self.work)):
            size = torch.where(mask[span.place], model[span.place].abs(), torch.inf)
            count = int(fraction * int(mask[span.place].sum()))
            out = ~mask[span.place]
            out[size.argsort(stable=True)[:count]] = True
            certain[span.place], t[span.place] = ~out, seconds
        constant = 0.5 * float(t.sum()) if self.constant is None else self.constant
        gain, cost = squares[certain].sum(), constant + t[certain].sum()
        places = (~certain).nonzero().flatten()
        places = places[(squares[places] / t[places]).argsort(descending=True, stable=True)]
        q, each = squares[places], t[places]
        before = (gain + q.cumsum(0) - q) / (cost + each.cumsum(0) - each)
        room = ceil(self.density * int((t > 0).sum())) - int((certain & (t > 0)).sum())  # of prunable weights
        pays = (q / each > before) & (torch.arange(len(places), device=mask.device) < room)
        return certain.index_fill(0, places[: int(pays.long().cumprod(0).sum())], True)


def _seconds(setting: Setting, work: Work) -> list[float]:
    """The seconds of a round per weight, for every tensor of weights, on the fleet's mean device."""
    devices = setting.fleet.devices
    link = 8 * BYTES * (2 / BITS if devices is None else float((1 / devices.up + 1 / devices.down).mean()))
    slow = 1 / FLOPS if devices is None else float((1 / devices.flops).mean())
    examples = float(processed(work, setting.fleet.examples).double().mean())
    times = {tensor.name: tensor.positions for tensor in setting.neurons.tensors}
    spans = [span for layer in setting.layers for span in layer.weights]
    return [link + slow * PASSES * 2 * times[span.name] * examples for span in spans]
