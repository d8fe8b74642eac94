"""Admit: replies that report a possible number of examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.types import Reply, Setting, Task
from fedloom.errors import BadExperiment
from fedloom.parts.admit.check import Check


@dataclass(frozen=True)
class Weight(Check):
    """Reports of 0, negative, infinite or NaN examples are refused; more than `most` count as `most`.

    So are reported weights that are negative, infinite or NaN. With `most` None the limit is what the server knows of
    the client, the fleet's `examples`.
    """

    most: int | None = None

    def __post_init__(self) -> None:
        if self.most is not None and self.most < 1:
            raise BadExperiment(f"most (examples that a client may claim) is {self.most}; it is at least 1.")

    @property
    def reason(self) -> str:
        """The reason for a reported number that is impossible."""
        return "report"

    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Cap the reported examples, by which means are weighted, and refuse impossible ones."""
        said = reply.report["examples"]
        most = setting.fleet.examples[reply.ids] if self.most is None else torch.full_like(reply.ids, self.most)
        capped = said.minimum(most.to(said.dtype))
        possible = (said > 0) & (said < torch.inf)
        if (weight := reply.report.get("weight")) is not None:  # its limit is not known: targets stay with the client
            possible &= (weight >= 0) & (weight < torch.inf)
        return ~possible, reply._replace(report={**reply.report, "examples": capped})
