"""Mask: the first stages of the network, as many as a client's share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.stages import depth_of, stage_of_each
from fedloom.core.types import Portion, Setting, State


@dataclass(frozen=True)
class Stages(Mask):
    """The first stages with their exits, `ceil(share * D)` of the D that the network declares; if none, all of it."""

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return whole tensors."""
        if not setting.stages or (share.device.type == "cpu" and bool((share >= 1).all())):
            return Portion(), memory
        stage = stage_of_each(setting.stages, setting.layout, model.device)
        return Portion(stage <= depth_of(share, len(setting.stages))[:, None]), memory

    def note(self, setting: Setting) -> str | None:
        """A network without stages is not cut."""
        if setting.stages:
            return None
        return "the network declares no stages, so that all clients train all of it; model=mlp-exits has four."
