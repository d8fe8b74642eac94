"""Nodes that can do nothing more end with a reason; forks that die are reported; nobody is left without the other."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.supernode.runtime import run_clientapp as app_module

from fedloom.flower.deploy.trial import free_port
from fedloom.flower.node.fork import Fork, Stuck
from fedloom.flower.node.reports import Heard, Reports
from fedloom.flower.node.supernode import Watchdog
from fedloom.flower.protocol.exit_codes import AGAIN, REMOVED
from fedloom.runs.experiment import Experiment
from fedloom.runs.parquet import table_rows
from flower_link import FakeLink, node_at
from flower_processes import Trial
from pages import get, scraped

LONG = 120.0  # seconds; on a busy machine


def on(path: str, status: int, after: int = 0) -> Callable[[str, int], int]:
    """A link that answers calls of one path with another status, `after` so many."""
    return lambda asked, count: status if asked == path and count >= after else 200


def ends(process: Any) -> tuple[int, str]:
    """Exit code and last line of a node that ends by itself."""
    text, _ = process.communicate(timeout=LONG)
    return process.returncode, text.strip().splitlines()[-1]


def until(what: Callable[[], bool]) -> None:
    ends = time.monotonic() + LONG
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.05)


def child_of(pid: int) -> int:
    """The first process that a process started."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_real_nodes_that_can_do_nothing_more_end(tmp_path: Path) -> None:
    """After an answer of 500 to either thread, without its key, when it hangs, and when nobody answers its messages."""
    links = {
        "pull": FakeLink(on("pull-messages", 500, after=2)),
        "beat": FakeLink(on("send-node-heartbeat", 500)),
        "removed": FakeLink(on("pull-messages", 401, after=1)),
        "hangs": FakeLink(),
        "orphan": FakeLink(),
    }
    with ExitStack() as stack:
        terms = {"hangs": {"SILENCE": 6.0, "GRACE": 1.0}}
        nodes = {
            name: stack.enter_context(node_at(link, tmp_path / name, **terms.get(name, {})))
            for name, link in links.items()
        }
        until(lambda: links["hangs"].calls.count("pull-messages") > 1)
        os.kill(child_of(nodes["hangs"].pid), signal.SIGSTOP)
        until(lambda: "pull-messages" in links["orphan"].calls)
        orphan = child_of(nodes["orphan"].pid)
        os.kill(nodes.pop("orphan").pid, signal.SIGKILL)
        found = {name: ends(node) for name, node in nodes.items()}
        until(lambda: not alive(orphan))
    assert found["pull"] == (AGAIN, "the node has ended: the link answered PullMessages with 500")
    code, said = found["beat"]
    assert code == AGAIN
    assert said.endswith("one of the node's threads died: the link answered SendNodeHeartbeat with 500")
    code, said = found["removed"]
    assert code == REMOVED
    assert "its key was taken back" in said
    code, said = found["hangs"]
    assert code == AGAIN
    assert "neither looked for messages" in said
    assert links["pull"].calls[-1] == "unregister-node"  # it has taken its leave


@pytest.fixture
def watched() -> Iterator[tuple[Watchdog, Heard]]:
    hearing, telling = os.pipe()
    yield Watchdog(Reports(telling)), Heard(hearing)
    os.close(hearing)
    os.close(telling)


def date(seconds: float) -> str:
    from email.utils import formatdate

    return formatdate(time.time() + seconds, usegmt=True)


def test_verdicts(watched: tuple[Watchdog, Heard]) -> None:
    """A clock that is off, and a node that is not admitted yet, may pass; the first reason counts."""
    watchdog, heard = watched
    watchdog.answered("ActivateNode", 412, date(0))
    heard.read()
    assert heard.verdict is not None
    assert heard.verdict.code == AGAIN
    assert "not admit this node yet" in heard.verdict.why
    watchdog.answered("PullMessages", 401, date(0))
    heard.read()
    assert heard.verdict.code == AGAIN
    assert heard.status == 401


def test_a_clock_that_is_off_is_said(watched: tuple[Watchdog, Heard]) -> None:
    watchdog, heard = watched
    watchdog.answered("ActivateNode", 200, date(0))
    watchdog.answered("PullMessages", 401, date(1000))
    heard.read()
    assert heard.verdict is not None
    assert heard.verdict.code == AGAIN
    assert "s off the link's, which therefore refuses" in heard.verdict.why


def test_what_is_heard(watched: tuple[Watchdog, Heard]) -> None:
    watchdog, heard = watched
    watchdog.answered("PullMessages", 200, None)
    watchdog.failed("PullMessages", OSError("gone\n"))
    heard.read()
    assert (heard.looks, heard.status, heard.verdict) == (2, 0, None)
    assert heard.answered is not None
    assert abs(time.time() - heard.answered) < 5


CLIENT = '''
"""A node whose app is killed in its second round, as a kernel without memory would."""

import os
import signal
from pathlib import Path

from flwr.clientapp import ClientApp

from fedloom.flower import client_app
from fedloom.flower.protocol.records import unpack

app = ClientApp()
inner = client_app()


@app.query()
def query(message, context):
    return inner(message=message, context=context)


@app.train()
def train(message, context):
    with Path("{lives}").open("a") as lives:
        lives.write(os.environ["FEDLOOM_NODE_LIFE"] + "\\n")
    if unpack(message.content).facts["round"] == 2 and context.node_config["clients"] == "0-2":
        os.kill(os.getpid(), signal.SIGKILL)
    return inner(message=message, context=context)
'''


def test_a_killed_app_is_reported_at_once(tmp_path: Path) -> None:
    """The round does not wait for its deadline, the run's log says why, and the node takes part in the next round.

    Meanwhile the figures of server and node are scraped.
    """
    trial = Trial(tmp_path, ["0-2", "3-5"], warm=True)
    try:
        lives = tmp_path / "lives"
        (tmp_path / "app" / "trial_app" / "client.py").write_text(CLIENT.replace("{lives}", str(lives)))
        experiment = Experiment(method="fedavg", clients=6, rounds=3, training={"epochs": 1}, device="cpu")
        port, seen = free_port(), dict[str, float]()
        run = trial.begin(experiment, out=str(tmp_path / "run"), deadline=100.0, metrics=port)
        ends = time.monotonic() + LONG
        while run.poll() is None:
            assert time.monotonic() < ends, trial.log("run")
            seen = scraped(port) or seen
            time.sleep(0.1)
        assert seen["fedloom_round"] >= 1
        assert seen["fedloom_replies_accepted_total"] in (6, 9, 15)
        assert seen["fedloom_nodes{hosting}"] == 2
        node = scraped(trial.pages[0])
        assert node["fedloom_node_errors_total"] == 1
        assert node["fedloom_node_messages_answered_total"] >= 3
        assert node["fedloom_node_memory_bytes{node}"] > 2**20
        assert get(trial.pages[0], "/health").status == 200
        rows = table_rows(tmp_path / "run" / "rounds.parquet")
        assert [row["arrived"] for row in rows] == [6, 3, 6]
        assert rows[1]["wall_seconds"] < 20.0
        assert "its process was killed by SIGKILL" in (tmp_path / "run" / "log.txt").read_text()
        found = lives.read_text().split()
        assert len(found) == 6
        assert len(set(found)) == 2  # a word for each start of a node
    finally:
        trial.stop()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, str]]:
    """What is reported to the node: whether the message was known, and why it has no answer."""
    found: list[tuple[bool, str]] = []

    def report(fork: Fork, why: str) -> None:
        found.append((fork._message is not None, why))

    monkeypatch.setattr(Fork, "_report", report)
    monkeypatch.setattr(app_module, "pull_task_input", lambda client: (message(), None))
    monkeypatch.setattr(app_module, "push_message", lambda *given: None)
    return found


def message(age: float = 0.0) -> Message:
    """A message that waits ten seconds for its answer."""
    facts = {"run_id": 1, "message_id": "it", "src_node_id": 0, "dst_node_id": 7, "reply_to_message_id": ""}
    metadata = Metadata(**facts, group_id="", created_at=time.time() - age, ttl=10.0, message_type="train")
    found = Message(RecordDict({"a": ConfigRecord({"b": b"c" * 100_000})}), metadata=metadata)
    found.metadata.__dict__["_message_id"] = "it"
    return found


def forked(monkeypatch: pytest.MonkeyPatch, app: Callable[..., None]) -> tuple[Fork, int]:
    """A fork that runs this in place of Flower's app, after its end."""
    app.__module__ = app_module.__name__
    monkeypatch.setattr(app_module, "run_clientapp", app)
    fork = Fork("127.0.0.1:1", "token")
    code: list[int] = []
    until(lambda: code.extend([] if (found := fork.ended()) is None else [found]) or bool(code))
    return fork, code[0]


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_how_forks_end(monkeypatch: pytest.MonkeyPatch, told: list[tuple[bool, str]]) -> None:
    """Before it has its message, with it, while it answers, after its answer, and with an error as its answer."""

    def before(*given: Any, **more: Any) -> None:
        killed()

    def between(*given: Any, **more: Any) -> None:
        app_module.pull_task_input(None)
        sys.exit(3)

    def after(*given: Any, **more: Any) -> None:
        app_module.pull_task_input(None)
        app_module.push_message(None, None, None)

    def failed(*given: Any, **more: Any) -> None:
        after()
        sys.exit(1)

    for app, answered in ((before, False), (between, False), (after, True), (failed, False)):
        fork, code = forked(monkeypatch, app)
        assert fork.close(code) is answered
    assert told == [
        (False, "its process was killed by SIGKILL, perhaps for want of memory"),
        (True, "its process ended with exit code 3"),
    ]
    monkeypatch.setattr(app_module, "push_message", lambda *given: killed())
    fork, code = forked(monkeypatch, after)
    with pytest.raises(Stuck, match="handed over"):
        fork.close(code)


def test_an_app_that_hangs_is_ended_when_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, told: list[tuple[bool, str]]
) -> None:
    monkeypatch.setattr(app_module, "pull_task_input", lambda client: (message(age=9.5), None))

    def hangs(*given: Any, **more: Any) -> None:
        app_module.pull_task_input(None)
        time.sleep(LONG)

    began = time.monotonic()
    fork, code = forked(monkeypatch, hangs)
    assert 0.2 < time.monotonic() - began < 10
    assert fork.close(code) is False
    assert [known for known, _ in told] == [True]


def test_what_cannot_be_reported_is_left_to_flower(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody listens at the node's address."""

    def before(*given: Any, **more: Any) -> None:
        killed()

    fork, code = forked(monkeypatch, before)
    assert fork.close(code) is False
    assert "after a minute" in caplog.text
