"""Upload: of the part that came, the leading rank components that the client has left."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.adapters import adapters_of
from fedloom.core.part import Upload
from fedloom.core.types import Setting, State, Task


@dataclass(frozen=True)
class LeadingRank(Upload):
    """Components from the client's `rank` on are not sent, and neither is anything else that was not sent down."""

    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """Mask the components that the client gave up."""
        pairs, neurons = adapters_of(setting, type(self).__name__), setting.neurons
        groups = {pair.group for pair in pairs}
        keep = torch.ones(len(last), neurons.size, dtype=torch.bool, device=last.device)
        for group, span in neurons.spans(neurons.size):
            if group in groups:
                place = torch.arange(span.stop - span.start, device=last.device)
                keep[:, span] = place < state["rank"][:, None]
        mask = neurons.expand(keep)
        return mask if task.mask is None else mask & task.mask
