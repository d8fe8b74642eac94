"""A node that is asked to end: when it does, by where it is in Flower's loop."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("flwr")

import flwr.supernode.start_client_internal as loop

from fedloom.flower.node import drain
from fedloom.flower.node.drain import DRAIN, Drain


class Ended(Exception):
    """SIGTERM came."""


def end(number: int, frame: object) -> None:
    raise Ended


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """SIGTERM raises; handlers are put back."""
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGALRM, DRAIN)}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def draining(pull=lambda receive: receive(), push=lambda: None) -> Drain:
    """A drain around a loop, with its signals."""
    made = Drain(pull, push)
    for number in (DRAIN, signal.SIGALRM):
        signal.signal(number, made.end)
    return made


def test_an_idle_node_ends_at_once() -> None:
    made = draining()
    made.pull(receive=lambda: None)
    with pytest.raises(Ended):
        signal.raise_signal(DRAIN)


def test_a_message_is_answered_and_the_answer_fetched_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "FETCHED", 0.3)
    answers: list[float] = []
    made = draining(push=lambda: answers.append(time.monotonic()))
    assert made.pull(receive=lambda: "task") == "task"
    signal.raise_signal(DRAIN)  # it trains
    made.push()
    assert made.pull(receive=lambda: pytest.fail("it must not take another")) is None
    with pytest.raises(Ended):
        time.sleep(5)
    assert 0.3 <= time.monotonic() - answers[0] < 2


def test_an_answer_that_was_fetched_long_ago_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "FETCHED", 0.1)
    made = draining()
    made.pull(receive=lambda: "task")
    made.push()
    time.sleep(0.15)
    with pytest.raises(Ended):
        signal.raise_signal(DRAIN)


def test_a_message_that_comes_at_this_moment_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "FETCHED", 0.0)
    answered: list[bool] = []
    made = draining(push=lambda: answered.append(True))

    def receive() -> str:
        signal.raise_signal(DRAIN)
        return "task"

    assert made.pull(receive=receive) == "task"
    with pytest.raises(Ended):
        made.push()
    assert answered == [True]


def test_a_message_that_cannot_be_fetched_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(receive) -> None:
        assert receive() == "task"
        signal.raise_signal(DRAIN)  # while its objects are pulled, in vain

    with pytest.raises(Ended):
        draining(pull).pull(receive=lambda: "task")


def test_a_link_that_is_down_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "ASKING", 0.2)

    def receive() -> None:
        signal.raise_signal(DRAIN)
        time.sleep(5)  # Flower tries again and again

    began = time.monotonic()
    with pytest.raises(Ended):
        draining().pull(receive=receive)
    assert 0.2 <= time.monotonic() - began < 2


def test_this_flower_works_where_we_think(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_pull_and_store_message", "_push_messages"):
        monkeypatch.setattr(loop, name, getattr(loop, name))
    drain.drain_at_signal()
    assert isinstance(loop._pull_and_store_message.__self__, Drain)
    assert isinstance(loop._push_messages.__self__, Drain)
    with pytest.raises(Ended):
        signal.raise_signal(DRAIN)
