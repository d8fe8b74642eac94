"""Rounds without a barrier on nodes: what counts, what does not, and that a recorded order is the simulator's run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from flwr.app import Message

from fedloom.core.flight import ARRIVED, FATES, IN_FLIGHT
from fedloom.errors import BadData
from fedloom.flower.protocol.records import unpack
from fedloom.flower.server.replay import replay
from fedloom.runs.experiment import Experiment
from flower_fake import FakeGrid
from flower_world import fake, served, tiny, tiny_data, weights

METHODS = """
from dataclasses import replace
from fedloom.methods import fedavg, feddd, fedspu, fjord, scaffold
from fedloom.parts import AsChange, Buffered, Polynomial, Windowed

STALE = AsChange(Polynomial(0.5))

def buffered_fedavg(): return replace(fedavg(), pace=Buffered(2, 3), stale=STALE)
def buffered_scaffold(): return replace(scaffold(), pace=Buffered(2, 3), stale=STALE)
def buffered_fedspu(): return replace(fedspu(), pace=Buffered(2, 3), stale=STALE)
def buffered_fjord(): return replace(fjord(), pace=Buffered(2, 3), stale=STALE)
def stepped_feddd(): return replace(feddd(), pace=Buffered(2, 4, refill="step"), stale=STALE)
def hurried(): return replace(fedavg(), pace=Buffered(1, 3, timeout=0.3), stale=STALE)
def hurried_for_good(): return replace(fedavg(), pace=Buffered(1, 3, timeout=0.3, late=False), stale=STALE)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("methods") / "streams.py"
    file.write_text(METHODS)
    return file


class Slow(FakeGrid):
    """A grid whose answers to tasks take as long as `seconds` says, by their number and node."""

    def __init__(self, like: FakeGrid, seconds: Callable[[int, int], float]) -> None:
        self.__dict__ |= like.__dict__
        self.seconds, self.ready, self.count = seconds, dict[str, float](), 0

    def _push(self, message: Message) -> str:
        name, extra = super()._push(message), 0.0
        if message.metadata.message_type == "train":
            extra, self.count = self.seconds(self.count, message.metadata.dst_node_id), self.count + 1
        self.ready[name] = time.monotonic() + extra
        return name

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        return super().pull_messages([name for name in names if time.monotonic() >= self.ready[name]])


def streamed(data: str, methods: Path, name: str, **changes: Any) -> Experiment:
    return tiny(data, method=f"{methods}:{name}", **{"rounds": 6, **changes})


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The tasks that steps have closed."""
    found: list[dict[str, Any]] = pq.read_table(folder / "clients.parquet").to_pylist()
    return [row for row in found if row["fate"] != IN_FLIGHT]


NAMES = ["buffered_fedavg", "buffered_scaffold", "buffered_fedspu", "buffered_fjord", "stepped_feddd"]


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_of_tasks_ends(data: str, methods: Path, name: str, tmp_path: Path) -> None:
    experiment = streamed(data, methods, name)
    grid = Slow(fake(experiment), lambda number, node: 0.02 * (node - 10))
    result = served(grid, experiment, out=str(tmp_path / "run"))
    rows = rows_of(tmp_path / "run")
    assert [row["round"] for row in result.rounds] == list(range(1, 7))
    assert all(row["arrived"] == 2 for row in result.rounds)
    assert len({row["serial"] for row in rows}) == len(rows) == 12  # one row a task
    assert all(row["base"] < row["round"] for row in rows)
    assert max(row["staleness"] for row in rows) > 0 or name == "stepped_feddd"
    assert all(row["bytes_up"] > 0 and row["bytes_down"] > 0 for row in rows)
    assert sum(row["virtual_seconds"] for row in result.rounds) > 0


def test_a_node_has_one_task_at_a_time(data: str, methods: Path) -> None:
    experiment = streamed(data, methods, "buffered_fedavg")
    grid = Slow(fake(experiment), lambda number, node: 0.05)
    served(grid, experiment)
    tasks = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert all(len(unpack(message.content).payloads) == 1 for message in tasks)
    assert [unpack(message.content).facts["serial"] for message in tasks] == list(range(len(tasks)))


def test_a_late_reply_counts_unless_told_otherwise(data: str, methods: Path, tmp_path: Path) -> None:
    for name in ("hurried", "hurried_for_good"):
        experiment = streamed(data, methods, name, rounds=24)
        grid = Slow(fake(experiment), lambda number, node: 1.0 if node == 12 else 0.1)
        result = served(grid, experiment, out=str(tmp_path / name))
        fates = {FATES[row["fate"]] for row in rows_of(tmp_path / name)}
        slow = [r for r in rows_of(tmp_path / name) if r["client"] in (3, 4) and r["fate"] == ARRIVED]
        if name == "hurried":
            assert fates == {"arrived"}
            assert slow
            assert max(row["staleness"] for row in slow) > 2
        else:
            assert fates == {"arrived", "given up"}
            assert not slow
            assert sum(row.get("rejected.late") or 0 for row in result.rounds) > 0


def test_a_node_that_vanishes_loses_its_task_and_comes_back(data: str, methods: Path, tmp_path: Path) -> None:
    experiment = streamed(data, methods, "buffered_fedavg", rounds=16)
    grid = Slow(fake(experiment), lambda number, node: 0.3)
    times: dict[str, float] = {}

    def before(node: int, message: Message) -> None:
        if message.metadata.message_type == "train":
            if len(grid.sent) > 8 and "gone" not in times:
                times["gone"] = time.monotonic()
                grid.down.add(12)
            if "gone" in times and time.monotonic() > times["gone"] + 5:
                grid.down.discard(12)

    grid.before = before
    served(grid, experiment, out=str(tmp_path / "run"))
    rows = rows_of(tmp_path / "run")
    lost = [row for row in rows if row["fate"] != ARRIVED]
    assert {row["client"] for row in lost} <= {3, 4}
    assert len(lost) <= 2
    assert len({row["serial"] for row in rows}) == len(rows)


def test_duplicates_count_once(data: str, methods: Path, tmp_path: Path) -> None:
    experiment = streamed(data, methods, "buffered_fedavg")
    grid = fake(experiment)
    grid.fault = lambda node, message, answer: [answer, answer]
    result = served(grid, experiment, out=str(tmp_path / "run"))
    rows = rows_of(tmp_path / "run")
    assert all(row["arrived"] == 2 for row in result.rounds)
    assert len({row["serial"] for row in rows}) == len(rows)


def test_an_answer_to_another_task_is_refused(data: str, methods: Path, tmp_path: Path) -> None:
    experiment = streamed(data, methods, "buffered_fedavg", rounds=5)
    grid, before = fake(experiment), list[Message]()

    def fault(node: int, message: Message, answer: Message) -> list[Message]:
        if message.metadata.message_type == "train" and node == 12:
            before.append(answer)
            old = before[0]
            if old is not answer:  # what it said the first time, in answer to this message
                answer.content = old.content
        return [answer]

    grid.fault = fault
    result = served(grid, experiment, out=str(tmp_path / "run"))
    refused = {key for row in result.rounds for key, count in row.items() if key.startswith("rejected.") and count}
    assert len(before) > 1
    assert refused <= {"rejected.round", "rejected.base", "rejected.client"}
    assert refused
    assert torch.isfinite(weights(result)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_run_is_replayed_in_the_simulator(data: str, methods: Path, name: str, tmp_path: Path) -> None:
    experiment = streamed(data, methods, name, rounds=8)
    grid, lost = Slow(fake(experiment), lambda number, node: 0.01 * (number * 7 % 11)), 0

    def fault(node: int, message: Message, answer: Message) -> list[Message]:
        nonlocal lost
        if message.metadata.message_type == "train" and node == 13 and name != "stepped_feddd":  # which would wait
            lost += 1
            return [] if lost == 2 else [answer]
        return [answer]

    grid.fault = fault
    result = served(grid, experiment, out=str(tmp_path / "run"))
    replayed = replay(tmp_path / "run")
    torch.testing.assert_close(weights(replayed.result), weights(result), rtol=0, atol=1e-5)
    assert replayed.difference < 1e-5
    assert [row["arrived"] for row in replayed.result.rounds] == [row["arrived"] for row in result.rounds]


def test_a_run_with_a_barrier_is_not_replayed(data: str, tmp_path: Path) -> None:
    experiment = tiny(data, method="fedavg", rounds=1)
    served(fake(experiment), experiment, out=str(tmp_path / "run"))
    with pytest.raises(BadData, match="the run had a barrier"):
        replay(tmp_path / "run")


@pytest.mark.parametrize("name", ["buffered_fedavg", "buffered_scaffold", "buffered_fedspu", "stepped_feddd"])
@pytest.mark.parametrize("at", [1, 6, 11])
def test_a_server_that_was_killed_goes_on_with_what_was_in_flight(
    data: str, methods: Path, name: str, at: int, tmp_path: Path
) -> None:
    experiment, folder = streamed(data, methods, name, rounds=8), tmp_path / "run"
    grid, sent = Slow(fake(experiment), lambda number, node: 0.01 * (number * 7 % 11)), 0

    def before(node: int, message: Message) -> None:
        nonlocal sent
        sent += message.metadata.message_type == "train"
        if sent == at + 1:
            raise SystemExit("killed")

    grid.before = before
    with pytest.raises(SystemExit):
        served(grid, experiment, out=str(folder))
    grid.before = None
    result = served(grid, experiment, out=str(folder), resume=True)
    rows = rows_of(folder)
    assert len(result.rounds) == 8
    assert len({row["serial"] for row in rows}) == len(rows)
    assert sum(row["arrived"] for row in result.rounds) == sum(row["arrived"] for row in rows) == 16
    assert replay(folder).difference < 1e-5
