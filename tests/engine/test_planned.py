"""Plans of real networks, methods and examples on a CPU; what is planned is what runs, and it equals the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.optimiser import Adam, Sgd
from fedloom.core.types import Examples
from fedloom.engine import steps
from fedloom.engine.cpu import native
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.gradient.protocol import GradientKind
from fedloom.engine.local import local_engine
from fedloom.engine.plan import PartWay, StepWay
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedspu import fedspu
from fedloom.methods.fjord import fjord
from fedloom.methods.heterofl import heterofl
from fedloom.methods.safari import safari
from fedloom.methods.scaffold import scaffold
from fedloom.models import build
from pieces import CLASSES, WORDS
from worlds import World, assert_close, play, small, world, world_of


class Sentence(nn.Module):
    """One encoder layer of a transformer over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.words(x)).mean(1))


class Branching(nn.Module):
    """Decides by the data, which neither tracing nor vmap can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(192, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.out(x.flatten(1))
        return scores if bool(scores.sum() > 0) else scores * 2


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "2nn": lambda: build("2nn", (3, 8, 8), CLASSES),
    "cnn2": lambda: build("cnn2", (3, 8, 8), CLASSES),
    "resnet20": lambda: build("resnet20", (3, 8, 8), CLASSES),
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Tanh(), nn.Linear(8, CLASSES)),
    "wide": lambda: nn.Sequential(
        nn.Conv2d(3, 1, 1), nn.Conv2d(1, 2**14 + 1, 8), nn.ReLU(), nn.Flatten(), nn.Linear(2**14 + 1, CLASSES)
    ),
    "transformer": Sentence,
    "branching": Branching,
}


def here(network: str) -> World:
    """The network with small images in three colours, or with short texts."""
    texts, images = world("text").data.x[:24], (torch.arange(24 * 192) * 0.37).sin().view(24, 3, 8, 8)
    data = Examples(texts if network == "transformer" else images, torch.arange(24) * 7 % CLASSES)
    return world_of(NETWORKS[network](), data, torch.arange(24).split([10, 8, 6]))


class Case(NamedTuple):
    """What is trained and how, and the plan of it."""

    network: str
    method: Method
    gradient: GradientKind
    steps: tuple[StepWay, ...]
    parts: PartWay
    reasons: dict[str, str] = {}  # noqa: RUF012  never written to
    how: dict[str, Any] = {}  # noqa: RUF012
    captured: bool = False


ALL: tuple[StepWay, ...] = ("native", "fused", "autograd")
ROW, NO_TRITON = "not a row of plain convolutions", "Triton is not installed, or this is not a GPU"
HALF = fjord((0.5, 1.0))
HEAVY, ADAM = Sgd(rate=0.05, momentum=0.9), Adam(rate=0.01, eps=1e-3)
CASES: dict[str, Case] = {
    "2nn": Case("2nn", fedavg(), "stacked", ALL, "whole"),
    "2nn, momentum": Case("2nn", replace(fedavg(), optimiser=HEAVY), "stacked", ("native", "autograd"), "whole"),
    "2nn, Adam": Case(
        "2nn", replace(fedavg(), optimiser=ADAM), "stacked", ("native", "autograd"), "whole"
    ),
    "2nn, clipped": Case(
        "2nn", replace(fedavg(), optimiser=Sgd(clip=1.0)), "stacked", ("autograd",), "whole",
        {"native": "clipping needs the norm", "fused": "clipped"},
    ),
    "2nn, SCAFFOLD": Case("2nn", scaffold(), "stacked", ("native", "autograd"), "whole"),
    "2nn, HeteroFL": Case(
        "2nn", heterofl(), "stacked", ("autograd",), "sliced",
        {"native": "otherwise than by a pull", "fused": "corrects"},
    ),
    "2nn, bfloat16": Case(
        "2nn", fedavg(), "stacked", ("fused", "autograd"), "whole", {"native": "bfloat16"}, {"precision": "bf16"}
    ),
    "2nn, captured": Case(
        "2nn", fedavg(), "stacked", ("fused",), "whole", {"kernels": NO_TRITON}, captured=True
    ),
    "2nn, momentum, captured": Case(
        "2nn", replace(fedavg(), optimiser=HEAVY), "stacked", ("momentum",), "whole",
        {"kernels": NO_TRITON, "fused": "momentum"}, captured=True,
    ),
    "2nn, SAFARI": Case(
        "2nn", replace(safari("rand", 0.5), optimiser=Sgd()), "stacked", ALL, "masked"
    ),
    "cnn2": Case("cnn2", fedavg(), "stacked", ALL, "whole"),
    "cnn2, FjORD": Case("cnn2", HALF, "stacked", ALL, "sliced"),
    "cnn2, FjORD, masked": Case(
        "cnn2", HALF, "stacked", ALL, "masked", {"sliced": "execution is masked"}, {"sliced": False}
    ),
    "cnn2, FedSPU": Case("cnn2", fedspu(), "stacked", ALL, "frozen"),
    "cnn2, FedSPU, captured": Case(
        "cnn2", fedspu(), "stacked", ("fused",), "masked", {"kernels": "linear", "frozen": "in place"}, captured=True
    ),
    "cnn2, HeteroFL, captured": Case(
        "cnn2", heterofl(), "stacked", ("momentum",), "sliced",
        {"kernels": "linear", "fused": "corrects", "compact": "linear", "sliced or compact": NO_TRITON}, captured=True,
    ),
    "resnet20": Case("resnet20", fedavg(), "stacked", ("fused", "autograd"), "whole", {"native": ROW}),
    "resnet20, FjORD": Case("resnet20", HALF, "stacked", ("fused", "autograd"), "sliced", {"native": ROW}),
    "tanh": Case("tanh", fedavg(), "stacked", ("fused", "autograd"), "whole", {"native": ROW}),
    "wide": Case("wide", fedavg(), "stacked", ("fused", "autograd"), "whole", {"native": "layers are larger"}),
    "transformer": Case(
        "transformer", fedavg(), "vmapped", ("autograd",), "whole",
        {
            "stacked": "'layer' (TransformerEncoderLayer) has no stacked form", "swapped": "has no stacked form",
            "native": ROW, "fused": "takes no steps",
        },
    ),
    "transformer, captured": Case(
        "transformer", fedavg(), "vmapped", ("autograd",), "whole",
        {
            **dict.fromkeys(("stacked", "swapped"), "no stacked form"), "kernels": "linear", "fused": "takes no steps",
            "momentum": "vmapped",
        },
        captured=True,
    ),
    "branching": Case(
        "branching", fedavg(), "one by one", ("fused", "autograd"), "whole",
        {"stacked": "control flow", "swapped": "differs", "vmapped": "control flow"}, captured=True,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention under vmap, which says so itself
@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_runs_as_the_loop_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, method, gradient, wanted, parts, reasons, how, captured = CASES[name]
    if native.library() is None and ("native" in wanted or network == "wide"):
        pytest.skip("there is no C compiler that can be used")
    place, method = here(network), small(method, optimiser=replace(method.optimiser, rate=0.02))
    engine = local_engine(place.clients(method), graphs=Graphs(capture=False) if captured else None, **how)
    plan, told = engine.plan, dict(engine.plan.reasons)
    assert (plan.gradient, plan.steps, plan.parts) == (gradient, wanted, parts)
    assert plan.captured == (captured and gradient != "one by one")
    assert told.keys() == reasons.keys()
    for way, why in told.items():
        assert why
        assert reasons[way] in why
    taken: list[StepWay] = []
    for way, take in steps.WAYS.items():
        monkeypatch.setitem(steps.WAYS, way, _noting(taken, way, take))
    ours = play(place, method, engine, rounds=1)
    assert set(taken) == (set() if plan.captured else {plan.steps[0]})
    theirs = play(place, method, place.loop(method), rounds=1)
    tolerance = 2e-3 if how.get("precision") == "bf16" else 1e-5
    assert_close({"model": ours.model}, {"model": theirs.model}, tolerance)


def _noting(
    taken: list[StepWay], way: StepWay, take: Callable[[steps.Start], steps.Taken | None]
) -> Callable[[steps.Start], steps.Taken | None]:
    """The way, which notes that it suited a chunk."""

    def noting(start: steps.Start) -> steps.Taken | None:
        found = take(start)
        if found is not None:
            taken.append(way)
        return found

    return noting


def test_the_loop_has_a_plan_too() -> None:
    plan = here("2nn").loop(small(fedavg())).plan
    assert (plan.gradient, plan.steps, plan.parts, plan.reasons) == ("one by one", ("fused", "autograd"), "whole", ())
