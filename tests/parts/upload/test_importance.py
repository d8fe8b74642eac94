"""Importance: Eq. 20 against plain loops, counts, ties, and weights near 0."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.types import Setting, Task
from fedloom.errors import BadExperiment
from fedloom.layout import layout_of
from fedloom.neurons.leading import LeadingNeurons
from fedloom.parts.upload.importance import KINDS, Importance, elementwise
from worlds import World, world

CLIENTS = 4


def weights(here: World, purpose: str) -> Tensor:
    """Random weights of some clients [C, P]."""
    places = torch.arange(CLIENTS)[:, None], torch.arange(len(here.model))
    return Chance(1, 0).uniform(purpose, *places) * 2 - 1


def task(here: World, share: list[float], keep: Tensor | None = None) -> Task:
    """A task with these shares."""
    ids, mask = torch.arange(len(share)), None if keep is None else here.setting.neurons.expand(keep)
    shares, all_ = torch.tensor(share, dtype=torch.float64), torch.ones(len(share), dtype=torch.bool)
    return Task(here.model, mask, keep, shares, all_, {}, 1, 0.1, 0.1, here.setting.layout.trained, ids)


def chosen(part: Importance, here: World, share: list[float], keep: Tensor | None = None) -> Tensor:
    """The mask [C, P] from random weights before and after."""
    mask = part(here.setting, task(here, share, keep), {}, weights(here, "a"), weights(here, "b"), Chance(1, 2))
    assert mask is not None
    return mask


def rows(here: World, mask: Tensor, name: str) -> list[list[bool]]:
    """Which rows of a tensor each client sends; whole ones only."""
    part = torch.stack([here.setting.layout.split(own)[name] for own in mask])
    part = part.view(*part.shape[:2], -1)
    assert torch.equal(part.all(2), part.any(2))
    found: list[list[bool]] = part.all(2).tolist()
    return found


def by_hand(weight: Tensor, bias: Tensor, weight2: Tensor, bias2: Tensor, share: float, floor: float) -> list[bool]:
    """Eq. 20 and the cut of one layer, in plain Python."""
    largest = max(float(weight.abs().max()), float(bias.abs().max()))
    scores = []
    for unit in range(len(bias)):
        total = 0.0
        pairs = [*zip(weight[unit].flatten().tolist(), weight2[unit].flatten().tolist())]
        for before, after in [*pairs, (float(bias[unit]), float(bias2[unit]))]:
            total += (abs(after - before) * abs(after) / (abs(before) + floor * largest)) ** 2
        scores.append(total**0.5)
    count = max(1, int(len(scores) * share + 0.5))
    kept = sorted(range(len(scores)), key=lambda unit: -scores[unit])[:count]
    return [unit in kept for unit in range(len(scores))]


@pytest.mark.parametrize("network", ["mlp", "cnn", "normed"])
def test_equation_20_by_hand(network: str) -> None:
    here, share = world(network), [0.2, 0.5, 0.625, 1.0]
    mask = chosen(Importance(), here, share)
    split = here.setting.layout.split
    for name in [name for name in here.setting.layout.names if name.endswith(".weight")]:
        if split(here.model)[name].dim() == 1:
            continue  # of a norm layer
        layer, found = name.removesuffix(".weight"), rows(here, mask, name)
        for client in range(CLIENTS):
            before, after = (split(weights(here, word)[client]) for word in "ab")
            values = before[name], before[f"{layer}.bias"], after[name], after[f"{layer}.bias"]
            assert found[client] == by_hand(*values, share[client], 0.01), (name, client)
        assert rows(here, mask, f"{layer}.bias") == found


def test_norm_layers_travel_with_their_rows() -> None:
    here = world("normed")
    mask = chosen(Importance(), here, [0.4] * CLIENTS)
    sent = rows(here, mask, "0.weight")
    for name in ("1.weight", "1.bias", "1.running_mean", "1.running_var"):
        assert rows(here, mask, name) == sent


@pytest.mark.parametrize("by", KINDS)
def test_counts_are_rounded_half_up(by: str) -> None:
    here = world("mlp")  # 8 hidden neurons, 3 outputs
    mask = chosen(Importance(by), here, [0.01, 0.3125, 0.5, 0.9375])
    assert [sum(own) for own in rows(here, mask, "1.weight")] == [1, 3, 4, 8]
    assert [sum(own) for own in rows(here, mask, "3.weight")] == [1, 1, 2, 3]
    open_ = chosen(Importance(by, outputs=False), here, [0.01, 0.3125, 0.5, 0.9375])
    assert [sum(own) for own in rows(here, open_, "3.weight")] == [3, 3, 3, 3]
    assert rows(here, open_, "1.weight") == rows(here, mask, "1.weight")


def test_everything_needs_no_mask() -> None:
    here = world("mlp")
    first, last = weights(here, "a"), weights(here, "b")
    assert Importance()(here.setting, task(here, [1.0] * CLIENTS), {}, first, last, Chance(0, 1)) is None


def test_the_other_choices() -> None:
    here, share = world("mlp"), [0.5] * CLIENTS
    first, last = (here.setting.layout.split(weights(here, word)[0]) for word in "ab")
    size = (last["1.weight"] ** 2).sum(1) + last["1.bias"] ** 2
    assert rows(here, chosen(Importance("largest"), here, share), "1.weight")[0] == (size >= size.sort()[0][4]).tolist()
    moved = (last["1.weight"] - first["1.weight"]).abs().sum(1) + (last["1.bias"] - first["1.bias"]).abs()
    most = rows(here, chosen(Importance("most-changed", norm="l1"), here, share), "1.weight")[0]
    assert most == (moved >= moved.sort()[0][4]).tolist()
    leading = [[True] * 4 + [False] * 4] * CLIENTS
    assert rows(here, chosen(Importance("ordered"), here, share), "1.weight") == leading
    random = rows(here, chosen(Importance("random"), here, share), "1.weight")
    assert len({tuple(own) for own in random}) > 1, "every client draws its own"


def test_a_weight_near_zero_does_not_decide() -> None:
    module = nn.Linear(6, 4)
    setting = Setting(
        world("mlp").setting.fleet, module, layout_of(module), world("mlp").setting.loss, torch.ones(2, 6)
    )
    first = torch.full((1, 28), 0.5)
    steps = torch.tensor([4.0, 3.0, 2.0, 1.0])  # of the rows
    last = first + 0.02 * torch.cat((steps.repeat_interleave(6), steps))
    near = first.clone()
    near[0, 20] = 1e-7  # in the last row, whose weights move least
    moved = last.clone()
    moved[0, 20] = 1e-7 + 0.02
    plain, spoilt = (
        setting.neurons.score(elementwise(setting.neurons, a, b, 0.01), output=True)[0]
        for a, b in ((first, last), (near, moved))
    )
    assert plain.argsort().tolist() == spoilt.argsort().tolist() == [3, 2, 1, 0]
    as_printed = setting.neurons.score(elementwise(setting.neurons, near, moved, 1e-8), output=True)[0]
    assert as_printed.argmax() == 3  # what the floor is for


def test_zeros_everywhere_are_finite() -> None:
    here = world("mlp")
    zero, last = torch.zeros(CLIENTS, len(here.model)), weights(here, "b")
    for mode in ("elementwise", "aggregate"):
        mask = Importance(mode=mode)(here.setting, task(here, [0.5] * CLIENTS), {}, zero, last, Chance(0, 2))
        assert mask is not None
        assert [sum(own) for own in rows(here, mask, "1.weight")] == [4] * CLIENTS
    assert elementwise(here.setting.neurons, zero, last, 0.01).isfinite().all()
    assert not elementwise(here.setting.neurons, zero, zero, 0.01).any()


def test_equal_rows_go_by_their_place() -> None:
    here = world("mlp")
    same = torch.ones(CLIENTS, len(here.model))
    mask = Importance()(here.setting, task(here, [0.5] * CLIENTS), {}, same, same, Chance(0, 2))
    assert mask is not None
    assert rows(here, mask, "1.weight") == [[True] * 4 + [False] * 4] * CLIENTS


def test_rows_that_few_own_count_more() -> None:
    here, models = world("mlp"), LeadingNeurons(((2,), (8,)))
    part, both = Importance(models=models), torch.ones(CLIENTS, 8, dtype=torch.bool)
    given = task(here, [0.5] * CLIENTS, both), weights(here, "a"), weights(here, "b"), Chance(0, 2)
    plain, covered = (p.scores(here.setting, *given) for p in (Importance(), part))
    torch.testing.assert_close(covered[:, :2], plain[:, :2])  # everybody's
    torch.testing.assert_close(covered[:, 2:8], plain[:, 2:8] * 2)  # of every second client
    torch.testing.assert_close(covered[:, 8:], plain[:, 8:])


def test_a_smaller_network_sends_its_share_of_itself() -> None:
    here, models = world("mlp"), LeadingNeurons(((2,), (5,), (8,)))
    keep = models.of(here.setting.neurons, torch.arange(CLIENTS))
    mask = chosen(Importance(models=models), here, [0.5] * CLIENTS, keep)
    assert not (mask & ~here.setting.neurons.expand(keep)).any()
    whole = [[bool(r) for r in own] for own in here.setting.neurons.expand(keep)[:, : 36 * 8].view(-1, 8, 36).any(2)]
    sent = mask[:, : 36 * 8].view(-1, 8, 36).any(2).tolist()
    assert [sum(own) for own in whole] == [2, 5, 8, 2]
    assert [sum(own) for own in sent] == [1, 3, 4, 1]


@pytest.mark.parametrize(
    "wrong", [{"by": "importanc"}, {"norm": "l3"}, {"mode": "sum"}, {"floor": 0.0}, {"floor": float("nan")}]
)
def test_refuses(wrong: dict[str, object]) -> None:
    with pytest.raises(BadExperiment):
        Importance(**wrong)  # type: ignore[arg-type]
