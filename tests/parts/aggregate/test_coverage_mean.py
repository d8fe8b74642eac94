"""Means weighted by what clients' targets weigh."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from goal_worlds import goal_world

from fedloom import BadExperiment, Experiment, run
from fedloom.core.types import Reply
from fedloom.flower import strategy
from fedloom.goals import next_token
from fedloom.methods import fedavg, fedspu
from fedloom.parts import CoverageMean
from fedloom.parts.admit.finite import Finite
from fedloom.parts.admit.weight import Weight
from worlds import assert_close, everything, play, small, world


@pytest.mark.parametrize("case", ["next-token", "tokens", "tokens-per-token", "classes-weighted", "numbers"])
def test_clients_report_the_sum_of_their_targets_weights(case: str) -> None:
    here = goal_world(case)
    method = small(fedavg(), aggregate=CoverageMean("targets"))
    first = play(here, method, here.local(method), rounds=1)
    reply, weigh = first.replies[0], here.setting.goal.weigh
    own = here.shards.examples.split(here.shards.sizes)
    expected = [
        float(len(own[i]) if weigh is None else weigh(here.data.y[own[i]]).double().sum()) for i in reply.ids.tolist()
    ]
    assert reply.report["weight"].tolist() == pytest.approx(expected)
    share = torch.tensor(expected) / sum(expected)
    torch.testing.assert_close(first.model, share @ reply.params, rtol=0, atol=1e-6)


def test_engines_agree_and_sub_models_too() -> None:
    here = goal_world("next-token")
    for method in (small(fedavg()), small(fedspu())):
        method = replace(method, aggregate=CoverageMean("targets"))
        slow, fast = play(here, method, here.loop(method)), play(here, method, here.local(method))
        assert_close(everything(fast), everything(slow), 1e-5)


def test_it_is_chosen_by_name_and_shown_per_client(tmp_path) -> None:
    by = {"name": "mean", "settings": {"weigh": "targets"}}
    chosen = {"data": "shakespeare", "goal": "next-token", "rounds": 1, "per_round": 3, "training": {"steps": 1}}
    run(Experiment(**chosen, aggregate=by), out=tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    assert [row["weight"] > 40 * row["examples"] for row in rows] == [True] * 3  # characters, 48 at most in each
    run(Experiment(**chosen), out=tmp_path / "plain")
    assert "weight" not in pq.read_table(tmp_path / "plain" / "clients.parquet").column_names


def test_impossible_weights_are_refused() -> None:
    here = world("mlp")
    ids = torch.arange(3)
    claimed = {"examples": torch.ones(3), "loss": torch.ones(3), "weight": torch.tensor([1.0, torch.inf, torch.nan])}
    reply = Reply(ids, here.model.expand(3, -1), None, {}, claimed, torch.ones(3, dtype=torch.bool))
    for check in (Finite(), Weight()):
        refused, _ = check.judge(here.setting, here.model, None, reply)  # type: ignore[arg-type]
        assert refused.tolist() == [False, True, True]


def test_apps_of_ones_own_do_not_report_them() -> None:
    method = small(fedavg(), aggregate=CoverageMean("targets"))
    with pytest.raises(BadExperiment, match="weigh='examples'"):
        strategy(method, world("mlp").setting.module)
    assert next_token().weigh is not None
