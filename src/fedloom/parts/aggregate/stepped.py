"""Aggregate: the server's own step, by a learning rate or an optimiser, towards what another aggregate makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.server_optimiser import ServerOptimiser, ServerSgd

if TYPE_CHECKING:
    from fedloom.core.work import Work
    from fedloom.method import Method

OWN = "step."  # prefix of the optimiser's moments in the memory


@dataclass(frozen=True)
class Stepped(Aggregate):
    """A step of `optimiser` along `D = v - w`, where the model is `w` and the aggregate `towards` makes it `v`.

    Numbers for which no reply counts, which `towards.covered` says, stay, and so do their moments: their D is unknown,
    not 0. With `dense` it is 0, so that they move on by their moments. Numbers that are not trained, such as running
    statistics, have no moments and go no further than to `v`.
    """

    towards: Aggregate = CoverageMean()
    optimiser: ServerOptimiser = ServerSgd()
    dense: bool = False

    @property
    def replaceable(self) -> bool:
        """As the other."""
        return self.towards.replaceable

    def replaced_by(self, other: Aggregate) -> Aggregate:
        """The same step towards what `other` makes."""
        return replace(self, towards=other)

    @property
    def unstepped(self) -> Aggregate:
        """What it goes towards."""
        return self.towards

    @property
    def reads_weight(self) -> bool:
        """As the other."""
        return self.towards.reads_weight

    @property
    def weighs_rows(self) -> bool:
        """As the other."""
        return self.towards.weighs_rows

    @property
    def learns(self) -> bool:
        """As the other."""
        return self.towards.learns

    @property
    def needs_losses(self) -> bool:
        """As the other."""
        return self.towards.needs_losses

    def clash(self, method: Method) -> str | None:
        """As the other; and refuse rules that move the model after it, by what is no change of clients."""
        if method.local.traits.moves_model and not self.optimiser.neutral:
            return (
                f"{type(method.local).__name__} moves the model on the server after it, which would not be part of the "
                "step; leave the server's optimiser and rate out."
            )
        return self.towards.clash(method)

    def for_work(self, work: Work) -> Self:
        """With the other for this work."""
        return replace(self, towards=self.towards.for_work(work))

    def init(self, setting: Setting, model: Tensor) -> State:
        """The other's memory, and the moments."""
        moments = self.optimiser.begin(model[: setting.layout.trained])
        return self.towards.init(setting, model) | _named(moments)

    def resume(self, setting: Setting, model: Tensor, saved: State) -> State:
        """Both memories."""
        moments = super().resume(setting, model, {n: v for n, v in saved.items() if n.startswith(OWN)})
        return self.towards.resume(setting, model, _inner(saved)) | moments

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Let the other observe."""
        return memory | self.towards.observe(_inner(memory), setting, model, reply)

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Take the step; where it is the whole change nothing is computed."""
        moments = {name.removeprefix(OWN): value for name, value in memory.items() if name.startswith(OWN)}
        new, kept = self.towards(_inner(memory), setting, model, reply)
        if self.optimiser.neutral:
            return new, kept
        trained, rest = setting.layout.trained, self.optimiser.untrained
        step, after = self.optimiser.move(moments, new[:trained] - model[:trained])
        seen = reply.arrived.any() if self.dense else self.towards.covered(model, reply)
        seen = seen[:trained] if seen.dim() else seen
        moved = torch.where(seen, model[:trained] + step, new[:trained])
        if trained < len(model):
            old = model[trained:]
            moved = torch.cat((moved, new[trained:] if rest == 1 else (new[trained:] - old).mul_(rest).add_(old)))
        after = {name: torch.where(seen, value, moments[name]) for name, value in after.items()}
        return moved, kept | _named(after)

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """As the other."""
        return self.towards.covered(model, reply)

    def record(self, memory: State) -> State:
        """What the other records."""
        return self.towards.record(_inner(memory))

    def note(self, setting: Setting) -> str | None:
        """What the other has to say."""
        return self.towards.note(setting)

    def outcome(self, setting: Setting, rounds: int) -> dict[str, float]:
        """What the other has to say."""
        return self.towards.outcome(setting, rounds)


def _inner(memory: State) -> State:
    """The other's memory."""
    return {name: value for name, value in memory.items() if not name.startswith(OWN)}


def _named(moments: State) -> State:
    """The moments as part of the memory."""
    return {OWN + name: value for name, value in moments.items()}
