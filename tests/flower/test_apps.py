"""The apps, their settings, and which nodes take part."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from flwr.app import Message
from hypothesis import given, strategies as st

from fedloom.codec import Rejected
from fedloom.errors import BadExperiment
from fedloom.flower import client_app, server_app
from fedloom.flower.node.hosted_clients import clients_setting
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.flower.protocol.records import NodeMessage, Payload, pack, unpack
from fedloom.flower.protocol.round_id import RoundId
from fedloom.flower.server.costs import memory_bytes, phase_seconds
from fedloom.flower.server.personal import reported_scores
from fedloom.flower.server.play import RunConfig
from flower_world import assert_same, config_of, fake, served, simulated, tiny, tiny_data

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**400) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


def test_fedloom_alone_does_not_import_flower() -> None:
    code = "import sys, fedloom, fedloom.flower; sys.exit('flwr' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_without_flower_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    for app in (server_app, client_app):
        with pytest.raises(BadExperiment, match=r"fedloom\[flower\]"):
            app()


def test_the_apps_are_flower_apps() -> None:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    assert isinstance(server_app(), ServerApp)
    assert isinstance(client_app(), ClientApp)


@pytest.mark.parametrize("bad", [{"deadline": 0}, {"deadline": -1.0}, {"quorum": 0}, {"checkpoint-every": "soon"}])
def test_a_bad_run_config_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadExperiment):
        RunConfig.read(bad)


@pytest.mark.parametrize(
    "invented",
    [
        {"channel": {"name": "bernoulli", "settings": {"up": 0.1}}},
        {"world": {"deadline": 3.0}},
        {"attack": "sign-flip"},
        {"engine": "distributed"},
    ],
)
def test_what_is_simulated_does_not_go_with_a_network(data: str, invented: dict[str, Any]) -> None:
    text = json.dumps(tiny(data, **invented).model_dump(mode="json"))
    with pytest.raises(BadExperiment, match="leave it out"):
        read_experiment(text)


def test_flowers_simulation_names_clients_by_partition(data: str) -> None:
    config = config_of(tiny(data))
    assert clients_setting({"partition-id": 1, "num-partitions": 3}, config) == "1,4,7"
    with pytest.raises(BadExperiment, match="clients"):
        clients_setting({}, config)


def test_a_node_of_another_version_takes_no_part(data: str) -> None:
    experiment = tiny(data, method="fedavg")
    grid = fake(experiment)

    def fault(node: int, asked: Message, answer: Message) -> list[Message]:
        message = unpack(answer.content)
        if node == 12 and "clients" in message.facts:
            return [Message(pack(NodeMessage({**message.facts, "fedloom": "0.0.1"}, [])), reply_to=asked)]
        return [answer]

    grid.fault = fault
    found = served(grid, experiment, patience=0.2)
    assert {row["arrived"] for row in found.rounds} == {6}


def test_a_second_node_with_the_same_clients_steps_in(data: str) -> None:
    """A restarted node is a new one to Flower; it takes over once the old one is disconnected."""
    experiment = tiny(data, method="fedavg")
    grid = fake(experiment)
    twin = grid.contexts[12]
    grid.contexts[99] = twin
    assert_same(served(grid, experiment), simulated(experiment))
    grid = fake(experiment)
    grid.contexts[99] = grid.contexts[12]

    def before(node: int, message: Message) -> None:
        if message.metadata.message_type == "train" and unpack(message.content).facts["round"] == 2:
            grid.down.add(12)

    grid.before = before
    arrived = [row["arrived"] for row in served(grid, experiment, deadline=3.0).rounds]
    assert arrived[0] == arrived[2] == 8


@given(ANYTHING, ANYTHING)
def test_whatever_a_node_reports_is_harmless(one: Any, other: Any) -> None:
    facts = {"rss": one, "began": other, "seconds_start": one, "seconds_compute": other, "accuracy": one}
    assert all(value >= 0 for value in phase_seconds(10.0, 20.0, facts, facts).values())
    assert 0 <= memory_bytes(facts) < 2**63
    assert all(0 <= value <= 1 for _, value in reported_scores({"score": [[1, one], other]}, [1], (0.0, 1.0)))


@given(st.dictionaries(st.sampled_from(["run", "round", "attempt", "base"]), ANYTHING))
def test_a_round_id_is_whole_or_refused(facts: dict[str, Any]) -> None:
    with pytest.raises((Rejected, BadExperiment)):
        RoundId.read(facts)


@given(st.lists(st.tuples(st.dictionaries(st.text(max_size=5), st.integers()), st.binary(max_size=50)), max_size=4))
def test_a_message_comes_back_as_it_was(items: list[tuple[dict[str, int], bytes]]) -> None:
    message = NodeMessage({"a": 1}, [Payload(facts, data) for facts, data in items])
    assert unpack(pack(message)) == message
