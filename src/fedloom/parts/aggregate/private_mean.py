"""Aggregate: a mean with noise that hides whether any one client took part.

What this protects and what not is explained in docs/explanation-privacy.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.means import clipped
from fedloom.core.part import Aggregate, Sampling
from fedloom.core.types import Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.parts.aggregate.epsilon import accounting, spent

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class PrivateMean(Aggregate):
    """`model + (sum of clipped updates + noise) / expected cohort`: the Gaussian mechanism, once a round.

    Every update is clipped to an l2 norm of `clip` over the numbers sent; normal noise with standard deviation
    `noise * clip` is added to every number of the sum, also to those that nobody sent. The sum is divided by a
    constant, the `cohort` that `select` draws or its `probability` times the fleet, never by how many replies arrived
    or what they cover. `delta` is for the epsilon of the run.
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
        """Refuse parts that let anything from single replies bypass the noise."""
        if not method.pace.barrier:
            return "one client's reply decides in which step another's counts; leave pace out."
        if not method.masks_known:
            return "clients choose by themselves what they send, and their choice tells of their data without noise."
        drawn = method.select.drawn
        if drawn is None:
            return f"{type(method.select).__name__} chooses who takes part by more than chance."
        if drawn != (self.cohort, self.probability):
            return f"it must be told how many take part, {drawn._asdict()}; make it with private(method)."
        if method.repair.stands_in:
            return "a stand-in lets one client count twice; put Nothing() into repair."
        if method.mask.depends_on_cohort:
            name = type(method.mask).__name__
            return f"{name} deals the model by who takes part, so that one client changes what others send."
        for slot in ("select", "allocate", "mask", "admit"):
            part = getattr(method, slot)
            if part.learns:
                return f"{type(part).__name__} decides by single replies, which have no noise yet."
        for rule in method.local.defining("debrief"):
            return f"{type(rule).__name__} brings single replies into the model without noise, on the server."
        return None

    def init(self, setting: Setting, model: Tensor) -> State:
        """Refuse networks with running statistics or frozen parameters, which noise would change."""
        if setting.layout.trained < setting.layout.total:
            raise BadExperiment(
                "the network has numbers that are not trained (running statistics of batch norm, or frozen ones), "
                "which a private mean cannot keep; use group norm."
            )
        accounting()  # refuses a missing package now rather than after the run
        return {}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Clip, sum, add noise, divide."""
        assert reply.chance is not None
        change, _ = clipped(reply.params - model, self.clip)
        total = reply.arrived.to(model.dtype) @ change
        draw = reply.chance.normal("privacy", torch.arange(len(model), device=model.device))
        noise = (self.noise * self.clip * draw).to(model.dtype)
        return model + (total + noise) / self.expected(setting), memory

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """All numbers: noise is in each."""
        return torch.ones_like(reply.arrived.any())

    def expected(self, setting: Setting) -> float:
        """The expected number of clients that take part."""
        return self.cohort if self.cohort is not None else (self.probability or 1.0) * setting.fleet.size

    def outcome(self, setting: Setting, rounds: int) -> dict[str, float]:
        """The privacy that the run has spent, as epsilon and delta."""
        return spent(self.noise, self.delta, rounds, self.probability, setting.fleet.size)


def private(method: Method, clip: float = 1.0, noise: float = 1.0, delta: float = 1e-5) -> Method:
    """The method with a private mean in place of its coverage mean, for the cohorts that its `select` draws."""
    if not method.aggregate.replaceable:
        raise BadExperiment(
            f"the method's own aggregate is {type(method.aggregate).__name__}; only a coverage mean can become private."
        )
    drawn = method.select.drawn or Sampling()  # without one the method is refused
    mean = PrivateMean(clip, noise, delta, drawn.cohort, drawn.probability)
    return replace(method, aggregate=method.aggregate.replaced_by(mean))
