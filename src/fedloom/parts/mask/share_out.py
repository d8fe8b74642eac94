"""Mask: disjoint neurons for each client, dealt out among the cohort."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Setting, State
from fedloom.errors import BadExperiment
from fedloom.neurons.map import NeuronMap
from fedloom.parts.mask.ranked import portion


@dataclass(frozen=True)
class ShareOut(Mask):
    """Hidden neurons in `parts` of equal size, as far as possible, dealt to the cohort by turns, anew every round.

    None: a part for each client, so that no two have the same neuron. A group with fewer neurons than parts is dealt
    more than once, so that every client has a neuron of it. Channels that pass a group norm are dealt in blocks that it
    can divide.
    """

    parts: int | None = None

    def __post_init__(self) -> None:
        if self.parts is not None and self.parts < 1:
            raise BadExperiment(f"parts (of the network) is {self.parts}; it is at least 1, or none for one a client.")

    @property
    def alone(self) -> bool:
        """Neurons are shared out among a whole cohort."""
        return False

    @property
    def of_neurons(self) -> bool:
        """It does."""
        return True

    @property
    def depends_on_cohort(self) -> bool:
        """Neurons are divided among the clients that take part."""
        return True

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return the neurons of each client; a cohort of one has the whole model."""
        parts = len(ids) if self.parts is None else min(self.parts, len(ids))
        keep = dealt(setting.neurons, ids, chance, parts)
        return portion(setting.neurons, keep, torch.full(ids.shape, 1 / parts, device=ids.device)), memory


def dealt(neurons: NeuronMap, ids: Tensor, chance: Chance, parts: int) -> Tensor:
    """The neurons of each client [C, K]."""
    hands = [torch.ones(len(ids), 0, dtype=torch.bool, device=ids.device)]
    for number, (group, span) in enumerate(neurons.spans(neurons.size)):
        width, step = span.stop - span.start, neurons.steps[group]
        blocks = max(1, width // step)
        order = chance.key("share-out", number, torch.arange(width, device=ids.device)).argsort().argsort()
        seats = chance.key("seats", number, ids).argsort().argsort()  # the order of clients; the first may get one more
        block = (order // step).clamp(max=blocks - 1)
        hands.append((seats[:, None] - block) % min(blocks, parts) == 0)
    return torch.cat(hands, 1)
