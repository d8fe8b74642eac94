"""Mask: another mask without the output rows of classes that a client lacks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Reply, Setting, State
from fedloom.errors import BadModel
from fedloom.neurons.map import NeuronMap
from fedloom.parts.mask.ranked import Ranked, portion

if TYPE_CHECKING:
    from fedloom.method import Method


@lru_cache(maxsize=8)
def owned(neurons: NeuronMap, labels: Tensor) -> Tensor:
    """The outputs of classes that each client has examples of [N, O], from its number of each class [N, classes]."""
    own = labels > 0
    spare = neurons.full_size - neurons.size - own.shape[1]  # outputs that are no class
    if spare < 0:
        raise BadModel(
            f"mask_labels needs an output neuron for each of the {own.shape[1]} classes; the model has "
            f"{neurons.full_size - neurons.size} that can be told apart. Set mask_labels to false."
        )
    return F.pad(own, (0, spare))


def own_rows(setting: Setting, ids: Tensor) -> Tensor:
    """A mask without the output rows of classes that a client has no example of [C, P]."""
    own = owned(setting.neurons, setting.fleet.labels)[ids]
    return setting.neurons.expand(F.pad(own, (setting.neurons.size, 0), value=True))


@dataclass(frozen=True)
class OwnClasses(Mask):
    """The `inner` mask without the output rows of classes that a client has no example of."""

    inner: Ranked = Ranked("ordered", "ceil")

    @property
    def of_neurons(self) -> bool:
        """It does."""
        return True

    @property
    def steady(self) -> bool:
        """Output rows are not counted."""
        return self.inner.steady

    def clash(self, method: Method) -> str | None:
        """Refuse rules that train the outputs of missing classes: a smaller network has all output rows."""
        if method.local.traits.masks_classes:
            return super().clash(method)
        return "clients do not train classes they lack; put Rescale(mask_labels=True) into local, behind SubModel()."

    def init(self, setting: Setting, model: Tensor) -> State:
        """The memory of the inner mask."""
        return self.inner.init(setting, model)

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Expand the inner mask's neurons and the outputs together; smaller networks still have all their outputs."""
        kept, memory = self.inner.kept(memory, setting, model, ids, share, chance)
        own = owned(setting.neurons, setting.fleet.labels)[ids]
        return portion(setting.neurons, kept, share, own), memory

    @property
    def learns(self) -> bool:
        """As the inner mask."""
        return self.inner.learns

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """The memory of the inner mask."""
        return self.inner.observe(memory, setting, model, reply)
