"""One node whose replies are valid messages and harmful numbers: they are refused, counted and named."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedloom.core.types import Reply, Task
from fedloom.flower.node.hosted_clients import build_clients
from fedloom.flower.server.play import serve
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import inputs_of
from fedloom.runs.result import Result
from flower_fake import FakeGrid
from flower_world import NODES, config_of, fake, served, tiny, tiny_data, weights

BAD = 12  # the node that misbehaves; it hosts clients 3 and 4
Spoil = Callable[[Task, Reply], Reply]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


def attacked(grid: FakeGrid, experiment: Experiment, spoil: Spoil, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Run with a node that trains and then spoils its replies from round 2 on, before they are encoded."""
    text = str(config_of(experiment)["experiment"])
    hosted = build_clients(text, NODES[BAD]["clients"], "", None, inputs_of(experiment).widths)
    honest = hosted.engine.train

    def train(ids: torch.Tensor, task: Task, chance: object) -> Reply:
        reply = honest(ids, task, chance)  # type: ignore[arg-type]
        return spoil(task, reply) if task.round > 1 else reply

    monkeypatch.setattr(hosted.engine, "train", train)
    return served(grid, experiment)


def longer(times: float) -> Spoil:
    """An update so many times as long."""
    return lambda task, reply: reply._replace(params=task.model + times * (reply.params - task.model))


def all_of_it(task: Task, reply: Reply) -> Reply:
    """All numbers, whatever share is allowed."""
    return reply._replace(mask=None)


def extras(task: Task, reply: Reply) -> Reply:
    """Large numbers next to the weights."""
    return reply._replace(extras={name: value * 1e7 for name, value in reply.extras.items()})


CASES = {
    "norm": ("fedavg", longer(1e4)),
    "value": ("fedavg", longer(1e25)),
    "partial": ("fedspu", longer(1e4)),
    "extras": ("scaffold", extras),
    "share": ("feddd", all_of_it),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_counted_and_named(
    case: str, data: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    method, spoil = CASES[case]
    settings = {"settings": {"budget": 0.4}} if method == "feddd" else {}
    experiment = tiny(data, method={"name": method, **settings}, **({} if method == "feddd" else {"per_round": 8}))
    with caplog.at_level(logging.INFO, "fedloom"):
        found = attacked(fake(experiment), experiment, spoil, monkeypatch)
    reason = {"partial": "norm", "extras": "norm"}.get(case, case)
    assert found.rejected == {reason: 4}  # two clients in two rounds
    lines = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
    assert len(lines) == 4  # each once
    for client in (3, 4):
        for number in (2, 3):
            wanted = f"a reply of client {client} in round {number} was refused: {reason}; it is from node {BAD}"
            assert wanted in lines
    assert [row["arrived"] for row in found.rounds] == [8, 6, 6]
    assert weights(found).isfinite().all()


def test_refused_replies_change_nothing_but_their_absence(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(data, method="fedavg", per_round=8)
    ours = weights(attacked(fake(experiment), experiment, longer(1e4), monkeypatch))
    other = weights(attacked(fake(experiment), experiment, longer(1e6), monkeypatch))
    assert torch.equal(ours, other)


def test_who_wants_no_bound_says_so(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(data, method="fedavg", per_round=8, admit="finite")
    assert attacked(fake(experiment), experiment, longer(1e4), monkeypatch).rejected == {}


def test_a_resumed_run_goes_on_with_the_same_medians(data: str, tmp_path: Path) -> None:
    short, long = tiny(data, method="fedavg", rounds=2), tiny(data, method="fedavg", rounds=4)
    whole = served(fake(long), long)
    grid = fake(short)
    served(grid, short, out=str(tmp_path / "run"))
    found = serve(grid, config_of(long, out=str(tmp_path / "run"), resume=True), interval=0.005)  # type: ignore[arg-type]
    assert torch.equal(weights(found), weights(whole))
