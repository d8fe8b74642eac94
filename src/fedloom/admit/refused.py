"""What becomes of a refused reply? It did not arrive, and a code says why; the round goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import torch
from torch import Tensor

from fedloom.admit.unsent import read_unsent_as_unchanged
from fedloom.codec.rejected import Reason
from fedloom.types import Reply, State

# code -> reason: those of a message that cannot be decoded, and those that only the whole round shows
REASONS: tuple[str, ...] = ("admitted", *get_args(Reason), "norm", "repeated")


def refuse(model: Tensor, reply: Reply, bad: Tensor, reason: str) -> Reply:
    """The replies without those of `bad` [C], for this reason; what did not arrive cannot be refused."""
    bad = bad & reply.arrived
    if bad.device.type == "cpu" and not bool(bad.any()):  # elsewhere asking would wait for the device
        return reply
    code = REASONS.index(reason)
    rejected = bad.to(torch.int8) * code if reply.rejected is None else torch.where(bad, code, reply.rejected)
    arrived = reply.arrived ^ bad  # all of them had arrived
    return read_unsent_as_unchanged(model, reply._replace(arrived=arrived, rejected=rejected))


def counted(reply: Reply, reasons: tuple[str, ...]) -> State:
    """How many replies of a round were refused, as `rejected.REASON`; on a CPU without reasons that did not occur.

    Elsewhere to look would wait for the device: there are as many as there may be, the part's own `reasons`.
    """
    found: State = {}
    if reply.rejected is not None:
        here = reply.rejected.device.type == "cpu"
        names = [REASONS[code] for code in reply.rejected.unique().tolist() if code] if here else ("client", *reasons)
        found = {name: (reply.rejected == REASONS.index(name)).sum() for name in names}
    if reply.strays is not None:
        here = reply.strays.device.type == "cpu"
        names = (
            [REASONS[code] for code in reply.strays.nonzero().flatten().tolist()] if here else ("client", "repeated")
        )
        for name in names:
            count = reply.strays[REASONS.index(name)]
            found[name] = found[name] + count if name in found else count
    return {f"rejected.{name}": count for name, count in found.items()}


def stray(counts: Mapping[str, Tensor], before: Tensor | None = None) -> Tensor:
    """How many replies beside the cohort's own were refused [R], by reason; those counted `before` are added."""
    like = next(iter(counts.values()))
    total = torch.zeros(len(REASONS), dtype=torch.int64, device=like.device) if before is None else before.clone()
    for reason, count in counts.items():
        total[REASONS.index(reason)] += count
    return total
