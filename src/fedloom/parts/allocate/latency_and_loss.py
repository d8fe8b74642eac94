"""Allocate: shares that make a round short and drop little from the clients whose updates matter most (FedDD)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.chance import Chance, absorb, uniform
from fedloom.core.clock import by_cycles, processed
from fedloom.core.devices import FADING, known_devices
from fedloom.core.part import Allocate
from fedloom.core.types import Reply, Setting, State
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.neurons.leading import LeadingNeurons
from fedloom.parts.allocate.budget import Fleet, by_filling

BITS = 32  # per number
RECORDED = ("mean_share", "least_share", "largest_share", "seconds")
ROUNDING = 1e-9  # 1 - 0.7 is just above 0.3 in floating point


@dataclass(frozen=True)
class LatencyAndLoss(Allocate):
    """Shares `1 - D` that minimise `t + delta * sum_n re_n D_n`, where all together send a `budget` of their models.

    `t` is the slowest client's download, compute and upload, and `re_n = m_n / m * q_n * U_n / U * loss_n` is the
    importance of a client: by its part of all examples, its classes `q_n = sum_c min(C * dis_n^c, 1)` (with
    `class_term`), its part of the network and its last known training loss. D is at most `most`. A `relative` delta is
    in units of `t_full / mean_n re_n`, where `t_full` is the duration of a round in which all clients send everything:
    at `1 / N` the importance of all clients is worth one such round. A raw delta is in seconds. Until a loss is known,
    which is after the first round, all clients send everything; a client that never answered counts with the mean loss
    of the others.
    """

    budget: float = 0.6
    most: float = 0.8  # dropout rate
    delta: float = 0.01
    relative: bool = True
    class_term: bool = True
    work: Work = Work()
    models: LeadingNeurons | None = None  # None: every client has the whole network

    def __post_init__(self) -> None:
        if not 0 <= self.most < 1:
            raise BadExperiment(f"most (the highest dropout rate) is {self.most}; it lies at 0 or above and below 1.")
        if not self.budget <= 1:
            raise BadExperiment(f"budget (part of all models that is sent) is {self.budget}; it is at most 1.")
        if not self.budget >= 1 - self.most - ROUNDING:
            raise BadExperiment(
                f"budget (part of all models that is sent) is {self.budget}, but with most={self.most} everyone sends "
                f"at least {1 - self.most:.4g} of its model; raise one of them."
            )
        if not self.delta >= 0:
            raise BadExperiment(f"delta (weight of the clients' importance) is {self.delta}; it is not negative.")

    @property
    def alone(self) -> bool:
        """One programme is solved for all."""
        return False

    @property
    def needs_losses(self) -> bool:
        """Importance is computed from losses."""
        return True

    @property
    def needs_devices(self) -> bool:
        """Shares depend on links and computing."""
        return True

    @property
    def networks(self) -> tuple[LeadingNeurons | None, ...]:
        """A share is one of what the client owns."""
        return (self.models,)

    def for_work(self, work: Work) -> Self:
        """Compute seconds depend on the clients' work."""
        return replace(self, work=work)

    def init(self, setting: Setting, model: Tensor) -> State:
        """No loss is known; devices must be known."""
        known_devices(setting.fleet.devices, "LatencyAndLoss")
        zero = torch.zeros((), dtype=torch.float64, device=model.device)
        return {
            "loss": zero.repeat(setting.fleet.size),
            "known": torch.zeros(setting.fleet.size, dtype=torch.bool, device=model.device),
            **dict.fromkeys(RECORDED, zero),
        }

    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """Solve the linear programme for the cohort."""
        solve = _shared if self.models is None else _share  # what each client owns is computed on the host
        share, facts = solve((memory["loss"], memory["known"], ids, chance.key(FADING)), self, setting)
        return share, {**memory, **dict(zip(RECORDED, facts.unbind()))}

    def importance(self, setting: Setting, ids: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
        """`re_n` from the losses [C], and the part of the network that each client owns [C]."""
        examples, labels = setting.fleet.examples.double(), setting.fleet.labels[ids].double()
        part = torch.ones_like(loss)
        if self.models is not None:
            neurons = setting.neurons
            part = neurons.bytes(self.models.of(neurons, ids), each=1).double() / setting.layout.total
        found = examples[ids] / examples.sum() * part * loss
        if self.class_term:
            classes = labels / labels.sum(1, keepdim=True) * labels.shape[1]
            found = found * classes.clamp(max=1).sum(1)
        return found, part

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Remember the losses of replies that arrived; for a diverged client the last finite one stays."""
        loss, known = _heard((memory["loss"], memory["known"], reply.ids, reply.report["loss"], reply.arrived))
        return {**memory, "loss": loss, "known": known}

    def record(self, memory: State) -> State:
        """Shares of the round, and its expected duration by the paper's formula."""
        return {name: memory[name] for name in RECORDED}

    def note(self, setting: Setting) -> str | None:
        """A warning if the budget leaves no choice, or if no classes are known; else None."""
        if self.budget > 1 - self.most + ROUNDING:
            known = not self.class_term or setting.fleet.labels.shape[1] > 1
            return None if known else "clients' classes are not known, so FedDD's class term is 1 for everybody."
        return (
            f"budget={self.budget:g} with most={self.most:g} leaves nothing to choose: from the second round on "
            f"everyone sends {1 - self.most:.4g} of its model, whatever its links and losses."
        )


def _share(inputs: tuple[Tensor, ...], how: LatencyAndLoss, setting: Setting) -> tuple[Tensor, ...]:
    """The shares of the cohort [C], and what is recorded of them [4]."""
    losses, known, ids, key = inputs
    mean = losses.sum() / known.sum().clamp(min=1)  # 0 where none is known
    importance, part = how.importance(setting, ids, torch.where(known, losses, mean)[ids])
    devices = known_devices(setting.fleet.devices, "LatencyAndLoss").at(ids).faded(uniform(absorb(key, ids)))
    compute = by_cycles(devices, processed(how.work, setting.fleet.examples[ids]).double())
    bits = BITS * setting.layout.total * part
    fleet = Fleet(part, compute + 2 * devices.latency, bits / devices.up + bits / devices.down, importance)
    whole = torch.ones_like(importance)
    unit = (
        fleet.slowest(whole) / importance.mean().clamp(min=torch.finfo(importance.dtype).tiny) if how.relative else 1.0
    )
    fleet = fleet._replace(worth=how.delta * unit * importance)
    share = torch.where(known.any(), by_filling(fleet, how.budget, 1 - how.most), whole)
    return share, torch.stack([share.mean(), share.min(), share.max(), fleet.slowest(share)])


def _hear(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The losses [N] and whether they are known, after what was reported [C]."""
    losses, known, ids, said, arrived = inputs
    said = said.double().clamp(min=0)
    heard = arrived & said.isfinite()
    losses = losses.index_put((ids,), torch.where(heard, said, losses[ids]))
    return losses, known.index_put((ids,), known[ids] | heard)


_shared, _heard = Captured(_share), Captured(_hear)
