"""RA-Fed, RAM-Fed, MIFA and FedVARP equal their algorithms in plain torch, and FedAvg in their limits."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.optimiser import Sgd
from fedloom.core.types import Reply
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.layout import flatten, load
from fedloom.method import Method
from fedloom.methods.fedvarp import fedvarp
from fedloom.methods.mifa import mifa
from fedloom.methods.ra_fed import ra_fed
from fedloom.methods.ram_fed import ram_fed
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from fedloom.parts.allocate.whole import Whole
from fedloom.parts.mask.regions import Regions
from fedloom.parts.select.everyone import Everyone
from fedloom.parts.select.unheard_first import UnheardFirst
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run as run_experiment
from worlds import SEED, SIZES, World, assert_close, changed, play, played, small, world

EQUAL = small(Method(select=Everyone(), aggregate=CoverageMean("uniform")))
N = len(SIZES)
WORK = Work(epochs=2, batch=6)


def lose(reply: Reply, chance: Chance) -> Reply:
    """About a third of the replies."""
    return reply._replace(arrived=chance.uniform("lose", reply.ids) > 0.35)


# ---- by hand


def trained_by_hand(here: World, model: Tensor, mask: Tensor, client: int, number: int, rate: float) -> Tensor:
    """Algorithm 1, lines 4 to 8: a module that starts from `theta * m`, every step masked."""
    net = load(deepcopy(here.setting.module), here.setting.layout, model * mask)
    net.train()
    one, size = torch.tensor([client]), here.shards.sizes[client]
    batches = WORK.plan(one, here.shards.rows(one, size), [size], Chance(SEED, number))
    kept = here.setting.layout.split(mask)
    for examples, real in zip(batches.examples[0], batches.real[0]):
        net.zero_grad()
        F.cross_entropy(net(here.data.x[examples[real]]), here.data.y[examples[real]]).backward()
        with torch.no_grad():
            for name, weights in net.named_parameters():
                assert weights.grad is not None
                weights -= rate * weights.grad * kept[name]
    return flatten(net, here.setting.layout)


def by_hand(here: World, method: Method, losing: bool, memory: bool, rounds: int) -> list[Tensor]:
    """Both algorithms, region by region; the rest that everyone trains counts as one more region."""
    regions = method.mask
    assert isinstance(regions, Regions)
    model, models = here.model, []
    updates = torch.zeros(N, len(model))
    for number in range(1, rounds + 1):
        chance, rate = Chance(SEED, number), method.optimiser.rate_at(number)
        setting = here.setting
        members = regions.members(setting.neurons if regions.mode == "neuron" else setting.hidden_weights, chance)
        rest = members.all(0)
        pieces = [*(one & ~rest for one in members), rest]
        shares = torch.tensor(method.allocate.shares)[torch.arange(N) % len(method.allocate.shares)]  # type: ignore[attr-defined]
        delta, trains = {}, {}
        for client in range(N):
            chosen = [*regions.chosen(torch.tensor([client]), shares[client, None], chance)[0].tolist(), True]
            if number == 1:
                chosen = [True] * len(pieces)
            mask = torch.stack([piece for piece, have in zip(pieces, chosen) if have]).any(0).float()
            end = trained_by_hand(here, model, mask, client, number, rate)
            delta[client], trains[client] = (model * mask - end) / rate, chosen
        heard = [n for n in range(N) if not losing or chance.uniform("lose", torch.tensor(n)) > 0.35]
        new, mean = model.clone(), updates.mean(0)
        for region, piece in enumerate(pieces):
            senders = [n for n in heard if trains[n][region]]
            v = mean.clone() if memory else torch.zeros_like(mean)
            for n in senders:
                v += (delta[n] - updates[n] if memory else delta[n]) / len(senders)
            new[piece] = model[piece] - rate * v[piece]
            for n in senders:
                updates[n, piece] = delta[n][piece]
        model = new
        models.append(model)
    return models


@pytest.mark.parametrize("losing", [False, True])
@pytest.mark.parametrize("memory", [False, True], ids=["ra-fed", "ram-fed"])
@pytest.mark.parametrize(
    "settings",
    [
        {"level": "S"},
        {"level": "MIX", "period": 2},
        {"level": "L", "regions": 3, "mode": "element"},
        {"level": "S", "mode": "element", "redraw": True, "period": 3},
    ],
    ids=str,
)
def test_the_algorithms_by_hand(settings: dict[str, Any], memory: bool, losing: bool) -> None:
    here = world("cnn")
    method = (ram_fed if memory else ra_fed)(**settings)
    method = small(method, work=WORK, optimiser=Sgd(rate=0.1, decay=0.9))
    engine = changed(here.local(method), lose) if losing else here.local(method)
    ours = play(here, method, engine, rounds=5).models
    for one, other in zip(ours, by_hand(here, method, losing, memory, 5)):
        assert_close({"model": one}, {"model": other}, 1e-5)


def test_clients_begin_with_zeros_outside_their_regions() -> None:
    here, method = world("cnn"), small(ra_fed("S"))
    run = play(here, method, here.local(method), rounds=2)
    mask, engine = run.tasks[1].mask, here.local(replace(method, optimiser=Sgd(rate=1e-30)))
    assert mask is not None
    assert 0.2 < mask.float().mean() < 0.8
    reply = engine.train(run.replies[1].ids, run.tasks[1]._replace(rate=1e-30), Chance(SEED, 2))
    assert torch.equal(reply.params, run.tasks[1].model * mask)
    assert torch.equal(reply.mask, mask)  # type: ignore[arg-type]


def relatives_by_hand(
    here: World, method: Method, rounds: int, step: Callable[..., Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Whole models of a cohort, in a loop over clients; `step` gives v from memory, updates and the fleet's size."""
    engine, run = here.local(method), play(here, method, changed(here.local(method), lose), rounds)
    model, models = here.model, []
    updates: dict[int, Tensor] = {}
    for number in range(1, rounds + 1):
        task, rate = run.tasks[number - 1], method.optimiser.rate_at(number)
        ids = run.replies[number - 1].ids
        reply = lose(engine.train(ids, task._replace(model=model), Chance(SEED, number)), Chance(SEED, number))
        new = {int(n): (model - end) / rate for n, end, came in zip(ids, reply.params, reply.arrived) if came}
        model = model - rate * step(updates, new)
        updates = {**updates, **new}
        models.append(model)
    return run.models, models


def mifa_step(updates: dict[int, Tensor], new: dict[int, Tensor], wait: bool) -> Tensor:
    """The mean of the latest updates, those of this round included."""
    latest = {**updates, **new}
    if wait and len(latest) < N:
        return torch.zeros(())
    return sum(latest.values(), torch.zeros(())) / N


def fedvarp_step(updates: dict[int, Tensor], new: dict[int, Tensor]) -> Tensor:
    """The mean of the remembered updates, corrected by those of the cohort."""
    v = sum(updates.values(), torch.zeros(())) / N
    for n, update in new.items():
        v = v + (update - updates.get(n, torch.zeros(()))) / len(new)
    return v


@pytest.mark.parametrize(
    ("method", "step"),
    [
        (small(mifa(), select=UnheardFirst(8)), partial(mifa_step, wait=True)),
        (small(mifa(wait=False)), partial(mifa_step, wait=False)),
        (small(fedvarp()), fedvarp_step),
    ],
    ids=["mifa", "mifa without waiting", "fedvarp"],
)
def test_the_relatives_by_hand(method: Method, step: Callable[..., Tensor]) -> None:
    method = replace(method, optimiser=Sgd(rate=0.1, decay=0.9))
    ours, theirs = relatives_by_hand(world("cnn"), method, 7, step)
    for one, other in zip(ours, theirs):
        assert_close({"model": one}, {"model": other}, 1e-5)
    assert not torch.equal(ours[-1], world("cnn").model)


# ---- limits


@pytest.mark.parametrize("network", ["cnn", "normed"])
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(small(ra_fed(), allocate=Whole()), id="ra-fed"),
        pytest.param(small(ram_fed(), allocate=Whole()), id="ram-fed"),
        pytest.param(small(ram_fed(mode="element"), allocate=Whole()), id="ram-fed, elements"),
        pytest.param(small(ram_fed(dtype="float16"), allocate=Whole()), id="ram-fed in half the memory"),
        pytest.param(small(fedvarp(), select=Everyone()), id="fedvarp"),
    ],
)
def test_whole_models_of_everyone_are_fedavg_exactly(method: Method, network: str) -> None:
    assert torch.equal(played(network, method).model, played(network, EQUAL).model)


@pytest.mark.parametrize("network", ["cnn", "normed"])
@pytest.mark.parametrize("wait", [True, False])
def test_mifa_of_everyone_is_fedavg(network: str, wait: bool) -> None:
    method = small(mifa(wait), select=Everyone())
    ours, theirs = played(network, method), played(network, EQUAL)
    first = {"model": ours.models[0]}, {"model": theirs.models[0]}
    assert_close(*first, 1e-7)  # one rounding of a division by the rate
    assert_close({"model": ours.model}, {"model": theirs.model}, 1e-6)


@pytest.mark.parametrize("level", ["L", "S", "MIX"])
def test_the_first_round_is_the_same_for_both(level: str) -> None:
    plain, remembering = played("normed", small(ra_fed(level)), 2), played("normed", small(ram_fed(level)), 2)
    assert torch.equal(plain.models[0], remembering.models[0])
    assert torch.equal(plain.models[0], played("normed", EQUAL).models[0])  # and whole
    assert not torch.equal(plain.models[1], remembering.models[1])


def test_one_region_is_fedvarp_of_everyone() -> None:
    """One region is drawn by all in every round: then nothing has to be remembered, and nothing differs from FedAvg."""
    one = small(ram_fed(regions=1))
    assert_close({"model": played("cnn", one).model}, {"model": played("cnn", EQUAL).model}, 1e-6)


def test_the_memory_goes_on_where_nobody_trains() -> None:
    here = world("cnn")
    plain, remembering = (small(make("S", period=2)) for make in (ra_fed, ram_fed))
    chance = Chance(SEED, 2)
    members = Regions().members(here.setting.neurons, chance)
    untrained = ~members[3]  # in the second round all train the last region, and the rest
    one, two = (play(here, method, here.local(method), 2) for method in (plain, remembering))
    assert torch.equal(one.models[1][untrained], one.models[0][untrained])
    expected = two.models[0] + (two.models[0] - here.model)  # everyone's first update, once more
    torch.testing.assert_close(two.models[1][untrained], expected[untrained], rtol=0, atol=1e-6)


def test_half_of_a_mixed_fleet_trains_half() -> None:
    shares = played("cnn", small(ra_fed("MIX")), 2).tasks[1].share
    assert (shares == 0.5).sum() == (shares == 0.25).sum() == N // 2


# ---- in runs

SETTINGS: dict[str, Any] = {"clients": 6, "rounds": 3, "training": {"epochs": 1}}


@pytest.mark.parametrize("name", ["ra-fed", "ram-fed", "mifa", "fedvarp"])
def test_columns_are_recorded(name: str) -> None:
    result = run_experiment(Experiment(method=name, **SETTINGS))
    first, row = result.rounds[0], result.rounds[-1]
    if name in ("ra-fed", "ram-fed"):
        assert first["mask.coverage"] == 1
        assert 0 < row["mask.coverage"] <= 1
        assert row["mask.regions_trained"] in (1, 2, 3, 4)
        assert result.kept["mask.staleness"].shape == (4,)
    if name != "ra-fed":
        assert row["aggregate.heard"] == row["clients"]


def test_the_memory_is_priced_before_a_run(tmp_path: Any) -> None:
    folder, memory = tmp_path / "run", tmp_path / "memory"
    method = {"name": "ram-fed", "settings": {"dtype": "float16", "folder": str(memory)}}
    run_experiment(Experiment(method=method, **SETTINGS), out=folder)
    said = (folder / "log.txt").read_text()
    assert "The server remembers every client's latest update: " in said
    assert f"in a file in '{memory}'" in said
    assert not list(memory.iterdir())


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("ra-fed", {"level": "M"}, "unknown level 'M'"),
        ("ram-fed", {"level": "mix"}, "unknown level 'mix'; did you mean 'MIX'"),
        ("ra-fed", {"regions": 0}, "count .of regions. is 0"),
        ("ram-fed", {"period": -1}, "period .* is -1"),
        ("ram-fed", {"mode": "neurons"}, "setting 'mode' of method 'ram-fed' is 'neurons'"),
        ("mifa", {"dtype": "float8"}, "setting 'dtype' of method 'mifa' is 'float8'"),
    ],
)
def test_impossible_settings_are_refused(name: str, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadExperiment, match=why):
        Experiment(method={"name": name, "settings": settings})


def test_a_method_of_everyone_takes_no_number_of_clients() -> None:
    with pytest.raises(BadExperiment, match="'ram-fed' chooses its own cohort"):
        Experiment(method="ram-fed", per_round=5)
    assert Experiment(method="mifa", per_round=5).build_method().select == UnheardFirst(5)
    assert isinstance(Experiment(method="ram-fed").build_method().aggregate, LatestUpdates)
