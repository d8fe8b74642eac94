"""Any part with any other: a mix plays, the same under both engines, or refuses when it is made and says why."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from fedloom.admit.check import Several
from fedloom.admit.finite import Finite
from fedloom.admit.norm import Norm
from fedloom.admit.part_asked import PartAsked, WithinShare
from fedloom.admit.weight import Weight
from fedloom.aggregate.coverage_mean import CoverageMean
from fedloom.aggregate.krum import Krum
from fedloom.aggregate.latest_updates import LatestUpdates
from fedloom.aggregate.plain_mean import PlainMean
from fedloom.aggregate.ranked_mean import Median, TrimmedMean
from fedloom.allocate.latency_and_loss import LatencyAndLoss
from fedloom.allocate.tiers import Tiers
from fedloom.allocate.whole import Whole
from fedloom.errors import BadExperiment
from fedloom.local.chain import Chain
from fedloom.local.fuse_missed import FuseMissed
from fedloom.local.keep_own import KeepOwn
from fedloom.local.keep_own_part import KeepOwnPart
from fedloom.local.optimiser import Sgd
from fedloom.local.prox import Prox
from fedloom.local.prune import Prune
from fedloom.local.rule import LocalRule
from fedloom.local.stop_early import StopEarly
from fedloom.local.sub_model import SubModel
from fedloom.local.work import Work
from fedloom.mask.everything import Everything
from fedloom.mask.last_sent import LastSent
from fedloom.mask.own_classes import OwnClasses
from fedloom.mask.own_scores import OwnScores
from fedloom.mask.ranked import Ranked
from fedloom.mask.regions import Regions
from fedloom.method import Method
from fedloom.methods.feddc import DriftCorrection
from fedloom.methods.feddyn import DynamicRegulariser
from fedloom.methods.fedselect import GlobalPart
from fedloom.methods.heterofl import Rescale
from fedloom.methods.scaffold import ControlVariates
from fedloom.repair.most_similar import MostSimilar
from fedloom.repair.nothing import Nothing
from fedloom.select.everyone import Everyone, SomeSend
from fedloom.select.still_running import StillRunning
from fedloom.select.uniform import Uniform
from fedloom.types import Reply
from fedloom.upload.as_sent import AsSent
from fedloom.upload.as_trained import AsTrained
from fedloom.upload.importance import Importance
from worlds import changed, play, world

HOLDERS = [LocalRule(), SubModel(), KeepOwn(), KeepOwn(freeze=True), KeepOwnPart(), Prune("mag"), Prune("snip")]
ADDED = [Prox(0.1), ControlVariates(), DynamicRegulariser(0.05), DriftCorrection(0.05), Rescale(), StopEarly()]
PARTS: dict[str, list[Any]] = {
    "select": [Uniform(6), Everyone(), SomeSend(5), StillRunning(6)],
    "allocate": [Whole(), Tiers((0.4, 0.7, 1.0)), LatencyAndLoss()],
    "mask": [
        *(Everything(), Ranked("random"), Ranked("ordered"), Regions(), Regions(mode="element"), OwnScores("l2")),
        *(LastSent(2), GlobalPart(), OwnClasses(Ranked("ordered"))),
    ],
    "upload": [AsSent(), AsTrained(), Importance(), Importance("most-changed")],
    "repair": [Nothing(), MostSimilar(), MostSimilar("shared", mask_aware=True)],
    "aggregate": [
        CoverageMean(),
        CoverageMean("uniform"),
        PlainMean(),
        LatestUpdates(),
        Median(),
        TrimmedMean(),
        Krum(),
    ],
    "admit": [Finite(), Several((PartAsked(), Finite(), Weight(), Norm(1.0))), WithinShare()],
}


@st.composite
def locals_(draw: st.DrawFn) -> LocalRule:
    """Something that holds the model, perhaps with a correction, perhaps fusing what was missed."""
    rules = (draw(st.sampled_from(HOLDERS)), *draw(st.lists(st.sampled_from(ADDED), max_size=1)))
    rule = rules[0] if len(rules) == 1 else Chain(rules)
    return FuseMissed(0.5, rule) if draw(st.integers(0, 3)) == 0 else rule


@settings(max_examples=200, deadline=None, derandomize=True)
@given(parts=st.fixed_dictionaries({slot: st.sampled_from(some) for slot, some in PARTS.items()}), local=locals_())
def test_a_mix_plays_or_refuses(parts: dict[str, Any], local: LocalRule) -> None:
    here = world("mlp")
    refusal = None
    try:
        method = Method(**parts, local=local, optimiser=Sgd(rate=0.05), work=Work(steps=2, batch=6))
    except BadExperiment as why:
        refusal = str(why)
    if refusal is not None:
        assert "does not fit this method: " in refusal
        return

    def lost(reply: Reply, chance: Any) -> Reply:
        """Every second client's reply."""
        return reply._replace(arrived=reply.arrived & ((reply.ids + chance.round) % 2 == 0))

    runs = [play(here, method, changed(engine(method), lost), 3) for engine in (here.local, here.loop)]
    assert runs[0].model.isfinite().all()
    torch.testing.assert_close(runs[0].model, runs[1].model, rtol=1e-5, atol=1e-5)
    assert torch.equal(play(here, method, changed(here.local(method), lost), 3).model, runs[0].model)
    method.record(runs[0].memory)
