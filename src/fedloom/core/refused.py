"""Refused replies: they count as not arrived, with a code for the reason, and the round goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from fedloom.core.types import Reply
from fedloom.core.unsent import read_unsent_as_unchanged

Reason = Literal[
    "size",  # longer than the receiver accepts, or too short to be a message
    "header",  # not written as the receiver would write it
    "checksum",  # damaged on the way
    "version",  # written by another version of the format
    "run",  # of another run
    "round",  # of another round or another attempt
    "client",  # of another client, or of one that was not selected
    "base",  # about another model
    "dtype",  # numbers of a dtype that was not agreed on
    "shape",  # more or fewer numbers than agreed on, or than the mask implies
    "mask",  # not the mask that was asked for, or not a mask
    "share",  # more of the model than was allowed
    "value",  # a number that is not finite
    "report",  # a reported number that is impossible
    "duplicate",  # a second reply of a client whose first was accepted
    "late",  # after the round was closed
]

# the code of a reason is its index: reasons why a message cannot be decoded, then reasons that the round finds
REASONS: tuple[str, ...] = ("admitted", *get_args(Reason), "norm", "repeated")


def refuse(model: Tensor, reply: Reply, bad: Tensor, reason: str, read: bool = False) -> Reply:
    """Refuse the replies in `bad` [C] for this reason; replies that did not arrive cannot be refused.

    `read`: numbers not sent already equal the model's.
    """
    bad = bad & reply.arrived
    if bad.device.type == "cpu" and not bool(bad.any()):  # elsewhere a check would wait for the device
        return reply
    code = REASONS.index(reason)
    rejected = bad.to(torch.int8) * code if reply.rejected is None else torch.where(bad, code, reply.rejected)
    arrived = reply.arrived ^ bad  # all of them had arrived
    return read_unsent_as_unchanged(model, reply._replace(arrived=arrived, rejected=rejected), read=read)


def counted(rejected: Tensor | None, strays: Tensor | None) -> dict[str, int]:
    """The number of replies refused in a round, as `rejected.REASON`, from their codes [C] and the counts of `stray`.

    Waits for an accelerator.
    """
    counts = torch.zeros(len(REASONS), dtype=torch.int64) if strays is None else strays.cpu()
    if rejected is not None:
        counts = counts + rejected.cpu().long().bincount(minlength=len(REASONS))
    return {f"rejected.{name}": count for name, count in zip(REASONS[1:], counts.tolist()[1:]) if count}


def stray(counts: Mapping[str, Tensor], before: Tensor | None = None) -> Tensor:
    """Counts of refused messages that belong to no client of the cohort, by reason [R], added to `before`."""
    like = next(iter(counts.values()))
    total = torch.zeros(len(REASONS), dtype=torch.int64, device=like.device) if before is None else before.clone()
    for reason, count in counts.items():
        total[REASONS.index(reason)] += count
    return total
