"""PruneFL: FedAvg where nothing is pruned, true dense gradients, zeros that stay zeros, values that come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedloom.core.optimiser import Adam, Sgd
from fedloom.core.types import Batch, Reply
from fedloom.core.work import Work
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.errors import BadExperiment
from fedloom.methods.fedavg import fedavg
from fedloom.methods.prunefl import prunefl
from fedloom.parts.mask.pruned_by_time import PrunedByTime
from worlds import assert_close, played, small, world

PRUNING = small(prunefl(every=2, remove=0.6, constant=0.0))


@pytest.mark.parametrize("network", ["mlp", "normed"])
def test_without_pruning_it_is_fedavg(network: str) -> None:
    whole = played(network, small(prunefl(every=1, remove=0.0))).model
    assert_close({"": whole}, {"": played(network, small(fedavg())).model}, 2e-6)


def test_what_is_pruned_is_zero_everywhere() -> None:
    run = played("normed", PRUNING, 4)
    mask = run.memory["mask"]["mask"]
    assert int((~mask).sum()) > 0
    assert not run.model[~mask].any()
    assert run.models[0].all()
    last = run.tasks[2].mask
    assert last is not None
    assert not (run.replies[2].params[~last]).any()
    assert run.tasks[0].mask is None


def test_squares_are_of_dense_gradients() -> None:
    here, one = world("mlp"), Work(steps=1, batch=0)
    run = played("mlp", replace(PRUNING, work=one), 4)
    task, reply = run.tasks[3], run.replies[3]  # the second report: of rounds 3 and 4
    assert task.mask is not None
    assert not task.mask.all()
    both = [client for client in reply.ids.tolist() if client in run.tasks[2].ids.tolist()]  # type: ignore[union-attr]
    assert both
    for client in both:
        total = torch.zeros_like(task.model)
        for past in run.tasks[2:]:
            assert past.mask is not None
            rows = here.shards.examples[sum(here.shards.sizes[:client]) :][: here.shards.sizes[client]]
            weight = torch.full((1, len(rows)), 1 / len(rows))
            batch = Batch(here.data.x[rows][None], here.data.y[rows][None], weight, torch.zeros(1, dtype=torch.int64))
            seen = torch.where(past.mask[0], past.model, 0)[None].clone()
            total += PlainGradient(here.setting)(seen, batch)[0][0].square()
        found = reply.extras["squares"][reply.ids.tolist().index(client)]
        torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-7)
        assert found[~task.mask[0]].any()


@pytest.mark.parametrize("regrow", ["last", "zero"])
def test_weights_come_back_with_their_last_value(regrow: str) -> None:
    here = world("mlp")
    part = PrunedByTime(every=1, remove=0.5, constant=0.0, regrow=regrow, seconds=(1.0, 1.0))  # type: ignore[arg-type]
    memory, model = part.init(here.setting, here.model), here.model
    run = played("mlp", small(prunefl(every=1)), 1)

    def settled(squares: torch.Tensor) -> torch.Tensor:
        nonlocal memory
        reply: Reply = run.replies[0]._replace(extras={"squares": squares.expand(len(run.replies[0].ids), -1)})
        new, memory = part.settle(memory, here.setting, model, reply)
        return new

    first = settled(torch.zeros_like(model))
    gone = ~memory["mask"]
    assert gone.any()
    model = first * 2
    second = settled(gone.float())
    assert memory["mask"][gone].all()
    assert torch.equal(second[gone], here.model[gone] if regrow == "last" else torch.zeros_like(second[gone]))


@pytest.mark.parametrize("optimiser", [Sgd(momentum=0.9), Sgd(clip=1.0), Sgd(weight_decay=0.1), Adam()], ids=repr)
def test_other_optimisers_are_refused(optimiser: Sgd) -> None:
    with pytest.raises(BadExperiment, match="SGD without momentum"):
        replace(prunefl(), optimiser=optimiser)
