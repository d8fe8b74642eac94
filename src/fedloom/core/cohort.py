"""Matching of replies to the cohort: unknown clients are refused, and one valid reply per client counts."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.refused import REASONS, stray
from fedloom.core.types import Cohort, Reply
from fedloom.core.unsent import read_unsent_as_unchanged

UNKNOWN = -1  # replaces unknown ids; a valid index, so that tables can still be read with it


def place_of(ids: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The index of each of `ids` [R] among the `known` ids [C], and whether it is among them [R]."""
    order = known.argsort()
    place = order[torch.searchsorted(known[order], ids).clamp(max=len(known) - 1)]
    return place, known[place] == ids


def recognised(cohort: Cohort, reply: Reply) -> Reply:
    """The replies with `awaited` [R] filled in; replies of other clients are refused with reason `client`."""
    if reply.ids is cohort.ids and reply.arrived is cohort.authorised:  # a local engine, and nothing was lost
        return reply._replace(awaited=cohort.authorised)
    place, known = place_of(reply.ids, cohort.ids)
    awaited = cohort.authorised[place] & known
    reply = reply._replace(awaited=awaited)
    bad = reply.arrived & ~awaited
    if bad.device.type == "cpu" and not bool(bad.any() | ~known.all()):
        return reply
    return reply._replace(
        ids=torch.where(known, reply.ids, UNKNOWN),
        arrived=reply.arrived & awaited,
        rejected=torch.where(bad, REASONS.index("client"), 0).to(torch.int8),
    )


def once(cohort: Cohort, model: Tensor, reply: Reply) -> Reply:
    """One row for each of the cohort, the first valid reply, if any row is of an unknown or repeated client.

    An engine on an accelerator that returns as many rows as the cohort is trusted: a check would wait for the device,
    and engines behind a network match their replies on the host.
    """
    ids = reply.ids
    if len(ids) == len(cohort.ids) and ids.device.type != "cpu":
        return reply
    if ids.device.type == "cpu" and len(ids.unique()) == len(ids) and not bool((ids == UNKNOWN).any()):
        return reply
    same = cohort.ids[:, None] == ids  # [C, R]
    valid = same & reply.arrived
    heard = reply.arrived if reply.rejected is None else reply.arrived | (reply.rejected > 0)
    first = torch.where(valid.any(1), valid.byte().argmax(1), same.byte().argmax(1))  # [C]
    repeated = (same & heard).sum() - (same & heard).any(1).sum()
    kept = reply.rows(first)
    reply = kept._replace(
        ids=cohort.ids,
        arrived=valid.any(1),
        awaited=cohort.authorised,
        rejected=None if kept.rejected is None else torch.where(same.any(1), kept.rejected, 0),
        strays=stray({"client": ((ids == UNKNOWN) & heard).sum(), "repeated": repeated}, reply.strays),
    )
    return read_unsent_as_unchanged(model, reply)
