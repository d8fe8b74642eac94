"""Which runs are trained together, that each comes out as alone, and how such a group ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.data.load import load
from fedloom.errors import RunStopped
from fedloom.runs.build import Prepared, prepare
from fedloom.runs.coroutine_thread import CoroutineThread
from fedloom.runs.experiment import Experiment
from fedloom.runs.many_runs import in_step, most_together, play_together, run_all
from fedloom.runs.play import Result, run
from fedloom.studies.compare import compare

SMALL: dict[str, Any] = {"clients": 12, "per_round": 4, "rounds": 4, "training": {"epochs": 1}}
WORLD: dict[str, Any] = {
    "fleet": "table4",
    "channel": {"name": "bernoulli", "settings": {"up": 0.4, "down": 0.3}},
    "codec": {"values": "int8", "feedback": True},
}


ODD = """
import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(64, 10)
        self.turn = torch.rand(64)  # drawn by the seed, and no parameter

    def forward(self, x):
        return self.line(x.flatten(1) * self.turn)
"""


def seeded(count: int, **values: Any) -> list[Experiment]:
    return [Experiment(**{**SMALL, **values}, seed=seed) for seed in range(count)]


def together(experiments: list[Experiment]) -> tuple[list[Result], list[str]]:
    notes: list[str] = []
    return run_all(experiments, [None] * len(experiments), tell=notes.append), notes


def assert_same(ours: Result, theirs: Result) -> None:
    """All that a run says but the seconds it took."""
    assert ours.experiment == theirs.experiment
    for mine, their in zip(ours.rounds, theirs.rounds, strict=True):
        assert mine.keys() == their.keys()
        for name in mine.keys() - {"wall_seconds", "evaluation_seconds", "personal_seconds"}:
            mine_, their_ = (np.array(row[name], dtype=float) for row in (mine, their))
            np.testing.assert_allclose(mine_, their_, rtol=1e-4, atol=1e-5, err_msg=name)
    for name, value in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "values", [{}, WORLD | {"codec": {}}, {"split": (0.6, 0.2, 0.2)}], ids=["bare", "world", "own"]
)
def test_seeds_come_out_as_alone(values: dict[str, Any]) -> None:
    experiments = [*seeded(3, **values), *seeded(2, **values, method="scaffold"), *seeded(1, **values, rounds=2)]
    found, notes = together(experiments)
    assert notes == ["4 runs are trained together: fedavg", "2 runs are trained together: scaffold"]
    for ours, experiment in zip(found, experiments):
        assert_same(ours, run(experiment))


def test_lossy_codecs_and_worlds_of_their_own() -> None:
    found, notes = together([*seeded(2, **WORLD), *seeded(1, **WORLD, method="fedcs", per_round=None)])
    assert notes == ["3 runs are trained together: fedavg, fedcs"]
    for one in found:
        apart = run(one.experiment)
        assert [row["arrived"] for row in one.rounds] == [row["arrived"] for row in apart.rounds]
        assert [row["virtual_seconds"] for row in one.rounds] == [row["virtual_seconds"] for row in apart.rounds]


def test_what_is_not_alike_runs_by_itself() -> None:
    kinds = [
        {},
        {"model": {"name": "mlp", "settings": {"widths": [20]}}},
        {"engine": "loop"},
        {"training": {"rate": 0.2}},
    ]
    found, notes = together([Experiment(**{**SMALL, "rounds": 1, **kind}) for kind in kinds])
    assert len(found) == 4
    assert not notes


def test_stacking_may_be_left_out() -> None:
    notes: list[str] = []
    told: list[int] = []
    experiment = Experiment(**SMALL)
    compare({"a": experiment}, (0, 1), lambda _, seed, row: told.append(seed), False, notes.append)
    assert told == [0] * 4 + [1] * 4
    assert not notes


def test_networks_that_differ_in_more_than_weights_are_told_apart(tmp_path: Any) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    experiments = seeded(2, model=f"{tmp_path}/odd.py:Odd")
    found, _ = together(experiments)
    for ours, experiment in zip(found, experiments):
        assert_same(ours, run(experiment))


def test_how_many_fit() -> None:
    small = prepare(Experiment(**SMALL))
    room, why = most_together(small)
    assert room == 2**23 / (4 * 4 * small.inputs.setting.layout.total)
    assert "cache" in why
    assert most_together(prepare(Experiment(**SMALL, chunk=9)))[0] == 9 / 4
    wide = prepare(Experiment(**{**SMALL, "model": {"name": "mlp", "settings": {"widths": [20_000]}}}))
    assert most_together(wide)[0] == 1


def test_groups_of_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.runs.many_runs.most_together", lambda run: (2, "so"))
    found, notes = together(seeded(5, rounds=1))
    assert [one.experiment.seed for one in found] == [0, 1, 2, 3, 4]
    assert (
        notes == ["2 runs are trained together: fedavg", "runs of fedavg are trained one by one: so"] or len(notes) == 1
    )
    monkeypatch.setattr("fedloom.runs.many_runs.most_together", lambda run: (1, "so"))
    assert together(seeded(3, rounds=1))[1] == ["runs of fedavg are trained one by one: so"]


OWN_RULE = """
from dataclasses import dataclass

from fedloom import Method
from fedloom.core.rule import LocalRule, Traits


@dataclass(frozen=True)
class Homesick(LocalRule):
    @property
    def traits(self):
        return Traits(corrects=True)

    def correct(self, task, state, first, params, grads):
        return grads + 0.1 * (params - task.model)


def mine():
    return Method(local=Homesick())
"""


def test_rules_that_may_read_the_global_model_run_by_themselves(tmp_path: Any) -> None:
    (tmp_path / "mine.py").write_text(OWN_RULE)
    found, notes = together(seeded(2, method=f"{tmp_path}/mine.py:mine", rounds=2))
    assert len(notes) == 1
    assert "one by one: Homesick may read the global model" in notes[0]
    assert_same(found[1], run(found[1].experiment))


def test_large_cohorts_take_more_of_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = seeded(3, rounds=1), seeded(3, rounds=1, per_round=12)
    monkeypatch.setattr("fedloom.runs.many_runs.CACHE", 4 * 13_614 * 28)
    assert prepare(few[0]).inputs.setting.layout.total == 13_614
    _, notes = together([many[0], few[0], many[1], few[1]])
    assert notes == ["3 runs are trained together: fedavg"], "12 + 4 + 12 clients; 4 are left over"


def group(watch: Any, count: int = 3, **values: Any) -> tuple[list[Experiment], list[Prepared], list[Any]]:
    experiments, data = seeded(count, **values), load("digits")
    runs = [prepare(experiments[0], data=data)]
    runs += [prepare(one, data=data, sibling=runs[0]) for one in experiments[1:]]
    return experiments, runs, [None, watch, None][:count]


@pytest.mark.parametrize("problem", [RunStopped("enough"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_one_that_fails_ends_all(problem: BaseException) -> None:
    def watch(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise problem

    threads = threading.active_count()
    with pytest.raises(type(problem)) as raised:
        play_together(*group(watch))
    assert raised.value is problem
    assert threading.active_count() == threads, "nobody is left behind"


def test_ctrl_c_ends_all() -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        play_together(*group(lambda row: os.kill(os.getpid(), signal.SIGINT), rounds=40))
    assert threading.active_count() == threads


def test_training_that_fails_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.active_count()
    monkeypatch.setattr("fedloom.engine.joint.learn_jointly", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        play_together(*group(None))
    assert threading.active_count() == threads


def test_who_ends_early_holds_nobody_up() -> None:
    values = {"method": {"name": "fedspu", "settings": {"early_stopping": True}}, "split": (0.6, 0, 0.4), "rounds": 30}
    values |= {"training": {"rate": 3.0, "epochs": 1}, "clients": 4, "per_round": 4}
    found, notes = together(seeded(3, **values))
    assert notes
    ends = [len(one.rounds) for one in found]
    assert min(ends) < 30, "or this shows nothing"
    for one in found:
        assert len(run(one.experiment).rounds) == len(one.rounds)


def test_seconds_are_shared() -> None:
    facts = group(None)
    began = time.perf_counter()
    found = play_together(*facts)
    whole = time.perf_counter() - began
    assert sum(one.wall_seconds for one in found) <= whole
    assert sum(one.wall_seconds for one in found) > 0.5 * whole
    assert all(0 < row["wall_seconds"] < whole for one in found for row in one.rounds)


def test_threads_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    play_together(*group(None))
    assert torch.get_num_threads() == before


# ---- threads


def test_a_thread_asks_and_goes_on() -> None:
    thread: CoroutineThread[int, int, int] = CoroutineThread(lambda own: sum(own.ask(n) for n in range(3)))
    asked = thread.begin()
    seen = []
    while asked is not None:
        seen.append(asked)
        asked = thread.answer(10 * asked)
    assert seen == [0, 1, 2]
    assert thread.result == 30


def test_its_clock_stands_still_while_it_waits() -> None:
    def call(own: CoroutineThread[int, int, float]) -> float:
        began = own.clock()
        own.ask(0)
        own.charge(5.0)
        return own.clock() - began

    thread = CoroutineThread(call)
    thread.begin()
    time.sleep(0.3)
    assert thread.answer(1) is None
    assert 5.0 <= thread.result < 5.2


def test_one_that_never_asks() -> None:
    assert in_step([]) == []
    thread: CoroutineThread[int, int, str] = CoroutineThread(lambda own: "done")
    assert thread.begin() is None
    assert thread.result == "done"
    thread.abandon()
