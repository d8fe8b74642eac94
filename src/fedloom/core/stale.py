"""The contract of the slot `stale`: what a reply to an older model means."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from fedloom.core.part import Part
from fedloom.core.types import Reply
from fedloom.errors import BadExperiment, unknown

if TYPE_CHECKING:
    from fedloom.method import Method


class Stale(Part):
    """What a reply to an older model means now; not asked where every reply is to the model as it is.

    Admission, observation and repair see rows that were rebased and not yet discounted, aggregation those that were.
    """

    by: Literal["steps", "numbers"] | None  # a field: staleness of replies or of numbers; None: as fits the method

    def __post_init__(self) -> None:
        if self.by not in (None, "steps", "numbers"):
            raise BadExperiment(unknown("by (what staleness is counted by)", str(self.by), ("steps", "numbers")))

    @property
    @abstractmethod
    def discounts(self) -> bool:
        """Whether staleness decides how much a reply counts."""

    def counts_numbers(self, method: Method) -> bool:
        """Whether staleness is counted for each number; unless told otherwise, where clients may send a part."""
        sends_all = method.mask.sends_all and method.masks_known
        return self.by == "numbers" if self.by is not None else not sends_all

    @abstractmethod
    def rebase(self, model: Tensor, bases: Tensor, reply: Reply, given: Tensor | None = None) -> Reply:
        """Return the replies as rows beside `model` [P], given the models that their clients were sent.

        `bases`: these models [C, P], or one [P] for all. `given` [C, P]: the numbers that they were sent (None: all).
        Fresh rows are returned to the bit. What a client did not send may be anything, before and after.
        """

    @abstractmethod
    def lessen(self, model: Tensor, reply: Reply) -> Reply:
        """Return the replies discounted by `reply.staleness`; None there means that all are fresh by construction."""
