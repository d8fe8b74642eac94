"""A federated method as a value: one small part per decision of a round, and how clients train."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from fedloom.core.optimiser import Optimiser, Sgd
from fedloom.core.pace import Pace
from fedloom.core.part import Admit, Aggregate, Allocate, Mask, Repair, Select, Upload
from fedloom.core.rule import LocalRule
from fedloom.core.stale import Stale
from fedloom.core.types import Setting, State
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.parts.admit.finite import Finite
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.whole import Whole
from fedloom.parts.mask.everything import Everything
from fedloom.parts.pace.barrier import Barrier
from fedloom.parts.repair.nothing import Nothing
from fedloom.parts.select.uniform import Uniform
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.upload.as_sent import AsSent
from fedloom.shown import table

Memory = dict[str, State]  # the server's memory, by slot

SERVER_SLOTS = ("select", "allocate", "mask", "admit", "repair", "aggregate", "pace")
SLOTS = ("select", "allocate", "mask", "local", "upload", "admit", "repair", "stale", "aggregate", "pace")
BARRIER_FREE = ("stale", "pace")  # slots that only rounds without a barrier ask


@dataclass(frozen=True, kw_only=True, repr=False)
class Method:
    """A federated method. Every slot has a default; all together are FedAvg. Mix with `dataclasses.replace`."""

    select: Select = Uniform()
    allocate: Allocate = Whole()
    mask: Mask = Everything()
    local: LocalRule = LocalRule()
    upload: Upload = AsSent()
    admit: Admit = Finite()
    repair: Repair = Nothing()
    aggregate: Aggregate = CoverageMean()
    optimiser: Optimiser = Sgd()
    work: Work = Work()
    stale: Stale = AsChange()
    pace: Pace = Barrier()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit the others."""
        for slot in SLOTS:
            part = getattr(self, slot)
            if (why := part.clash(self)) is not None:
                raise BadExperiment(f"{slot}={type(part).__name__} does not fit this method: {why}")

    def __repr__(self) -> str:
        """As one writes it: what differs from FedAvg."""
        shown = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Method({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def _repr_html_(self) -> str:
        """A table of its parts, for notebooks."""
        marks = {f.name: "" if getattr(self, f.name) != f.default else " (as FedAvg)" for f in fields(self)}
        return table("Method", [(name, f"{getattr(self, name)!r}{mark}") for name, mark in marks.items()])

    @property
    def in_full(self) -> str:
        """All its parts; slots that only rounds without a barrier ask are left out where they are not set."""
        shown = [f.name for f in fields(self) if f.name not in BARRIER_FREE or getattr(self, f.name) != f.default]
        return f"Method({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def masks_known(self) -> bool:
        """Whether the server knows beforehand which numbers a client sends back: those that it was sent."""
        return self.upload.sends_what_came and not self.local.traits.chooses

    @property
    def of_neurons(self) -> bool:
        """Whether any part chooses whole neurons."""
        return any(getattr(self, slot).of_neurons for slot in SLOTS if slot != "local")

    @property
    def needs_devices(self) -> bool:
        """Whether any decision depends on the clients' devices."""
        return any(getattr(self, slot).needs_devices for slot in SERVER_SLOTS)

    def cohort_size(self, fleet_size: int) -> int:
        """At most how many of `fleet_size` clients train in a round; without a barrier, replies that a step takes."""
        return self.select.cohort_size(fleet_size) if self.pace.barrier else min(self.pace.goal, fleet_size)

    def init(self, setting: Setting, model: Tensor) -> Memory:
        """The server's memory before the first round."""
        memory = {slot: getattr(self, slot).init(setting, model) for slot in SERVER_SLOTS}
        return {**memory, "local": self.local.server_state(setting, model)}

    def record(self, memory: Memory) -> State:
        """Values of the round just played for the run folder, as `slot.name`."""
        kept = {slot: getattr(self, slot).record(memory[slot]) for slot in SERVER_SLOTS}
        return {f"{slot}.{name}": value for slot, own in kept.items() for name, value in own.items()}

    def notes(self, setting: Setting) -> list[str]:
        """Sentences for the user before a run begins."""
        notes = [getattr(self, slot).note(setting) for slot in SERVER_SLOTS]
        return [note for note in notes if note is not None]

    def outcome(self, setting: Setting, rounds: int) -> dict[str, float]:
        """Results of a finished run, such as the privacy it has spent."""
        said = [getattr(self, slot).outcome(setting, rounds) for slot in SERVER_SLOTS]
        return {name: value for own in said for name, value in own.items()}
