"""Pruners equal numbers computed by a public code, and have the properties that hold for any network.

`pruning_scores.json` holds inputs and results of the code of ganguli-lab/Synaptic-Flow: a perceptron and a
convolutional network with batch norm, two batches, four scores, masks over all weights and per layer.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.pruning import (
    PRUNERS,
    as_written,
    grasp,
    mag,
    prunable,
    prune,
    pruned,
    rand,
    snip,
    synflow,
    synflow_mask,
    weights_of,
)
from fedloom.core.types import Batch, Fleet, Setting
from fedloom.errors import BadExperiment
from fedloom.goals import classes
from fedloom.layout import flatten, layout_of
from worlds import cross_entropy, world

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "pruning_scores.json").read_text())["cases"]
NETWORKS = {
    "mlp": lambda: OrderedDict(
        l1=nn.Linear(5, 4), r1=nn.ReLU(), l2=nn.Linear(4, 4), r2=nn.ReLU(), l3=nn.Linear(4, 3)
    ),
    "cnn": lambda: OrderedDict(
        c1=nn.Conv2d(2, 3, 3, padding=1, bias=False), b1=nn.BatchNorm2d(3), r1=nn.ReLU(),
        c2=nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), b2=nn.BatchNorm2d(4), r2=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(4, 3),
    ),
}  # fmt: skip
SCORES = ("Mag", "SNIP", "GraSP", "SynFlow")
ONE_SHOT = [
    (network, name, key)
    for network, case in VECTORS.items()
    for name, masks in case["masks"].items()
    for key in masks
    if "iter" not in key
]
STEPWISE = [(network, key) for network, case in VECTORS.items() for key in case["masks"]["SynFlow"] if "iter" in key]


@cache
def given(network: str) -> tuple[Setting, Tensor, list[Batch]]:
    """The setting, two clients' equal weights [2, P] and their equal batches, as the vectors have them."""
    case, module = VECTORS[network], nn.Sequential(NETWORKS[network]())
    module.load_state_dict({name: torch.tensor(value) for name, value in case["state"].items()})
    pairs = [(torch.tensor(batch["x"]), torch.tensor(batch["y"])) for batch in case["batches"]]
    fleet = Fleet(torch.ones(2), torch.ones(2, 3))
    setting = Setting(fleet, module, layout_of(module), classes(), pairs[0][0][:2])
    batches = [batch_of(x.expand(2, *x.shape), y.expand(2, -1)) for x, y in pairs]
    return setting, flatten(module, setting.layout).expand(2, -1), batches


def batch_of(x: Tensor, y: Tensor) -> Batch:
    """Whole batches of every client."""
    return Batch(x, y, torch.full(y.shape, 1 / y.shape[1], dtype=torch.float32), torch.zeros(len(y)))


@cache
def scored(network: str, name: str) -> Tensor:
    """The scores [2, P]."""
    setting, params, batches = given(network)
    if name == "Mag":
        return mag(params)
    return (
        synflow(setting, params) if name == "SynFlow" else (snip if name == "SNIP" else grasp)(setting, params, batches)
    )


def cases(network: str, flat: Tensor, expected: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Our numbers and the public code's, tensor by tensor."""
    ours = given(network)[0].layout.split(flat)
    return [(ours[name], torch.tensor(value)) for name, value in expected.items()]


@pytest.mark.parametrize("network", VECTORS)
@pytest.mark.parametrize("name", SCORES)
def test_scores_of_the_public_code(network: str, name: str) -> None:
    for row in scored(network, name):
        for ours, theirs in cases(network, row, VECTORS[network]["scores"][name]):
            torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("network", "name", "key"), ONE_SHOT)
def test_masks_of_the_public_code(network: str, name: str, key: str) -> None:
    share, scope = torch.tensor([float(key[4:7])] * 2), "layer" if "local" in key else "global"
    mask = prune(given(network)[0], scored(network, name), share, scope)
    for row in mask:
        for ours, theirs in cases(network, row, VECTORS[network]["masks"][name][key]):
            assert torch.equal(ours, theirs.bool())


@pytest.mark.parametrize(("network", "key"), STEPWISE)
def test_stepwise_synflow_of_the_public_code(network: str, key: str) -> None:
    setting, params, _ = given(network)
    for weights in (params, params.clone()):  # one and the same row, and equal rows
        mask = synflow_mask(setting, weights, torch.tensor([float(key[4:7])] * 2))
        for row in mask:
            for ours, theirs in cases(network, row, VECTORS[network]["masks"]["SynFlow"][key]):
                assert torch.equal(ours, theirs.bool())


# ---- what the vectors do not show


def cohort(network: str) -> tuple[Setting, Tensor, list[Batch]]:
    """Three unlike clients: one with a short batch, one with a single batch."""
    here = world(network)
    params = torch.stack([here.model * factor for factor in (1.0, 1.1, 0.8)])
    x, y = here.data.x[:24].unflatten(0, (3, 8)), here.data.y[:24].unflatten(0, (3, 8))
    first = batch_of(x[:, :4], y[:, :4])
    first = first._replace(weight=torch.tensor([[1 / 4] * 4, [1 / 3] * 3 + [0], [1 / 4] * 4]))
    second = batch_of(x[:2, 4:], y[:2, 4:])  # the third client has no second batch
    return here.setting, params, [first, second]


@pytest.mark.parametrize("network", ["mlp", "cnn", "normed", "text"])
@pytest.mark.parametrize("score", [snip, grasp], ids=["snip", "grasp"])
def test_a_cohort_is_scored_like_its_members(network: str, score: Any) -> None:
    setting, params, batches = cohort(network)
    together = score(setting, params, batches)
    for client in range(3):
        own = []
        for batch in batches[: 1 if client == 2 else 2]:
            real = batch.weight[client] > 0
            own.append(batch_of(batch.x[client, real][None], batch.y[client, real][None]))
        alone = score(setting, params[client : client + 1], own)[0]
        torch.testing.assert_close(together[client], alone, rtol=1e-4, atol=1e-7)


def test_snip_is_the_gradient_of_a_mask() -> None:
    setting, params, batches = cohort("cnn")
    mask = torch.ones_like(params[0], requires_grad=True)
    for batch in batches:
        tensors = setting.layout.split(params[0] * mask)
        output = torch.func.functional_call(setting.module.eval(), tensors, (batch.x[0],))
        (cross_entropy(output, batch.y[0]) * batch.weight[0]).sum().backward()
    assert mask.grad is not None
    slope = torch.where(prunable(setting, mask.device), mask.grad.abs(), 0)
    torch.testing.assert_close(snip(setting, params, batches)[0], slope / slope.sum(), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("by", PRUNERS)
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_only_weights_are_pruned_and_to_each_his_share(by: str, scope: Any) -> None:
    setting, params, batches = cohort("normed")
    share = torch.tensor([0.3, 0.7, 1.0])
    mask = pruned(by, setting, params, share, batches, torch.arange(3), Chance(1, 1), scope)
    assert mask[2].all()
    assert mask[:, ~prunable(setting, mask.device)].all()
    spans = weights_of(setting)
    assert [s.stop - s.start for s in spans] == [27, 81]  # a convolution and a dense layer
    for block in [[span] for span in spans] if scope == "layer" else [spans]:
        count, kept = sum(s.stop - s.start for s in block), torch.stack([mask[:, s].sum(1) for s in block]).sum(0)
        most = count - ((1 - as_written(share)) * count).long()
        assert (kept <= most).all()  # ties at the edge are all removed
        if by in ("rand", "mag"):
            assert torch.equal(kept, most)


def test_random_scores_are_normal_and_each_clients_own() -> None:
    params, ids = torch.zeros(2, 20_000), torch.tensor([4, 9])
    scores = rand(params, ids, Chance(3, 5))
    assert abs(float(scores.mean())) < 0.02
    assert abs(float(scores.std()) - 1) < 0.02
    assert abs(float((scores[0] * scores[1]).mean())) < 0.03
    assert torch.equal(rand(params[:1], ids[1:], Chance(3, 5))[0], scores[1])  # whoever else is there
    assert not torch.equal(rand(params, ids, Chance(3, 6)), scores)


@pytest.mark.parametrize("by", ["mag", "synflow"])
def test_equal_clients_share_the_work_and_keep_their_shares(by: str) -> None:
    setting, params, _ = cohort("cnn")
    share = torch.tensor([0.5, 0.2, 0.5])
    for scope in ("global", "layer"):
        same = pruned(by, setting, params[0].expand(3, -1), share, (), torch.arange(3), Chance(1, 1), scope)
        copies = pruned(by, setting, params[:1].repeat(3, 1), share, (), torch.arange(3), Chance(1, 1), scope)
        assert torch.equal(same, copies)
        assert torch.equal(same[0], same[2])
        assert (same[1] <= same[0]).all() if by == "mag" else not torch.equal(same[0], same[1])


def test_stepwise_synflow_leaves_no_layer_empty() -> None:
    here = world("mlp")  # 288 weights into 8 neurons, 24 out of them
    mask = synflow_mask(here.setting, here.model[None], torch.tensor([0.04]))
    assert all(mask[0, span].any() for span in weights_of(here.setting))


def test_shares_in_single_precision_are_meant_as_written() -> None:
    shares = [i / 20 for i in range(1, 21)]
    assert as_written(torch.tensor(shares)).tolist() == shares


def test_bad_input_is_refused() -> None:
    setting, params, _ = cohort("mlp")
    share, ids, chance = torch.ones(3), torch.arange(3), Chance(1, 1)
    with pytest.raises(BadExperiment, match="unknown pruner 'snipe'; did you mean 'snip'"):
        pruned("snipe", setting, params, share, (), ids, chance)
    with pytest.raises(BadExperiment, match="unknown scope of pruning 'layers'; did you mean 'layer'"):
        prune(setting, params, share, "layers")  # type: ignore[arg-type]
    for by in ("snip", "grasp"):
        with pytest.raises(BadExperiment, match="batches is empty"):
            pruned(by, setting, params, share, (), ids, chance)


def test_a_layer_that_would_be_empty_keeps_its_best_weight_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    setting, params, batches = _wide()
    share, ids = torch.tensor([0.1, 0.1, 1.0]), torch.arange(3)
    head = weights_of(setting)[-1]
    for rows in (params, params.clone()):  # scored once, and each by itself
        mask = pruned("mag", setting, rows, share, batches, ids, Chance(1, 1))
        assert mask[:, head].sum(1).tolist() == [1, 1, head.stop - head.start]
        assert mask[0, head].nonzero().item() == params[0, head].abs().argmax()
    assert [record.getMessage().split("'")[1] for record in caplog.records] == ["2"]  # once
    assert pruned("mag", setting, params, share, batches, ids, Chance(1, 1), "layer")[0, head].sum() > 1
    for by in PRUNERS:
        mask = pruned(by, setting, params, share / 20, batches, ids, Chance(1, 1))
        assert all(mask[:, span].any(1).all() for span in weights_of(setting))


def _wide() -> tuple[Setting, Tensor, list[Batch]]:
    """A network whose wide head has the smallest weights by far, and three clients."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 50))
    with torch.no_grad():
        module[2].weight.mul_(1e-6)
    layout = layout_of(module)
    fleet = Fleet(torch.full((3,), 4), torch.full((3, 1), 4))
    setting = Setting(fleet, module, layout, classes(), torch.randn(2, 6))
    x, y = torch.randn(3, 4, 6), torch.randint(0, 50, (3, 4))
    batch = Batch(x, y, torch.full((3, 4), 0.25), torch.zeros(3, dtype=torch.int64))
    return setting, flatten(module, layout).expand(3, -1), [batch]
