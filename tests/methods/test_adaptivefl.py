"""AdaptiveFL: FedAvg with one whole network, distinct clients, tables from replies alone, nested networks."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedloom.chance import Chance
from fedloom.core.pool import Pool, channel_groups
from fedloom.method import Method
from fedloom.methods.adaptivefl import adaptivefl
from fedloom.parts.mask.from_pool import FromPool
from fedloom.parts.select.by_success import BySuccess
from pieces import Forced
from worlds import METHODS, played, small, world

HERE = dict(METHODS)["adaptivefl"]


def test_one_whole_network_is_fedavg() -> None:
    run = played("normed", replace(HERE(), select=BySuccess(Pool((), (0.5,)), 8), mask=FromPool(Pool((), (0.5,)))))
    cohorts = tuple(tuple(reply.ids.tolist()) for reply in run.replies)
    assert torch.equal(run.model, played("normed", small(Method(), select=Forced(cohorts))).model)


def test_shares_are_sizes_of_the_pool_and_clients_distinct() -> None:
    here, run = world("cnn"), played("cnn", HERE())
    sizes = Pool().sizes(here.setting.neurons)
    for task, reply in zip(run.tasks, run.replies):
        assert len(set(reply.ids.tolist())) == 8
        assert torch.isin(task.share, sizes).all()
        assert task.keep is not None
        size = here.setting.neurons.parameters(task.keep)
        torch.testing.assert_close(size.double() / len(here.model), task.share)
    assert not torch.equal(run.memory["select"]["success"], torch.ones(12, 7))


def test_tables_move_by_replies_that_arrived() -> None:
    here, part = world("cnn"), BySuccess(count=8)
    memory = part.init(here.setting, here.model)
    cohort, memory = part(memory, here.setting, Chance(1, 1))
    reply = played("cnn", HERE()).replies[0]._replace(ids=cohort.ids, arrived=torch.arange(8) < 3)
    after = part.observe(memory, here.setting, here.model, reply)
    changed = (after["asked"] != memory["asked"]).any(1).nonzero().flatten().tolist()
    assert changed == sorted(cohort.ids[:3].tolist())


def test_first_layers_of_channels_stay_whole() -> None:
    neurons = world("cnn").setting.neurons
    assert len(channel_groups(neurons)) == 2
    pool = Pool((0.5,), (0.0, 0.5, 1.0))
    keeps = pool.keeps(neurons)
    counts = [[int(keep[span].sum()) for _, span in neurons.spans(neurons.size)] for keep in keeps]
    assert counts == [[1, 2], [3, 2], [3, 4], [3, 4]]
    sizes = pool.sizes(neurons)
    assert sizes.tolist() == sorted(sizes.tolist())
    assert float(sizes[-1]) == 1


def test_a_small_fleet_takes_part_as_a_whole() -> None:
    here, part = world("mlp"), BySuccess(count=99)
    cohort, _ = part(part.init(here.setting, here.model), here.setting, Chance(1, 1))
    assert cohort.ids.tolist() == list(range(12))


def test_draws_without_learning_are_even() -> None:
    here = world("mlp")
    for learnt in (True, False):
        part = BySuccess(count=1, learnt=learnt)
        memory = part.init(here.setting, here.model)
        memory["success"][0, 1:] = 0
        memory["asked"][0] = 10_000
        drawn = [int(part(memory, here.setting, Chance(3, n))[0].ids) for n in range(200)]
        assert (drawn.count(0) < 3) == learnt
        assert len(set(drawn)) >= 11
    assert adaptivefl(learnt=False).select == BySuccess(learnt=False)
