"""FedRep, FedPer and APFL against numbers that their authors' codes gave.

`fedrep_fedper_tiny.json`: a perceptron 4-5-3 in a body and a head, full batches, momentum 0.5, weight decay of weights
alone. `apfl_tiny_linear.json`: softmax regression, 3 full-batch steps. Three rounds each.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedloom.core.optimiser import Sgd
from fedloom.core.work import Work
from fedloom.method import Method
from fedloom.methods.apfl import apfl
from fedloom.methods.fedper import fedper
from fedloom.methods.fedrep import fedrep
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.decay_some import DecaySome
from linear_vectors import fleet_in, near, vectors
from pieces import Forced
from worlds import play, states_of

BODY = 25  # numbers of the body
SPLIT: dict[str, tuple[Method, int, float]] = {
    "fedrep 4 epochs, 1 of the body, lr 0.1": (fedrep("head", 3, 1), 4, 0.1),
    "fedrep 5 epochs, 2 of the body, lr 0.05": (fedrep("head", 3, 2), 5, 0.05),
    "fedper 3 epochs lr 0.1": (fedper("head"), 3, 0.1),
}
MIXED = {
    "alpha 0.5 fixed": (apfl(0.5), 0.1),
    "alpha 0.3 adaptive": (apfl(0.3, "official"), 0.1),
    "alpha 0.75 adaptive lr 0.5": (apfl(0.75, "official"), 0.5),
}
every_kind = pytest.mark.parametrize("kind", ["local", "loop"])


def selected(rounds: list[dict[str, Any]]) -> Forced:
    """The file's clients, round by round."""
    return Forced(tuple(tuple(one["selected"]) for one in rounds))


@every_kind
@pytest.mark.parametrize("name", SPLIT)
def test_fedrep_and_fedper(name: str, kind: str) -> None:
    file, (method, epochs, rate) = vectors("fedrep_fedper_tiny"), SPLIT[name]
    net = nn.Sequential(OrderedDict(body=nn.Linear(4, 5), tanh=nn.Tanh(), head=nn.Linear(5, 3)))
    here, rounds = fleet_in(file, net), file["runs"][name]
    method = replace(
        method,
        select=selected(rounds),
        local=Chain((method.local, DecaySome(1e-4))),
        optimiser=Sgd(rate=rate, momentum=0.5),
        work=Work(epochs=epochs, batch=0),
        aggregate=CoverageMean("uniform"),
    )
    key = "0.own" if method.local.rules[0] == fedper().local else "0.0.own"
    for number, expected in enumerate(rounds, 1):
        engine = here.loop(method) if kind == "loop" else here.local(method)
        run = play(here, method, engine, rounds=number)
        near(run.model[:BODY], expected["model"][:BODY])
        assert torch.equal(run.model[BODY:], here.model[BODY:])  # the server never has a head
        near(run.replies[-1].params[:, :BODY], [one[:BODY] for one in expected["last"]])
        own = states_of(engine, [0, 1, 2, 3], here.model)
        near(own[key], expected["heads"])
        personal = method.local.personal(here.setting, run.model, own)
        assert personal is not None
        near(personal, [[*expected["model"][:BODY], *head] for head in expected["heads"]])


@every_kind
@pytest.mark.parametrize("name", MIXED)
def test_apfl(name: str, kind: str) -> None:
    file, (method, rate) = vectors("apfl_tiny_linear"), MIXED[name]
    here, rounds = fleet_in(file, nn.Linear(4, 3)), file["runs"][name]
    method = replace(
        method, select=selected(rounds), optimiser=Sgd(rate=rate), work=Work(epochs=file["local"]["steps"], batch=0)
    )
    for number, expected in enumerate(rounds, 1):
        engine = here.loop(method) if kind == "loop" else here.local(method)
        run = play(here, method, engine, rounds=number)
        near(run.model, expected["model"])
        own = states_of(engine, [0, 1, 2, 3], here.model)
        near(own["last"][expected["selected"]], expected["local"])
        near(own["own"], expected["own"])
        near(own["alpha"], expected["alpha"])
