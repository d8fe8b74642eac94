"""The contracts of a method's slots: one abstract class per decision that the server takes in a round.

Every part is pure: it is given its memory and facts, and returns its decision and its new memory. A part is a frozen
dataclass, so that it prints, compares and can be rebuilt elsewhere; a leaf is not subclassed further. What others need
to know of a part without calling it is a property declared here, with the default of most parts.

Shapes: N clients in the fleet, C in the cohort, P numbers in the model, K hidden neurons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Self

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Cohort, Portion, Reply, Setting, State, Task
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.core.work import Work
    from fedloom.method import Method
    from fedloom.neurons.leading import LeadingNeurons


class Part(ABC):  # noqa: B024  its subclasses below each add the one abstract call
    """What fills a slot of a method."""

    @property
    def networks(self) -> tuple[LeadingNeurons | None, ...]:
        """The networks that this part takes clients to own (None: the whole one); empty if it does not matter."""
        return ()

    @property
    def of_neurons(self) -> bool:
        """Whether it chooses whole neurons, which a network may lack; runs then say which layers are kept whole."""
        return False

    @property
    def alone(self) -> bool:
        """Whether it can decide on one client at a time, who need not be asked in the end; False: on a whole cohort."""
        return True

    def clash(self, method: Method) -> str | None:
        """Why this part cannot work in `method`, as a sentence; None if it can."""
        return None


class ServerPart(Part):
    """A decision of the server."""

    def init(self, setting: Setting, model: Tensor) -> State:
        """The memory before the first round; `model` is the initial model [P]."""
        return {}

    def resume(self, setting: Setting, model: Tensor, saved: State) -> State:
        """The memory of a resumed run: copies, on the model's device, of the tensors that `saved` has on the host."""
        return {name: value.to(model.device, copy=True) for name, value in saved.items()}

    def for_work(self, work: Work) -> Self:
        """This part for clients that do this work in a round; a part that reckons with it has it as a field."""
        return self

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Update the memory from the replies, before repair and aggregation."""
        return memory

    @property
    def learns(self) -> bool:
        """Whether decisions depend on single replies, which they then give away; assumed of parts with `observe`."""
        return type(self).observe is not ServerPart.observe

    @property
    def needs_losses(self) -> bool:
        """Whether decisions depend on the training losses that clients report."""
        return False

    @property
    def needs_devices(self) -> bool:
        """Whether decisions depend on the clients' devices, so that a fleet must have some."""
        return False

    def record(self, memory: State) -> State:
        """Values of this round for the run folder: scalars become columns; of larger tensors the last is kept."""
        return {}

    def note(self, setting: Setting) -> str | None:
        """A sentence for the user before the run begins, such as how large the memory will be."""
        return None

    def outcome(self, setting: Setting, rounds: int) -> dict[str, float]:
        """Results of a finished run of this many rounds, such as the privacy it has spent."""
        return {}


class NobodyLeft(Exception):
    """No client will ever take part again: the run is over."""


class Sampling(NamedTuple):
    """How a cohort is drawn by chance alone: a fixed number of clients, or each client with a probability."""

    cohort: int | None = None
    probability: float | None = None


class Select(ServerPart):
    """Which clients take part."""

    @property
    def drawn(self) -> Sampling | None:
        """How clients that may send are drawn, if by chance alone; None if anything else decides."""
        return None

    @property
    def whole_fleet(self) -> bool:
        """Whether every client trains in every round, even if not all may send."""
        return False

    @property
    def skips_stopped(self) -> bool:
        """Whether clients that have reported `stopped` are left out."""
        return False

    @property
    def asks_one_by_one(self) -> bool:
        """Whether `next` can choose among clients that are free."""
        return type(self).next is not Select.next

    def cohort_size(self, fleet_size: int) -> int:
        """At most how many of `fleet_size` clients train in a round."""
        return fleet_size

    def with_count(self, count: int) -> Select | None:
        """This part choosing `count` clients a round; None if their number cannot be set (`per_round` is refused)."""
        return None

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Choose this round's cohort of at least one client; raise `NobodyLeft` if there will never be one again."""

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Choose clients to ask without a barrier: at most `count` of those `free` [N], the first to be asked first.

        With everybody free, the first C are the cohort of C clients that a round would have.
        """
        raise BadExperiment(
            f"select={type(self).__name__} chooses whole cohorts and cannot choose among clients that are free; "
            "leave pace out, or take another select."
        )


class Allocate(ServerPart):
    """How much of the model each client may use."""

    @property
    def steady(self) -> bool:
        """Whether a client has the same share in every round."""
        return False

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """Return a share in (0, 1] for each of the cohort [C]."""


class Mask(ServerPart):
    """Which part of the model each client is sent."""

    @property
    def sends_all(self) -> bool:
        """Whether every client is always sent the whole model."""
        return False

    @property
    def rows(self) -> bool:
        """Whether masks are made of whole rows, all that leads into a neuron; they then travel as neurons."""
        return False

    @property
    def steady(self) -> bool:
        """Whether the same share always keeps the same number of neurons of every group."""
        return False

    @property
    def depends_on_cohort(self) -> bool:
        """Whether what a client is sent depends on who else takes part."""
        return False

    def clash(self, method: Method) -> str | None:
        """Refuse rules that train numbers which clients were not sent."""
        if self.sends_all or method.local.traits.cuts or method.local.traits.needs_whole:
            return None
        rule = type(method.local).__name__
        return f"it sends part of the model, but {rule} trains all of it; put SubModel() or KeepOwn() into local."

    @abstractmethod
    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return a mask [C, P], and the neurons [C, K] if the mask is made of whole ones."""

    def settle(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Return the model [P] that a round leaves, from the aggregated one, and the memory: a mask may change here."""
        return model, memory


class Upload(Part):
    """What each client sends back; runs on the client."""

    @property
    def sends_what_came(self) -> bool:
        """Whether a client sends back exactly the numbers that it was sent, so that the mask need not travel."""
        return False

    @property
    def rows(self) -> bool:
        """Whether masks are made of whole rows, all that leads into a neuron; they then travel as neurons."""
        return False

    @property
    def sends_all_outputs(self) -> bool:
        """Whether the output layer is sent whole, whatever the share."""
        return False

    @abstractmethod
    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """Return a mask [C, P] from the weights before and after training [C, P each], or None for everything."""


class Admit(ServerPart):
    """Which replies count."""

    @property
    def checking(self) -> Admit:
        """What refuses replies that cannot be right; the part itself, unless it also chooses among the others."""
        return self

    def checked_by(self, checks: Admit) -> Admit:
        """This part with other checks in place of its own."""
        return checks

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Reply, State]:
        """Return the replies; refused ones have not `arrived`, and `rejected` holds the reason."""


class Repair(ServerPart):
    """What replaces missing replies."""

    @property
    def stands_in(self) -> bool:
        """Whether one client's reply may count for another client too."""
        return True

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Reply, State]:
        """Return the replies, with gaps filled."""


class Aggregate(ServerPart):
    """How replies become the next model."""

    @property
    def replaceable(self) -> bool:
        """Whether a user may put another aggregate in its place by name; not if it is what the method is about."""
        return False

    def replaced_by(self, other: Aggregate) -> Aggregate:
        """This part with another aggregate in place of what is `replaceable` in it."""
        return other

    @property
    def unstepped(self) -> Aggregate:
        """This part without a step of the server's own after it."""
        return self

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """Return for which numbers any reply counts [P], or [] for all alike; the others have no known change."""
        if reply.mask is None:
            return reply.arrived.any()
        return (reply.mask & reply.arrived[:, None]).any(0)

    @property
    def reads_weight(self) -> bool:
        """Whether clients report the sum of their examples' weights in a column `weight`."""
        return False

    @property
    def weighs_rows(self) -> bool:
        """Whether it multiplies the weights of rows by `Reply.weight`, so that stale replies can count less."""
        return False

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Return the new model [P]."""
