"""HetLoRA, FlexLoRA and FedIT against numbers of other codes: two adapted layers, clients of ranks 1 to 4.

`flexlora_tiny.json` and the FedIT part of `flora_tiny.json` are by the papers' own codes, `hetlora_tiny.json` by an
independent derivation. There a client's scaling is alpha over its own rank; ours is the same for all, so that what they
scale by is put into B here.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom import lora
from fedloom.chance import Chance
from fedloom.core.types import Fleet, Reply, Setting, Task
from fedloom.core.unsent import read_unsent_as_unchanged
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.methods.fedit import fedit
from fedloom.parts.aggregate.padded_mean import PaddedMean
from fedloom.parts.aggregate.refactored import Refactored
from fedloom.parts.local.shrink_tail import ShrinkTail
from fedloom.parts.upload.leading_rank import LeadingRank

CLOSE = {"rtol": 0, "atol": 1e-5}
LAYERS = ("q", "v")
Factors = dict[str, dict[str, Any]]


def oracle(name: str) -> dict[str, Any]:
    """Inputs and results."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / f"{name}_tiny.json").read_text())
    return found


class Two(nn.Module):
    """Two layers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v = nn.Linear(5, 7, bias=False), nn.Linear(5, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both answers [B, 13]."""
        return torch.cat((self.q(x), self.v(x)), 1)


@cache
def setting(rank: int = 4) -> Setting:
    """Four clients and two layers with adapters of this rank."""
    module = lora(Two(), rank, targets="q|v", also=())
    fleet = Fleet(torch.tensor([1, 1, 1, 1]), torch.ones(4, 13, dtype=torch.int64))
    return Setting(fleet, module, layout_of(module), classes(), torch.randn(2, 5))


def row(factors: Factors, rank: int = 4, scale: float = 1.0) -> Tensor:
    """The factors as one vector [P], padded with zeros; B times `scale`."""
    flat = torch.zeros(setting(rank).layout.total)
    tensors = setting(rank).layout.split(flat)
    for layer in LAYERS:
        a, b = (torch.tensor(factors[layer][side]) for side in "AB")
        tensors[f"{layer}.a.weight"][: len(a)] = a
        tensors[f"{layer}.b.weight"][:, : b.shape[1]] = b * scale
    return flat


def keeps(ranks: list[int]) -> Tensor:
    """The components of clients of these ranks [C, K]."""
    return torch.stack([(torch.arange(4) < rank).repeat(2) for rank in ranks])


def reply(rows: list[Tensor], examples: list[int], model: Tensor, ranks: list[int] | None = None) -> Reply:
    """What clients of these ranks send."""
    own = setting(4) if ranks else setting(2)
    mask = None if ranks is None else own.neurons.expand(keeps(ranks))
    report = {"examples": torch.tensor(examples), "steps": torch.ones(4, dtype=torch.int64)}
    sent = Reply(torch.arange(4), torch.stack(rows), mask, {}, report, torch.ones(4, dtype=torch.bool))
    return read_unsent_as_unchanged(model, sent, False)


@pytest.mark.parametrize(
    ("weigh", "key"),
    [("norm", "aggregated"), ("joint", "aggregated_joint"), ("examples", "aggregated_by_examples")],
)
def test_hetlora_pads_and_weighs(weigh: Any, key: str) -> None:
    given = oracle("hetlora")
    model = row(given["global"])
    sent = reply([row(one) for one in given["trained"]], given["examples"], model, given["ranks"])
    new, _ = PaddedMean(weigh)({}, setting(), model, sent)
    torch.testing.assert_close(new, row(given[key]), **CLOSE)


def test_hetlora_sends_the_leading_components() -> None:
    given = oracle("hetlora")
    mask = setting().neurons.expand(keeps(given["ranks"]))
    for own, sent in zip(mask, given["sent"]):
        torch.testing.assert_close(torch.where(own, row(given["global"]), 0), row(sent), **CLOSE)


def test_hetlora_gives_up_what_became_smaller() -> None:
    given = oracle("hetlora")
    rule = ShrinkTail(gamma=given["gamma"], least=given["r_min"])
    model, ids = row(given["global"]), torch.arange(4)
    keep = keeps(given["ranks"])
    mask = setting().neurons.expand(keep)
    extras = rule.brief({}, setting(), ids)
    every = torch.ones(4, dtype=torch.bool)
    task = Task(model, mask, keep, torch.ones(4), every, extras, 1, 0.1, 0.1, setting().layout.trained, ids)
    first = torch.where(mask, model, 0)
    last = torch.stack([row(one) for one in given["trained"]])
    state = {name: value.expand(4, *value.shape) for name, value in rule.client_state(setting(), model).items()}
    _, said, state = rule.finish(task, state, first, last, torch.ones(4))
    assert said["rank"].tolist() == given["ranks_next"]
    for params, key in ((first, "tail_before"), (last, "tail_after")):
        expected = torch.tensor([sum(one.values()) for one in given[key]])
        torch.testing.assert_close(rule._tails(task, params).total, expected, **CLOSE)
    sent = LeadingRank()(setting(), task, state, first, last, Chance(0, 1))
    assert torch.equal(sent, setting().neurons.expand(keeps(given["ranks_next"])))


def test_flexlora_factors_the_mean_of_products_anew() -> None:
    given = oracle("flexlora")
    model, largest = torch.zeros(setting().layout.total), given["alpha"] / 4
    rows = [row(one, scale=given["alpha"] / rank / largest) for one, rank in zip(given["clients"], given["ranks"])]
    sent = reply(rows, given["examples"], model, given["ranks"])
    new, _ = Refactored()({}, setting(), model, sent)
    for pair, layer in zip(setting().neurons.pairs, LAYERS):
        a, b = pair.a.of(new), pair.b.of(new)
        assert pair.a.tensor.name == f"{layer}.a.weight"
        torch.testing.assert_close(a @ a.T, torch.eye(4), **CLOSE)
        for rank, known in given["sent"][layer].items():
            r = int(rank)
            product = largest * b[:r].T @ a[:r]
            torch.testing.assert_close(product, torch.tensor(known["product_scaled"]), **CLOSE)
            torch.testing.assert_close(a[:r].abs(), torch.tensor(known["A"]).abs(), **CLOSE)


def test_flexloras_zero_padding_is_a_padded_mean_by_examples() -> None:
    given = oracle("flexlora")
    model = torch.zeros(setting().layout.total)
    sent = reply([row(one) for one in given["clients"]], given["examples"], model, given["ranks"])
    new, _ = PaddedMean("examples")({}, setting(), model, sent)
    expected = row(given["zero_padding_by_examples"]["handle_alpha_false"])
    torch.testing.assert_close(new, expected, **CLOSE)


def test_fedit_averages_factors_which_is_not_the_mean_of_products() -> None:
    given = oracle("flora")
    own = given["fedit"]
    model = torch.zeros(setting(2).layout.total)
    sent = reply([row(one, 2) for one in own["clients"]], given["examples"], model)
    new, _ = fedit().aggregate({}, setting(2), model, sent)
    torch.testing.assert_close(new, row(own["mean"], 2), **CLOSE)
    for pair, layer in zip(setting(2).neurons.pairs, LAYERS):
        product = given["scaling"] * pair.b.of(new).T @ pair.a.of(new)
        assert float((product - torch.tensor(own["true_delta"][layer])).abs().max()) > 0.01
