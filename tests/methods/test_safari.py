"""SAFARI equals its equations in plain PyTorch, and other methods in its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.pruning import PRUNERS, prunable
from fedloom.core.types import Examples, Reply
from fedloom.core.work import Work
from fedloom.engine.protocol import Engine
from fedloom.errors import BadExperiment
from fedloom.layout import flatten, layout_of, load
from fedloom.methods.fedavg import fedavg
from fedloom.methods.safari import safari
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.select.everyone import Everyone
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from pieces import CLASSES, Forced
from worlds import SEED, World, assert_close, changed, cross_entropy, play, small, world, world_of

OPTIMISERS = [Sgd(rate=0.1), Sgd(rate=0.05, momentum=0.9, weight_decay=0.01), Adam(rate=0.01)]


def losing(engine: Engine, rounds: dict[int, list[int]]) -> Engine:
    """An engine that loses the replies of these clients in these rounds."""

    def lose(reply: Reply, chance: Chance) -> Reply:
        lost = torch.isin(reply.ids, torch.tensor(rounds.get(chance.round, []), dtype=torch.int64))
        return reply._replace(arrived=reply.arrived & ~lost)

    return changed(engine, lose)


# ---- limits


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: type(o).__name__)
def test_nothing_pruned_and_nothing_lost_is_fedavg(optimiser: Optimiser) -> None:
    here, mean = world("normed"), CoverageMean("uniform")
    plain = small(fedavg(), select=Everyone(), aggregate=mean, optimiser=optimiser)
    wanted = play(here, plain, here.local(plain)).model
    method = small(safari(sparsity=0), optimiser=optimiser)
    assert torch.equal(play(here, method, here.local(method)).model, wanted)
    for pruner in ("mag", "grasp"):  # the same by masks of everything
        method = small(safari(pruner, 1e-9), optimiser=optimiser)
        ours = play(here, method, here.local(method), rounds=1).model
        first = play(here, plain, here.local(plain), rounds=1).model
        assert_close({"model": ours}, {"model": first}, 2e-6)


@pytest.mark.parametrize("pruner", ["mag", "rand", "snip"])
@pytest.mark.parametrize("mask_aware", [True, False])
def test_compensation_changes_nothing_where_nothing_is_lost(pruner: str, mask_aware: bool) -> None:
    here, models = world("normed"), []
    for compensate in (True, False):
        method = small(safari(pruner, compensate=compensate, mask_aware=mask_aware))
        models.append(play(here, method, here.local(method)).model)
    assert torch.equal(*models)


@pytest.mark.parametrize("pruner", ["mag", "snip", "grasp"])
def test_an_exact_twin_makes_up_for_a_loss(pruner: str) -> None:
    part = torch.arange(24).split(6)
    clients = [part[0], part[1], part[0], part[2], part[1], part[3]]  # 0 and 2, 1 and 4 have the same data
    pixels = Chance(SEED, 0).uniform("pixels", torch.arange(24)[:, None, None, None], torch.arange(36).view(1, 6, 6))
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    here = world_of(net, Examples(pixels.float() * 4 - 2, torch.arange(24) % CLASSES), clients)
    method = small(safari(pruner), work=Work(steps=2, batch=0))  # of all examples, so that twins do the same
    whole = play(here, method, here.local(method), rounds=4)
    lossy = play(here, method, losing(here.local(method), {2: [2], 3: [0, 4], 4: [1, 2]}), rounds=4)
    assert_close({"model": lossy.model}, {"model": whole.model}, 1e-7)  # twins add their examples in another order
    bare = small(safari(pruner, compensate=False), work=Work(steps=2, batch=0))
    without = play(here, bare, losing(here.local(bare), {2: [2]}), rounds=4)
    assert (without.model - whole.model).abs().max() > 1e-4


# ---- the equations


def by_hand(here: World, work: Work, sparsity: float, optimiser: Adam, lost: dict[int, list[int]]) -> list[Tensor]:
    """Algorithms 1 to 3 with `mag`, client by client; all examples in every step."""
    model, layout, rho, models = here.model.clone(), here.setting.layout, {}, []
    weights = prunable(here.setting, torch.device("cpu"))
    for number in (1, 2, 3):
        found = {}
        for client, own in enumerate(here.shards.examples.split(here.shards.sizes)):
            scores = sorted(model[weights].abs().tolist())
            removed = int(sparsity * len(scores) + 1e-9)
            mask = torch.where(weights, model.abs() > scores[removed - 1], True)
            net = load(here.setting.module, layout, model * mask).train()
            keep = layout.split(mask)
            stepper = torch.optim.Adam(net.parameters(), lr=optimiser.rate, eps=optimiser.eps)
            for _ in range(work.steps or 1):
                stepper.zero_grad()
                cross_entropy(net(here.data.x[own]), here.data.y[own]).mean().backward()
                for name, parameter in net.named_parameters():
                    assert parameter.grad is not None
                    parameter.grad *= keep[name]
                stepper.step()
                for name, parameter in net.named_parameters():
                    parameter.data *= keep[name]
            if client not in lost.get(number, []):
                found[client] = flatten(net, layout_of(net))
        for u in found:
            for v in found:
                rho[u, v] = float((found[u].double() - found[v].double()).norm())
        slots = []
        for client in range(len(here.shards.sizes)):
            known = [other for other in found if (client, other) in rho]
            nearest = min(known, key=lambda other: rho[client, other]) if known else None
            slots.append(sum(found.values()) / len(found) if nearest is None else found[nearest])
        model = sum(slots) / len(slots)
        models.append(model)
    return models


def test_three_rounds_are_the_algorithms() -> None:
    here, lost = world("cnn"), {1: [5, 7], 2: [0, 2, 5, 9], 3: [1, 3, 5, 7, 11]}
    work, optimiser = Work(steps=5, batch=0), Adam(rate=0.01, eps=1e-3)
    method = replace(safari(sparsity=0.7, scope="global"), optimiser=optimiser, work=work)
    ours = play(here, method, losing(here.local(method), lost))
    for mine, theirs in zip(ours.models, by_hand(here, work, 0.7, optimiser, lost)):
        assert_close({"model": mine}, {"model": theirs}, 1e-5)


@pytest.mark.parametrize("pruner", PRUNERS)
def test_engines_agree(pruner: str) -> None:
    here, few = world("cnn"), Forced(((1, 2, 5), (0, 3, 6)))
    method = small(safari(pruner, 0.6), optimiser=Adam(rate=0.01, eps=1e-3), select=few)
    rounds = 1 if pruner == "synflow" else 2
    slow, fast = play(here, method, here.loop(method), rounds), play(here, method, here.local(method), rounds)
    assert_close({"model": fast.model}, {"model": slow.model}, 1e-5)
    for ours, theirs in zip(fast.replies, slow.replies):
        assert torch.equal(ours.mask, theirs.mask)


# ---- settings and runs


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pruner": "magg"}, "unknown pruner 'magg'; did you mean 'mag'"),
        ({"pruner": "magg", "sparsity": 0}, "unknown pruner"),
        ({"sparsity": 1.0}, r"sparsity .* is 1.0; it lies in \[0, 1\)"),
        ({"sparsity": -0.1}, r"sparsity .* is -0.1"),
        ({"remask": "first"}, "did you mean 'first-round'"),
        ({"per_class": 0}, "per_class is 0"),
        ({"distance": "cosine"}, "unknown distance of models 'cosine'"),
        ({"smoothing": 2.0}, "smoothing"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadExperiment, match=says):
        Experiment(method={"name": "safari", "settings": settings})


def test_training_settings_override_its_own() -> None:
    method = Experiment(method="safari").build_method()
    assert method.optimiser == Adam(rate=0.01)
    assert method.work == Work(steps=5, batch=64)
    method = Experiment(method="safari", training={"optimiser": "sgd", "rate": 0.02, "steps": 3}).build_method()
    assert method.optimiser == Sgd(rate=0.02)
    assert method.work == Work(steps=3, batch=64)
    assert Experiment(method="safari", training={"epochs": 2}).build_method().work == Work(epochs=2, batch=64)


def test_a_lossy_run_records_what_stood_in() -> None:
    values: dict[str, Any] = {"partition": "groups", "clients": 10, "rounds": 6, "fleet": "equal", "seed": 2}
    experiment = Experiment(method="safari", channel={"name": "bernoulli", "settings": {"up": 0.5}}, **values)
    result = run(experiment)
    for row in result.rounds:
        assert row["repair.stand_ins"] + row["repair.by_mean"] == 10 - row["arrived"]
        assert row["repair.overlap"] == 1
    assert any(row["repair.same_group"] >= 0.8 for row in result.rounds)
    table = result.kept["repair.distance"]
    assert table.shape == (10, 10)
    assert torch.equal(table.nan_to_num(-1), table.T.nan_to_num(-1))
    one, other = table[:5, :5].nanmean(), table[:5, 5:].nanmean()
    assert one < other  # alike within a group
