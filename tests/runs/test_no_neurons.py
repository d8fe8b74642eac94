"""Networks without hidden neurons that can be cut: every method trains them whole and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.errors import BadExperiment
from fedloom.methods import METHODS
from fedloom.runs.build import WHOLE, prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

SAY = (
    "federated-dropout", "fjord", "fedrolex", "heterofl", "hermes", "fedmp", "prunefl-fixed", "fedselect-neurons",
    "ist", "splitfl", "ra-fed", "ram-fed", "fedspu", "feddd", "loom", "adaptivefl",
)  # fmt: skip

SPLIT = ("fedper", "lg-fedavg", "fedrep", "fedbabu")  # one layer has no body


def linear() -> nn.Module:
    """One layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def head() -> nn.Module:
    """A linear head on a frozen network."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    network[1].requires_grad_(False)
    return network


def experiment(method: Any, **changes: Any) -> Experiment:
    """A short run on devices."""
    training = {"epochs": 2 if "fedselect" in str(method) else 1, "batch": 50}  # FedSelect's take turns
    return Experiment(
        **{"method": method, "clients": 6, "rounds": 3, "fleet": "table4", "training": training, **changes}
    )


RANKS = ("hetlora", "flexlora")  # refuse a network without adapters, which have neurons
NAMES = [
    {"name": name, "settings": {"buffer": 3} if name == "fedbuff" else {}} for name in METHODS if name not in RANKS
]
every_method = pytest.mark.parametrize("method", [pytest.param(one, id=one["name"]) for one in NAMES])


@every_method
@pytest.mark.parametrize("network", [linear, head])
def test_every_method_trains_them_whole(method: Any, network: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = network()
    if method["name"] in SPLIT:
        with pytest.raises(BadExperiment, match=r"its layers are: [13]"):
            run(experiment(method), model=model)
        return
    ends = [run(experiment(method, engine=engine), model=model).model.state_dict() for engine in ("local", "loop")]
    start = model.state_dict()
    moved = any(not torch.equal(start[key], value) for key, value in ends[0].items())
    assert moved == (method["name"] != "local-training")
    assert all(torch.allclose(value, ends[1][key], atol=1e-5) for key, value in ends[0].items())
    assert (WHOLE in prepare(experiment(method), model=model).notes) == (method["name"] in SAY)


class Branching(nn.Module):
    """Another way for other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, 10]."""
        x = self.first(x.flatten(1)).relu()
        if float(x.detach().sum()) > 0:
            x = self.second(x).relu()
        scores: Tensor = self.last(x)
        return scores


@every_method
def test_code_that_decides_by_values_is_kept_whole_in_one_sentence(
    method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    told = {"mask_labels": False} if method["name"] == "heterofl" else {}  # it needs outputs that can be told apart
    named = {**method, "settings": {**method["settings"], **told}}
    model = Branching()
    prepare(experiment(named), model=model)
    notes = [record.getMessage() for record in caplog.records if "kept whole" in record.getMessage()]
    assert len(notes) == (method["name"] in SAY)
    assert all("Branching" in note for note in notes)
    ends = [run(experiment(named, engine=engine), model=model).model.state_dict() for engine in ("local", "loop")]
    assert all(torch.allclose(value, ends[1][key], atol=1e-5) for key, value in ends[0].items())
