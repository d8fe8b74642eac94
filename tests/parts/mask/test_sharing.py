"""ShareOut, Regions and Largest."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.types import Examples, Portion
from fedloom.errors import BadExperiment
from fedloom.parts.mask.hidden import into_hidden
from fedloom.parts.mask.largest import Largest
from fedloom.parts.mask.regions import LEVELS, Regions
from fedloom.parts.mask.share_out import ShareOut, dealt
from worlds import World, world_of

NETS: dict[str, Any] = {
    "dense": lambda: (nn.Flatten(), nn.Linear(36, 10), nn.ReLU(), nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 3)),
    "normed": lambda: (
        nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 3),
    ),
    "grouped": lambda: (
        nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(2, 12), nn.ReLU(), nn.Flatten(), nn.Linear(432, 3)
    ),
    "flat": lambda: (nn.Flatten(), nn.Linear(36, 3)),
}  # fmt: skip


@cache
def here(net: str) -> World:
    """A network around which nothing is trained."""
    data = Examples(torch.zeros(4, 1, 6, 6), torch.tensor([0, 1, 2, 0]))
    return world_of(nn.Sequential(*NETS[net]()), data, torch.arange(4).split(1))


def ask(mask: Any, net: str, ids: Tensor, share: Tensor, chance: Chance) -> Portion:
    """What a mask sends that remembers at most whom it has asked for what."""
    memory = {"chosen": torch.zeros(64, getattr(mask, "count", 0), dtype=torch.bool)}
    return mask(memory, here(net).setting, here(net).model, ids, share, chance)[0]  # type: ignore[no-any-return]


def ids_of(count: int) -> Tensor:
    """A cohort."""
    return torch.arange(count) * 3 + 1


# ---- dealing neurons out


@given(st.sampled_from(["dense", "normed", "grouped", "flat"]), st.integers(1, 12), st.integers(1, 5))
def test_neurons_are_dealt_evenly_to_everyone(net: str, count: int, number: int) -> None:
    neurons = here(net).setting.neurons
    keep = dealt(neurons, ids_of(count), Chance(3, number), count)
    for group, span in neurons.spans(neurons.size):
        hands, step = keep[:, span], neurons.steps[group]
        blocks = neurons.widths[group] // step
        owners, sizes = hands.sum(0), hands.sum(1)
        assert (owners >= 1).all()  # nothing is left over
        assert (sizes >= step).all()
        assert (sizes % step == 0).all()
        assert int(sizes.max() - sizes.min()) <= step
        if blocks >= count:
            assert (owners == 1).all()  # disjoint
        else:
            assert int(owners.max() - owners.min()) <= 1


def test_the_deal_changes_every_round_and_favours_nobody() -> None:
    neurons, ids = here("dense").setting.neurons, ids_of(3)
    deals = [dealt(neurons, ids, Chance(3, number), 3) for number in range(1, 61)]
    assert not torch.equal(deals[0], deals[1])
    assert torch.equal(deals[0], dealt(neurons, ids, Chance(3, 1), 3))
    mean = torch.stack(deals).double().mean(0)  # [C, K]
    assert ((mean - 1 / 3).abs() < 0.2).all()


def test_what_the_cohort_sends_is_disjoint_but_for_the_output_bias() -> None:
    setting = here("dense").setting
    portion = ask(ShareOut(), "dense", ids_of(3), torch.ones(3), Chance(1, 1))
    assert portion.mask is not None
    assert portion.keep is not None
    assert torch.equal(portion.mask, setting.neurons.expand(portion.keep))
    assert int(portion.mask[:, :-3].sum(0).max()) == 1
    assert (portion.mask[:, -3:].sum(0) == 3).all()
    assert ask(ShareOut(), "dense", ids_of(1), torch.ones(1), Chance(1, 1)) == Portion()


def test_a_few_parts_are_dealt_to_a_cohort_by_turns() -> None:
    setting = here("dense").setting
    portion = ask(ShareOut(2), "dense", ids_of(6), torch.full((6,), 0.5), Chance(1, 1))
    assert portion.keep is not None
    for _, span in setting.neurons.spans(setting.neurons.size):
        hands = portion.keep[:, span]
        assert (hands.sum(0) == 3).all()  # half of the clients have a neuron
        assert len(hands.unique(dim=0)) == 2
        assert (hands.unique(dim=0).sum(0) == 1).all()
    assert ask(ShareOut(2), "dense", ids_of(1), torch.ones(1), Chance(1, 1)) == Portion()
    with pytest.raises(BadExperiment, match="parts"):
        ShareOut(0)


# ---- regions


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("net", ["dense", "normed"])
def test_regions_of_neurons_are_equal_and_whole(net: str, count: int) -> None:
    neurons = here(net).setting.neurons
    members = Regions(count).members(neurons, Chance(5, 3))
    rest = neurons.expand(torch.zeros(neurons.size, dtype=torch.bool), rows=True)  # what no hidden neuron owns
    assert members[:, rest].all()
    assert (members[:, ~rest].sum(0) == 1).all()
    for group, span in neurons.spans(neurons.size):
        owned = []
        for neuron in range(span.start, span.stop):
            one = torch.zeros(neurons.size, dtype=torch.bool)
            one[neuron] = True
            rows = neurons.expand(one, rows=True) & ~rest  # all that leads into this neuron, its norm included
            region = members[:, rows]
            assert (region == region[:, :1]).all()
            owned.append(int(region[:, 0].byte().argmax()))
        sizes = [Counter(owned)[region] for region in range(count)]
        assert sum(sizes) == neurons.widths[group]
        assert max(sizes) - min(sizes) <= 1


def test_regions_of_elements_are_equal_parts_of_every_hidden_weight() -> None:
    neurons, weights = here("normed").setting.neurons, here("normed").setting.hidden_weights
    members = Regions(4, "element").members(weights, Chance(5, 3))
    hidden = [t for t in into_hidden(neurons) if len(t.shape) > 1]
    assert [t.name for t in hidden] == ["0.weight", "3.weight"]
    rest = torch.ones(neurons.total, dtype=torch.bool)
    for tensor in hidden:
        sizes = members[:, tensor.start : tensor.stop].sum(1)
        assert int(sizes.sum()) == tensor.stop - tensor.start
        assert int(sizes.max() - sizes.min()) <= 1
        rest[tensor.start : tensor.stop] = False
    assert members[:, rest].all()


@pytest.mark.parametrize("mode", ["neuron", "element"])
def test_regions_stand_still_unless_they_are_redrawn(mode: Any) -> None:
    neurons = here("dense").setting.neurons
    still, moving = Regions(4, mode), Regions(4, mode, redraw=True)
    assert torch.equal(still.members(neurons, Chance(5, 2)), still.members(neurons, Chance(5, 9)))
    assert not torch.equal(still.members(neurons, Chance(5, 2)), still.members(neurons, Chance(6, 2)))
    assert not torch.equal(moving.members(neurons, Chance(5, 2)), moving.members(neurons, Chance(5, 9)))


def test_regions_are_drawn_uniformly_among_the_combinations() -> None:
    ids = torch.arange(6000)
    for share, combinations in ((0.5, 6), (0.25, 4)):
        chosen = Regions(period=0).chosen(ids, torch.full((6000,), share), Chance(2, 3))
        assert (chosen.sum(1) == 4 * share).all()
        times = Counter(map(tuple, chosen.tolist()))
        assert len(times) == combinations
        assert all(abs(n - 6000 / combinations) < 150 for n in times.values())
    assert (Regions().chosen(ids, torch.full((6000,), 0.01), Chance(2, 3)).sum(1) == 1).all()


def test_a_client_is_sent_its_regions_and_the_rest() -> None:
    regions, ids, chance = Regions(), ids_of(4), Chance(2, 3)
    share = torch.tensor(LEVELS["MIX"])[ids % 2]
    portion = ask(regions, "dense", ids, share, chance)
    members, chosen = regions.members(here("dense").setting.neurons, chance), regions.chosen(ids, share, chance)
    assert chosen.sum(1).tolist() == [1, 2, 1, 2]
    assert portion.keep is None
    assert portion.mask is not None
    for row, which in zip(portion.mask, chosen):
        assert torch.equal(row, members[which].any(0))


def test_rounds_of_their_own() -> None:
    ids, share = ids_of(4), torch.tensor([0.5, 0.25, 0.5, 0.25])
    assert ask(Regions(), "dense", ids, share, Chance(2, 1)) == Portion()  # the first trains everything
    assert ask(Regions(full_first=False), "dense", ids, share, Chance(2, 1)).mask is not None
    assert ask(Regions(full_first=False), "dense", ids, torch.ones(4), Chance(2, 1)) == Portion()
    last = [[False, False, True, True], [False, False, False, True]] * 2
    assert Regions(period=10).chosen(ids, share, Chance(2, 20)).tolist() == last
    assert Regions(period=10).chosen(ids, share, Chance(2, 21)).tolist() != last
    assert Regions(period=0).chosen(ids, share, Chance(2, 20)).tolist() != last


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"mode": "neurons"}, "unknown mode of regions 'neurons'; did you mean 'neuron'"),
        ({"count": 0}, "count .* is 0"),
        ({"period": -1}, "period .* is -1"),
    ],
)
def test_impossible_regions_are_refused(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(BadExperiment, match=says):
        Regions(**bad)


# ---- the largest weights


def test_the_largest_weights_of_every_hidden_layer() -> None:
    setting, model = here("normed").setting, here("normed").model
    share = torch.tensor([0.5, 0.25, 0.001, 1.0])
    portion = ask(Largest(), "normed", ids_of(4), share, Chance(1, 1))
    assert portion.keep is None
    assert portion.mask is not None
    rest = torch.ones(len(model), dtype=torch.bool)
    for tensor in into_hidden(setting.neurons):
        if len(tensor.shape) > 1:
            span = slice(tensor.start, tensor.stop)
            size, magnitude = tensor.stop - tensor.start, model[span].abs()
            assert portion.mask[:, span].sum(1).tolist() == [max(1, int(s * size)) for s in (0.5, 0.25, 0.001, 1)]
            for row in portion.mask[:3, span]:
                assert magnitude[row].min() >= magnitude[~row].max()
            rest[span] = False
    assert portion.mask[:, rest].all()
    assert ask(Largest(), "normed", ids_of(2), torch.ones(2), Chance(1, 1)) == Portion()


def test_equal_weights_go_by_their_place() -> None:
    world, ids = here("dense"), ids_of(1)
    portion, _ = Largest()({}, world.setting, torch.zeros_like(world.model), ids, torch.tensor([0.25]), Chance(1, 1))
    assert portion.mask is not None
    assert torch.equal(portion.mask[0, :360], torch.arange(360) < 90)
