"""Which part is each client sent? The neurons are dealt out among the cohort, to each its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Setting, State
from fedloom.neurons.map import NeuronMap
from fedloom.parts.mask.ranked import portion


@dataclass(frozen=True)
class ShareOut(Mask):
    """Disjoint hidden neurons for everyone, as equally many as possible, dealt anew every round.

    A group with fewer neurons than the cohort has clients is dealt more than once, so that everyone has a neuron of
    it. Channels that pass a group norm are dealt in blocks that it can divide.
    """

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Everybody's hand; a cohort of one has the whole model."""
        keep = dealt(setting.neurons, ids, chance)
        return portion(setting.neurons, keep, torch.full(ids.shape, 1 / len(ids), device=ids.device)), memory


def dealt(neurons: NeuronMap, ids: Tensor, chance: Chance) -> Tensor:
    """Who has which neurons [C, K]."""
    hands = [torch.ones(len(ids), 0, dtype=torch.bool, device=ids.device)]
    for number, (group, span) in enumerate(neurons.spans(neurons.size)):
        width, step = span.stop - span.start, neurons.steps[group]
        blocks = max(1, width // step)
        order = chance.key("share-out", number, torch.arange(width, device=ids.device)).argsort().argsort()
        seats = chance.key("seats", number, ids).argsort().argsort()  # who is dealt to first, and may have one more
        block = (order // step).clamp(max=blocks - 1)
        hands.append((seats[:, None] - block) % min(blocks, len(ids)) == 0)
    return torch.cat(hands, 1)
