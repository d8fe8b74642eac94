"""The plan of steps as a table: which facts lead to which ways, and a reason for every faster way not taken."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, get_args

import pytest
from torch import Tensor

from fedloom.core.goal import Head
from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.rule import Traits
from fedloom.core.types import State
from fedloom.engine.gradient.protocol import GradientKind
from fedloom.engine.plain_layers import PlainLayer
from fedloom.engine.plan import MEANINGS, PARTS, STEPS, ClientWay, Facts, PartWay, StepWay, lines_of, plan_steps

MLP = (PlainLayer("1", True, relu=True), PlainLayer("3", True))
CNN = (PlainLayer("0", True, (1, 1), pool=True, relu=True), *MLP)

PLAIN = Facts("stacked", layers=MLP, head=Head("softmax"))
GPU = replace(PLAIN, captured=True)
CUT, HELD = Traits(cuts=True), Traits(freezes=True, needs_whole=True)
CORRECTS, SCALES = Traits(corrects=True), Traits(corrects=True, scales=True, cuts=True)
SHIFTS = Traits(corrects=True, shifts=True)
HEAVY = Sgd(momentum=0.9)


@dataclass(frozen=True, kw_only=True)
class Sign(Optimiser):
    """Steps of one size."""

    def begin(self, params: Tensor) -> State:
        return {}

    def move(self, moments: State, grads: Tensor, rate: float) -> Tensor:
        return grads.sign() * rate


class Row(NamedTuple):
    """Facts, what they lead to, and words of the reasons for what they do not lead to."""

    facts: Facts
    steps: tuple[StepWay, ...]
    parts: PartWay = "whole"
    reasons: dict[str, str] = {}  # noqa: RUF012  never written to


TABLE: dict[str, Row] = {
    # on a CPU
    "linear layers": Row(PLAIN, ("native", "fused", "autograd")),
    "convolutions": Row(replace(PLAIN, layers=CNN), ("native", "fused", "autograd")),
    "no compiler": Row(replace(PLAIN, no_native="there is none"), ("fused", "autograd"), "whole", {"native": "none"}),
    "other layers": Row(Facts("stacked"), ("fused", "autograd"), "whole", {"native": "not a row of plain conv"}),
    "momentum": Row(replace(PLAIN, optimiser=HEAVY), ("native", "autograd")),
    "momentum, other layers": Row(
        Facts("stacked", optimiser=HEAVY), ("autograd",), "whole", {"fused": "not Sgd with momentum", "native": "row"}
    ),
    "clipped": Row(
        replace(PLAIN, optimiser=Sgd(clip=1.0)), ("autograd",), "whole",
        {"native": "clipping needs the norm of the whole gradient", "fused": "not Sgd with clipped gradients"},
    ),
    "kept velocity": Row(
        replace(PLAIN, optimiser=replace(HEAVY, fresh=False)), ("native", "autograd")
    ),
    "kept velocity, other layers": Row(
        Facts("stacked", optimiser=replace(HEAVY, fresh=False)), ("autograd",), "whole",
        {"native": "row", "fused": "Sgd with momentum with moments kept between rounds"},
    ),
    "adam": Row(replace(PLAIN, optimiser=Adam()), ("native", "autograd")),
    "adam, clipped": Row(
        replace(PLAIN, optimiser=Adam(clip=1.0)), ("autograd",), "whole", {"native": "clipping", "fused": "not Adam"}
    ),
    "an optimiser of one's own": Row(
        replace(PLAIN, optimiser=Sign()), ("autograd",), "whole",
        {"native": "it takes steps of Sgd and of Adam, not of Sign", "fused": "not Sign"},
    ),
    "bfloat16": Row(replace(PLAIN, low=True), ("fused", "autograd"), "whole", {"native": "round to bfloat16"}),
    "corrected": Row(
        replace(PLAIN, traits=CORRECTS), ("autograd",), "whole",
        {"native": "otherwise than by a pull to the start and a push for the round", "fused": "corrects"},
    ),
    "shifted": Row(replace(PLAIN, traits=SHIFTS), ("native", "autograd")),
    "shifted, adam": Row(replace(PLAIN, traits=SHIFTS, optimiser=Adam()), ("native", "autograd")),
    "shifted, cut": Row(replace(PLAIN, traits=SHIFTS | CUT), ("native", "autograd"), "sliced"),
    "shifted, held": Row(replace(PLAIN, traits=SHIFTS | HELD), ("native", "autograd"), "frozen"),
    "shifted, other layers": Row(
        Facts("stacked", traits=SHIFTS), ("autograd",), "whole", {"native": "row", "fused": "corrects"}
    ),
    "cut": Row(replace(PLAIN, traits=CUT), ("native", "fused", "autograd"), "sliced"),
    "cut and scaled": Row(
        replace(PLAIN, traits=SCALES), ("autograd",), "sliced", {"native": "corrects", "fused": "corrects"}
    ),
    "cut, but masked": Row(
        replace(PLAIN, traits=CUT, sliced=False), ("native", "fused", "autograd"), "masked",
        {"sliced": "execution is masked"},
    ),
    "held": Row(replace(PLAIN, traits=HELD), ("native", "fused", "autograd"), "frozen"),
    "held, but masked": Row(
        replace(PLAIN, traits=HELD, sliced=False), ("native", "fused", "autograd"), "masked",
        {"frozen": "execution is masked"},
    ),
    "chosen by the client": Row(
        replace(PLAIN, traits=Traits(chooses=True)), ("native", "fused", "autograd"), "masked"
    ),
    "vmapped": Row(
        Facts("vmapped", (("stacked", "no form"),), CUT), ("autograd",), "sliced",
        {"stacked": "no form", "native": "row", "fused": "vmap returns gradients"},
    ),
    "swapped": Row(
        Facts("swapped", (("stacked", "no form"),), CUT), ("autograd",), "sliced",
        {"stacked": "no form", "native": "row", "fused": "traced network"},
    ),
    "after swapped": Row(
        Facts("vmapped", (("stacked", "no form"), ("swapped", "no form")), CUT), ("autograd",), "sliced",
        {"stacked": "no form", "swapped": "no form", "native": "row", "fused": "vmap returns gradients"},
    ),
    "one by one, cut": Row(
        Facts("one by one", (("vmapped", "control flow"),), CUT), ("fused", "autograd"), "sliced",
        {"vmapped": "control flow"},
    ),
    "one by one": Row(
        Facts("one by one", (("stacked", "no form"), ("vmapped", "control flow")), HELD), ("fused", "autograd"),
        "masked", {"stacked": "no form", "vmapped": "control flow", "frozen": "taken one by one"},
    ),
    "smoothed": Row(replace(PLAIN, head=Head("softmax", None, 0.1)), ("native", "fused", "autograd")),
    "class weights": Row(replace(PLAIN, head=Head("softmax", (1.0, 2.0))), ("native", "fused", "autograd")),
    "squared": Row(replace(PLAIN, head=Head("squared")), ("native", "fused", "autograd")),
    "binary": Row(replace(PLAIN, head=Head("binary", (3.0,))), ("native", "fused", "autograd")),
    "another loss": Row(
        replace(PLAIN, head=None, loss="focal"), ("fused", "autograd"), "whole", {"native": "loss, focal, is not one"}
    ),
    "transformed": Row(replace(PLAIN, transformed=True), ("native", "fused", "autograd")),
    "mixed by the transform": Row(
        replace(PLAIN, transformed=True, no_graph="it mixes"), ("native", "fused", "autograd"), "whole",
        {"captured": "it mixes"},
    ),
    # in static buffers, as on a GPU
    "captured": Row(GPU, ("kernels",)),
    "captured momentum": Row(replace(GPU, optimiser=HEAVY), ("kernels",)),
    "captured, no Triton": Row(replace(GPU, no_kernels="no Triton"), ("fused",), "whole", {"kernels": "no Triton"}),
    "captured convolutions": Row(
        replace(GPU, layers=CNN), ("fused",), "whole", {"kernels": "not a row of linear layers"}
    ),
    "captured convolutions, momentum": Row(
        replace(GPU, layers=CNN, optimiser=HEAVY), ("momentum",), "whole", {"kernels": "linear", "fused": "momentum"}
    ),
    "captured, clipped": Row(
        replace(GPU, optimiser=Sgd(clip=1.0)), ("autograd",), "whole",
        {"kernels": "clipped", "fused": "clipped", "momentum": "clipped"},
    ),
    "captured, smoothed": Row(
        replace(GPU, head=Head("softmax", None, 0.1), loss="smooth"), ("fused",), "whole",
        {"kernels": "without class weights and smoothing, and the loss is smooth"},
    ),
    "captured, another loss": Row(
        replace(GPU, head=None, loss="focal"), ("fused",), "whole", {"kernels": "and the loss is focal"}
    ),
    "captured, another loss, cut": Row(
        replace(GPU, head=None, loss="focal", traits=CUT), ("fused",), "sliced or compact",
        {"kernels": "the loss is focal", "compact": "the loss is focal"},
    ),
    "captured, transformed": Row(
        replace(GPU, transformed=True), ("fused",), "whole", {"kernels": "transforms come between"}
    ),
    "captured, bfloat16": Row(replace(GPU, low=True), ("fused",), "whole", {"kernels": "bfloat16"}),
    "captured, corrected": Row(
        replace(GPU, traits=CORRECTS), ("autograd",), "whole",
        {"kernels": "corrects", "fused": "corrects", "momentum": "corrects"},
    ),
    "captured, vmapped": Row(
        Facts("vmapped", captured=True), ("autograd",), "whole",
        {"kernels": "linear layers", "fused": "vmap", "momentum": "taken vmapped"},
    ),
    "captured, cut": Row(replace(GPU, traits=CUT), ("kernels",), "compact"),
    "captured, cut and scaled": Row(replace(GPU, traits=SCALES), ("kernels",), "compact"),
    "captured convolutions, cut": Row(
        replace(GPU, layers=CNN, traits=CUT), ("fused",), "sliced or compact",
        {"kernels": "linear", "compact": "not a row of linear layers"},
    ),
    "captured convolutions, cut and scaled": Row(
        replace(GPU, layers=CNN, traits=SCALES), ("momentum",), "sliced or compact",
        {"kernels": "linear", "fused": "corrects", "compact": "linear"},
    ),
    "captured, cut, other layers": Row(
        Facts("stacked", traits=CUT, captured=True, no_compact="zeros change"), ("fused",), "sliced",
        {"kernels": "linear", "compact": "linear", "sliced or compact": "zeros change"},
    ),
    "captured, cut, but masked": Row(
        replace(GPU, traits=CUT, sliced=False), ("kernels",), "masked",
        dict.fromkeys(("compact", "sliced or compact", "sliced"), "execution is masked"),
    ),
    "captured, held": Row(replace(GPU, traits=HELD), ("kernels",), "masked", {"frozen": "in place"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_facts_lead_to_ways(name: str) -> None:
    facts, steps, parts, reasons = TABLE[name]
    plan = plan_steps(facts)
    assert (plan.gradient, plan.steps, plan.parts) == (facts.gradient, steps, parts)
    assert (plan.captured, plan.layers) == (facts.captured, facts.layers)
    told = dict(plan.reasons)
    assert len(told) == len(plan.reasons), "one reason each"
    assert told.keys() == reasons.keys()
    for way, why in told.items():
        assert reasons[way] in why
        assert why.strip()
        assert not why.endswith(".")


def test_every_way_is_reached() -> None:
    plans = [plan_steps(row.facts) for row in TABLE.values()]
    reached = {way for plan in plans for way in (plan.gradient, plan.parts, *plan.steps)}
    assert reached == set(MEANINGS) - {*get_args(ClientWay)}
    assert reached == {*get_args(GradientKind), *get_args(StepWay), *get_args(PartWay)}
    assert {plan.steps[0] for plan in plans} == set(STEPS), "each is the first of some plan"
    refused = {way for plan in plans for way, _ in plan.reasons}
    assert refused == {"stacked", "swapped", "vmapped", "captured", *STEPS, *PARTS} - {"autograd"}, (
        "and not taken in another"
    )


OPTIMISERS: list[Optimiser] = [Sgd(), HEAVY, Sgd(clip=1.0), replace(HEAVY, fresh=False), Adam(), Sign()]
HEADS = [None, Head("softmax"), Head("softmax", smoothing=0.1)]
TRAITS = [Traits(), CUT, HELD, CORRECTS, SHIFTS, SCALES, CUT | HELD, Traits(chooses=True, looks=2)]


@pytest.mark.parametrize("gradient", get_args(GradientKind))
def test_any_facts_have_a_plan_that_can_be_told(gradient: GradientKind) -> None:
    flags = product(OPTIMISERS, TRAITS, ((), MLP, CNN), HEADS, *[(False, True)] * 4, *[("", "it cannot")] * 3)
    for optimiser, traits, layers, head, changed, low, sliced, captured, native, kernels, compact in flags:
        goal = head, "loss", changed
        facts = Facts(
            gradient, (), traits, optimiser, layers, *goal, low, sliced, captured, "", native, kernels, compact
        )
        plan = plan_steps(facts)
        assert plan.steps[-1] == "autograd" or captured
        assert len(plan.steps) == 1 or not captured
        told = dict(plan.reasons)
        assert all(told.values())
        assert not told.keys() & {*plan.steps, plan.parts}
        assert list(STEPS).index(plan.steps[0]) >= len(told.keys() & STEPS.keys())
        assert plan.parts != "compact" or plan.steps == ("kernels",)
        assert plan.parts != "sliced or compact" or plan.steps[0] in ("fused", "momentum")
        record = plan.record()
        assert json.loads(json.dumps(record)) == record
        assert [name for name, _ in lines_of(record)[:4]] == ["clients", "gradients", "steps", "sub-models"]
        assert all(sentence for _, sentence in lines_of(record))
