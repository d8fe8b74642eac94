"""How do replies become the next model? By a mean with noise that hides whether any one client took part.

What this gives and what it does not is in docs/explanation-privacy.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedloom.core.part import Aggregate, Select
from fedloom.core.types import Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.parts.admit.norm import shortened
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.epsilon import accounting, spent
from fedloom.parts.mask.share_out import ShareOut
from fedloom.parts.repair.nothing import Nothing
from fedloom.parts.select.bernoulli import Bernoulli
from fedloom.parts.select.everyone import Everyone, SomeSend
from fedloom.parts.select.uniform import Uniform
from fedloom.parts.upload.as_sent import AsSent

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class PrivateMean(Aggregate):
    """`model + (sum of clipped updates + noise) / expected cohort`: the Gaussian mechanism, once a round.

    Every update is cut to an l2 norm of `clip` over what was sent; the sum gets normal noise of `noise * clip` in
    every number, those as well that nobody sent, and is divided by what stands still: the `cohort` that `select` draws,
    or its `probability` times the fleet, never by who came or what they cover. `delta` is for the epsilon of the run.
    """

    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5
    cohort: int | None = None
    probability: float | None = None

    def __post_init__(self) -> None:
        for name in ("clip", "noise"):
            if not getattr(self, name) > 0:
                raise BadExperiment(f"{name} (of private updates) is {getattr(self, name)}; it must be above 0.")
        if not 0 < self.delta < 1:
            raise BadExperiment(f"delta is {self.delta}; it lies between 0 and 1, well below one over the clients.")

    def clash(self, method: Method) -> str | None:
        """Nothing that depends on single replies may pass by the noise."""
        if not isinstance(method.upload, AsSent) or method.local.traits.chooses:
            return "clients choose by themselves what they send, and their choice tells of their data without noise."
        if type(method.select) not in (Uniform, Bernoulli, Everyone, SomeSend):
            return f"{type(method.select).__name__} chooses who takes part by more than chance."
        if sampling_of(method.select) != {"cohort": self.cohort, "probability": self.probability}:
            return f"it must be told how many take part, {sampling_of(method.select)}; make it with private(method)."
        if not isinstance(method.repair, Nothing):
            return "a stand-in lets one client count twice; put Nothing() into repair."
        if isinstance(method.mask, ShareOut):
            return "ShareOut deals the model by who takes part, so that one client changes what others send."
        for slot in ("select", "allocate", "mask", "admit"):
            part = getattr(method, slot)
            if part.learns:
                return f"{type(part).__name__} decides by single replies, which have no noise yet."
        for rule in method.local.defining("debrief"):
            return f"{type(rule).__name__} brings single replies into the model without noise, on the server."
        return None

    def init(self, setting: Setting, model: Tensor) -> State:
        """Noise would break running statistics, and would change what is frozen."""
        if setting.layout.trained < setting.layout.total:
            raise BadExperiment(
                "the network has numbers that are not trained (running statistics of batch norm, or frozen ones), "
                "which a private mean cannot keep; use group norm."
            )
        accounting()  # refused now rather than after the run
        return {}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Clip, add up, add noise, divide."""
        assert reply.chance is not None
        change, _ = shortened(reply.params - model, self.clip)
        total = reply.arrived.to(model.dtype) @ change
        draw = reply.chance.normal("privacy", torch.arange(len(model), device=model.device))
        noise = (self.noise * self.clip * draw).to(model.dtype)
        return model + (total + noise) / self.expected(setting), memory

    def expected(self, setting: Setting) -> float:
        """How many are expected to take part."""
        return self.cohort if self.cohort is not None else (self.probability or 1.0) * setting.fleet.size

    def outcome(self, setting: Setting, rounds: int) -> dict[str, float]:
        """The privacy that the run has spent."""
        return spent(self.noise, self.delta, rounds, self.probability, setting.fleet.size)


def sampling_of(select: Select) -> dict[str, Any]:
    """How `select` draws: so many, or each with a probability."""
    if isinstance(select, Everyone):
        return {"cohort": None, "probability": 1.0}
    probability = getattr(select, "probability", None)
    return {"cohort": getattr(select, "count", None) if probability is None else None, "probability": probability}


def private(method: Method, clip: float = 1.0, noise: float = 1.0, delta: float = 1e-5) -> Method:
    """The method with a private mean in place of its coverage mean, told how many its `select` draws."""
    if not isinstance(method.aggregate, CoverageMean):
        raise BadExperiment(
            f"the method's own aggregate is {type(method.aggregate).__name__}; only a coverage mean can become private."
        )
    return replace(method, aggregate=PrivateMean(clip, noise, delta, **sampling_of(method.select)))
