"""Rounds end when they can: an early end, stragglers that sit out, and nodes that are asked again who they host."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import Error

from fedloom.errors import BadExperiment, RunStopped
from fedloom.flower.protocol.records import FACTS, NodeMessage, Payload, pack, unpack
from fedloom.flower.protocol.said import said
from fedloom.flower.server import closing as rule
from fedloom.flower.server.closing import Bench, Closing
from fedloom.runs.experiment import Experiment
from flower_fake import FakeGrid
from flower_world import fake, served, tiny, tiny_data

SLOW = 12  # a node that hosts two of eight clients


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def experiment(data: str) -> Experiment:
    return tiny(data, method="fedavg", per_round=8, rounds=6)


class Slow(FakeGrid):
    """A grid whose node `SLOW` takes some seconds to answer a task."""

    def __init__(self, like: FakeGrid, seconds: float) -> None:
        self.__dict__ |= like.__dict__
        self.seconds, self.ready = seconds, dict[str, float]()

    def _push(self, message: Message) -> str:
        name = super()._push(message)
        slow = message.metadata.dst_node_id == SLOW and message.metadata.message_type == "train"
        self.ready[name] = time.monotonic() + (self.seconds if slow else 0)
        return name

    def pull_messages(self, names: list[str]) -> list[Message]:  # type: ignore[override]
        return super().pull_messages([name for name in names if time.monotonic() >= self.ready[name]])


def training(message: Message) -> bool:
    return message.metadata.message_type == "train"


def test_the_rule() -> None:
    """Most nodes, half of the clients, and three times the median, which counts those that are not there."""
    closing = Closing(slack=3.0, share=0.5, least=1.0)
    assert not closing.over(4, [2.0, 2.0], 8, 6, 100.0)  # two nodes of four: there is no median
    assert not closing.over(2, [2.0], 8, 6, 100.0)
    assert not closing.over(4, [4.0, 1.0, 2.0], 8, 4, 11.9)
    assert closing.over(4, [4.0, 1.0, 2.0], 8, 4, 12.0)
    assert closing.over(5, [9.0, 2.0, 4.0], 8, 4, 27.0)
    assert not closing.over(5, [9.0, 2.0, 4.0], 8, 4, 26.9)
    assert not closing.over(5, [9.0, 2.0, 4.0], 8, 3, 100.0)  # too few clients
    assert not closing.over(0, [], 0, 0, 100.0)
    assert not closing._replace(slack=0.0).over(5, [9.0, 2.0, 4.0], 8, 8, 1e9)
    assert not closing._replace(least=30.0).over(5, [9.0, 2.0, 4.0], 8, 4, 29.9)


def test_the_bench() -> None:
    bench = Bench()
    assert [bench.miss(5, number) for number in (1, 3, 6, 11, 20, 37)] == [1, 2, 4, 8, 16, 16]
    assert bench.sitting(53) == {5}
    assert bench.sitting(54) == set()
    bench.forgive(5)
    assert bench.sitting(38) == set()
    assert bench.miss(5, 60) == 1


def test_one_slow_node_does_not_hold_up_rounds(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is waited for in rounds 1, 3 and 6, and sits out the one and the two in between."""
    found = served(Slow(fake(experiment), 2.0), experiment, slack=3.0, **quick(monkeypatch))
    assert [row["arrived"] for row in found.rounds] == [6] * 6
    assert all(row["wall_seconds"] < 1.5 for row in found.rounds)
    told = [line.split(" within")[0] for line in caplog.messages if "sits out" in line]
    assert told == [f"node 12 did not answer round {number}" for number in (1, 3, 6)]


def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Rounds may end within a second."""
    usual = Closing.over
    monkeypatch.setattr(Closing, "over", lambda self, *facts: usual(self._replace(least=0.2), *facts))
    assert rule.LEAST == 6.0
    return {}


def test_a_node_that_is_in_time_again_stays(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Slow(fake(experiment), 1.0)

    def before(node: int, message: Message) -> None:
        if training(message) and unpack(message.content).facts["round"] > 1:
            grid.seconds = 0.0

    grid.before = before
    found = served(grid, experiment, slack=3.0, **quick(monkeypatch))
    assert [row["arrived"] for row in found.rounds] == [6, 6, 8, 8, 8, 8]


def test_without_slack_a_round_waits(experiment: Experiment) -> None:
    found = served(Slow(fake(experiment), 1.0), Experiment(**{**experiment.model_dump(), "rounds": 1}))
    assert found.rounds[0]["arrived"] == 8
    assert found.rounds[0]["wall_seconds"] >= 1.0


def test_a_failure_is_not_waited_for(experiment: Experiment) -> None:
    """A node that answers with an error is out of the round at once, and is asked again whom it hosts."""
    grid = fake(experiment)
    grid.fault = lambda node, asked, answer: (
        [Message(Error(code=0, reason="killed\x1b[2J"), reply_to=asked)]
        if node == SLOW and training(asked) and unpack(asked.content).facts["round"] == 2
        else [answer]
    )
    found = served(grid, experiment)
    assert [row["arrived"] for row in found.rounds] == [8, 6, 8, 8, 8, 8]
    assert found.rounds[1]["wall_seconds"] < 1.0
    asked = [message.metadata.dst_node_id for message in grid.sent if message.metadata.message_type == "query"]
    assert sorted(asked) == [11, 12, 12, 13]


def test_a_node_that_began_anew_is_asked_again(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was killed and started between two looks, and no longer hosts client 4."""
    monkeypatch.setenv("FEDLOOM_NODE_LIFE", "one")
    grid = fake(experiment)

    def before(node: int, message: Message) -> None:
        if training(message) and unpack(message.content).facts["round"] == 2:
            monkeypatch.setenv("FEDLOOM_NODE_LIFE", "another" if node == SLOW else "one")
            grid.contexts[SLOW].node_config["clients"] = "3"

    grid.before = before
    found = served(grid, experiment)
    assert "node 12 no longer hosts clients [4]" in caplog.text
    assert found.rounds[-1]["arrived"] == 7


def test_an_unanswered_hello_is_sent_again(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node died with the question; it is asked once more."""
    monkeypatch.setattr("fedloom.flower.server.roster.ASK_AGAIN", 0.1)
    monkeypatch.setattr("fedloom.flower.server.roster.LOOK_EVERY", 0.1)
    grid, lost = fake(experiment), list[int]()

    def fault(node: int, asked: Message, answer: Message) -> list[Message]:
        if node == SLOW and not training(asked) and not lost:
            lost.append(node)
            return []
        return [answer]

    grid.fault = fault
    assert [row["arrived"] for row in served(grid, experiment).rounds] == [8] * 6


def test_a_round_waits_for_somebody(experiment: Experiment) -> None:
    """All nodes are away when a round begins: no rounds are spent on nobody."""
    grid = fake(experiment)
    back = [0.0]

    def before(node: int, message: Message) -> None:
        if training(message) and unpack(message.content).facts["round"] == 2 and not back[0]:
            grid.down |= set(grid.contexts)
            back[0] = time.monotonic() + 3.0

    grid.before = before
    usual = grid.get_node_ids

    def nodes() -> list[int]:
        if back[0] and time.monotonic() > back[0]:
            grid.down.clear()
        return usual()

    grid.get_node_ids = nodes  # type: ignore[method-assign]
    found = served(grid, experiment, deadline=8.0)
    arrived = [row["arrived"] for row in found.rounds]
    assert arrived[0] == 8
    assert arrived[2:] == [8, 8, 8, 8]


def test_terms_are_checked(experiment: Experiment) -> None:
    for name, value in (("slack", 0.5), ("slack", -1.0), ("close-at", 0.0), ("start-with", 1.5)):
        with pytest.raises(BadExperiment, match=name):
            served(fake(experiment), experiment, **{name: value})


def test_what_a_node_says_is_one_line() -> None:
    assert said("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
    assert said("é 模型") == "é 模型"
    assert said("\ud800") == "\\ud800"
    long = said("x" * 10_000)
    assert long == f"{'x' * 200}... (10000 characters)"
    assert len(said("\x00" * 10_000)) < 450


def test_a_nodes_text_does_not_reach_the_log_as_it_is(experiment: Experiment, caplog: pytest.LogCaptureFixture) -> None:
    bad = "x\n2026 INFO round 9: 8 of 8 replies\x1b[2J" + "y" * 100_000
    grid = fake(experiment)
    turns = {
        1: lambda asked, answer: Message(pack(NodeMessage({"refused": bad}, [])), reply_to=asked),
        2: lambda asked, answer: Message(
            pack(NodeMessage({}, [Payload({"client": 3, "refused": bad})])), reply_to=asked
        ),
        3: lambda asked, answer: Message(RecordDict({bad: ConfigRecord({})}), reply_to=asked),
        4: lambda asked, answer: Message(Error(code=0, reason=bad), reply_to=asked),
        5: lambda asked, answer: Message(
            pack(NodeMessage({}, [Payload({"client": 3, "form": bad}, b"x")])), reply_to=asked
        ),
    }

    def fault(node: int, asked: Message, answer: Message) -> list[Message]:
        turn = turns.get(unpack(asked.content).facts["round"]) if node == SLOW and training(asked) else None
        return [answer if turn is None else turn(asked, answer)]

    grid.fault = fault
    served(grid, experiment)
    assert all("\n" not in line and "\x1b" not in line for line in caplog.messages)
    assert max(map(len, caplog.messages)) < 1500


def test_items_are_bounded(experiment: Experiment) -> None:
    """A message with more items than could be is refused before any of them is looked at."""
    grid = fake(experiment)
    grid.fault = lambda node, asked, answer: (
        [Message(pack(NodeMessage({}, [Payload({"client": 3})] * 13)), reply_to=asked)]
        if node == SLOW and training(asked)
        else [answer]
    )
    found = served(grid, experiment)
    assert {row["rejected.header"] for row in found.rounds} == {2}
    text = '{"facts":{},"items":[' + ",".join(["{}"] * 400_000) + "]}"
    grid.fault = lambda node, asked, answer: (
        [Message(RecordDict({FACTS: ConfigRecord({"json": text})}), reply_to=asked)]
        if node == SLOW and training(asked)
        else [answer]
    )
    assert {row["rejected.header"] for row in served(grid, experiment).rounds} == {2}


def test_a_lost_database_is_said(experiment: Experiment, tmp_path: Path) -> None:
    """The link answers 500 to everything; the run's log and its error say what may be the matter."""
    grid = fake(experiment)

    def before(node: int, message: Message) -> None:
        if training(message) and unpack(message.content).facts["round"] == 2:
            answer = httpx.Response(500, text="no such table:\nnode", request=httpx.Request("POST", "https://link"))
            raise httpx.HTTPStatusError("500", request=answer.request, response=answer)

    grid.before = before
    with pytest.raises(RunStopped, match=r"the link answered 500 \(no such table:\\nnode\). Its database"):
        served(grid, experiment, out=str(tmp_path / "run"))
    assert "Its database may be lost" in (tmp_path / "run" / "log.txt").read_text()
    assert '"stopped"' in (tmp_path / "run" / "checkpoint" / "state.json").read_text()
