"""DepthFL: FedAvg where nothing is cut, equal numbers in all engines, and clients that know nothing of later stages."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.rule import Traits
from fedloom.core.stages import depth_of, stage_of_each
from fedloom.core.types import Reply, Task
from fedloom.engine.facts import facts_of
from fedloom.errors import BadExperiment, BadModel
from fedloom.method import Method
from fedloom.methods.depthfl import depthfl
from fedloom.models.staged import Staged
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.exits import Exits
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from pieces import CLASSES
from worlds import World, assert_close, engine_of, everything, play, played, small, world, world_of

EQUAL = small(Method(aggregate=CoverageMean("uniform")))
METHOD = small(depthfl((1 / 3, 2 / 3, 1.0), ramp=2))


def network(norm: bool = False) -> Staged:
    """Three stages of a convolution or a dense layer."""
    widths = ((36, 6), (6, 5), (5, 4))
    norms = [[nn.BatchNorm1d(after)] if norm else [] for _, after in widths]
    blocks = [nn.Sequential(nn.Linear(*each), *more, nn.ReLU()) for each, more in zip(widths, norms)]
    blocks[0] = nn.Sequential(nn.Flatten(), *blocks[0])
    return Staged(blocks, [nn.Linear(after, CLASSES) for _, after in widths])


@cache
def here(norm: bool = False, dtype: torch.dtype = torch.float32) -> World:
    """A fleet around it."""
    data, shards = world("mlp", dtype).data, world("mlp").shards
    return world_of(network(norm), data, shards.examples.split(shards.sizes), dtype)


def test_a_network_without_stages_is_trained_whole() -> None:
    assert_close({"": played("normed", small(depthfl())).model}, {"": played("normed", EQUAL).model}, 2e-6)


@pytest.mark.parametrize("norm", [False, True])
def test_full_depth_without_distillation_is_fedavg_on_the_sum_of_losses(norm: bool) -> None:
    place = here(norm, torch.float64)  # in single precision batch norms amplify rounding
    full, plain = small(depthfl((1.0,), distil=False)), EQUAL
    found, wanted = (play(place, method, place.local(method)).model for method in (full, plain))
    assert_close({"": found}, {"": wanted}, 1e-12)
    taught = small(depthfl((1.0,), ramp=1))
    assert not torch.equal(play(place, taught, place.local(taught)).model, found)


@pytest.mark.parametrize("norm", [False, True])
def test_engines_agree(norm: bool) -> None:
    place = here(norm)
    slow = play(place, METHOD, place.loop(METHOD))
    for chunk in (None, 1, 5):
        fast = play(place, METHOD, place.local(METHOD, chunk))
        assert_close(everything(fast), everything(slow), 1e-5)
        for ours, theirs in zip(fast.replies, slow.replies):
            assert_close(ours.report, theirs.report, 1e-5)


def test_later_stages_are_neither_read_nor_moved() -> None:
    place, model = here(), here().model
    engine = place.local(METHOD)

    def send(ids: Tensor, task: Task, chance: Chance) -> Reply:
        assert task.mask is not None
        replies = []
        for row in range(len(ids)):
            one = task.rows(slice(row, row + 1))
            assert one.mask is not None
            spoiled = one._replace(model=torch.where(one.mask[0], task.model, torch.nan))
            reply = engine.train(ids[row : row + 1], spoiled, chance)
            assert reply.mask is not None
            assert reply.params[reply.mask].isfinite().all()
            replies.append(reply)
        return Reply.cat(replies)._replace(ids=ids, arrived=task.authorised)

    found = play(place, METHOD, engine_of(send))
    assert_close({"": found.model}, {"": play(place, METHOD, place.local(METHOD)).model}, 1e-6)
    stage = stage_of_each(place.setting.stages, place.setting.layout, model.device)
    for task in found.tasks:
        assert torch.equal(task.mask, stage <= depth_of(task.share, 3)[:, None])  # type: ignore[arg-type]


def test_depths_of_shares() -> None:
    shares = torch.tensor([0.01, 1 / 3, 0.34, 2 / 3, 0.99, 1.0])
    assert depth_of(shares, 3).tolist() == [1, 1, 2, 2, 3, 3]
    assert depth_of(shares, 1).tolist() == [1] * 6


def test_a_gpu_captures_no_objective_that_changes() -> None:
    place = here()
    facts = facts_of(place.clients(METHOD), place.local(METHOD).gradient, captured=True)
    assert not facts.captured
    assert "objective" in facts.no_graph


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadExperiment, match="Exits and Exits each say what to minimise"):
        replace(METHOD, local=Chain((METHOD.local, Exits())))
    with pytest.raises(BadExperiment, match="aims=True but corrects=False"):
        Traits(aims=True)
    with pytest.raises(BadExperiment, match="1 blocks and 2 exits"):
        Staged([nn.ReLU()], [nn.ReLU(), nn.ReLU()])
    with pytest.raises(BadModel, match=r"'blocks\.0\.1\.weight' is in 0 of the network's stages"):
        stage_of_each((), here().setting.layout, torch.device("cpu"))


def test_by_name() -> None:
    result = run(Experiment(method="depthfl", model="mlp-exits", clients=8, rounds=2))
    assert len(result.rounds) == 2
    assert result.rounds[0]["bytes_down"] > 0
    whole = run(Experiment(method="fedavg", model="mlp-exits", clients=8, rounds=2))
    assert result.rounds[0]["bytes_up"] < whole.rounds[0]["bytes_up"]
