"""Random mixes of parts run, equal under both engines, or are refused with a reason when they are made."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from fedloom.core.optimiser import Sgd
from fedloom.core.rule import LocalRule
from fedloom.core.types import Reply
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.feddc import DriftCorrection
from fedloom.methods.feddyn import DynamicRegulariser
from fedloom.methods.fedselect_neurons import GlobalPart
from fedloom.methods.heterofl import Rescale
from fedloom.methods.scaffold import ControlVariates
from fedloom.parts.admit.check import Several
from fedloom.parts.admit.finite import Finite
from fedloom.parts.admit.norm import Norm
from fedloom.parts.admit.part_asked import PartAsked, WithinShare
from fedloom.parts.admit.weight import Weight
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.krum import Krum
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from fedloom.parts.aggregate.plain_mean import PlainMean
from fedloom.parts.aggregate.ranked_mean import Median, TrimmedMean
from fedloom.parts.allocate.latency_and_loss import LatencyAndLoss
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.allocate.whole import Whole
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.fuse_missed import FuseMissed
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.keep_own_part import KeepOwnPart
from fedloom.parts.local.prox import Prox
from fedloom.parts.local.prune import Prune
from fedloom.parts.local.stop_early import StopEarly
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.everything import Everything
from fedloom.parts.mask.last_sent import LastSent
from fedloom.parts.mask.own_classes import OwnClasses
from fedloom.parts.mask.own_scores import OwnScores
from fedloom.parts.mask.ranked import Ranked
from fedloom.parts.mask.regions import Regions
from fedloom.parts.repair.most_similar import MostSimilar
from fedloom.parts.repair.nothing import Nothing
from fedloom.parts.select.everyone import Everyone, SomeSend
from fedloom.parts.select.still_running import StillRunning
from fedloom.parts.select.uniform import Uniform
from fedloom.parts.upload.as_sent import AsSent
from fedloom.parts.upload.as_trained import AsTrained
from fedloom.parts.upload.importance import Importance
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
    """A rule that keeps or cuts the model, perhaps with a correction, perhaps with fused updates."""
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
