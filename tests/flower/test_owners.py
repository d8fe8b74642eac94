"""Clients belong to keys, nodes have the server's code, and no node decides for others."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from hypothesis import given, strategies as st

from fedloom.codec import Rejected
from fedloom.errors import BadExperiment, RunStopped
from fedloom.flower.deploy.keys import Key, write_key
from fedloom.flower.protocol.code import check_code, code_of, code_of_fedloom
from fedloom.flower.protocol.owners import Owner, check_owner, fingerprint, read_owners, write_owners
from fedloom.flower.protocol.records import NodeMessage, pack, unpack
from fedloom.flower.protocol.run_file import NODES_FILE
from fedloom.runs.experiment import Experiment
from flower_fake import FakeGrid
from flower_world import NODES, assert_same, fake, served, simulated, tiny, tiny_data

OWNED = {11: {0, 1, 2}, 12: {3, 4}, 13: {5, 6, 7}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Key]:
    """A key for every node."""
    return {node: write_key(tmp_path_factory.mktemp("keys"), f"node-{node}") for node in NODES}


@pytest.fixture
def experiment(data: str) -> Experiment:
    return tiny(data, method="fedavg", per_round=8)


def pem(key: Key) -> bytes:
    """A public key as Flower's link keeps it."""
    return public_key_to_bytes(load_ssh_public_key(key.public.read_bytes()))  # type: ignore[arg-type]


def keyed(experiment: Experiment, keys: dict[int, Key]) -> tuple[FakeGrid, dict[str, Any]]:
    """A network whose link knows every node's key, and a run config that says whose clients are whose."""
    grid = fake(experiment)
    infos = [NodeInfo(node_id=node, public_key=pem(key)) for node, key in keys.items()]
    grid.get_nodes = lambda: infos  # type: ignore[attr-defined]
    owners = [
        Owner(f"node-{node}", fingerprint(key.public.read_bytes()), frozenset(OWNED[node]))
        for node, key in keys.items()
    ]
    return grid, {"nodes": write_owners(owners)}


def hello_with(change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> Callable[..., list[Message]]:
    """A fault of the network that changes the facts of nodes' hellos."""

    def fault(node: int, asked: Message, answer: Message) -> list[Message]:
        if asked.metadata.message_type != "query" or answer.has_error():
            return [answer]
        facts = unpack(answer.content).facts
        return [Message(pack(NodeMessage({**facts, **change(node, facts)}, [])), reply_to=asked)]

    return fault


def test_fingerprints_are_those_of_ssh(keys: dict[int, Key]) -> None:
    found = {fingerprint(key.public.read_bytes()) for key in keys.values()}
    assert len(found) == len(keys)
    assert found == {fingerprint(pem(key)) for key in keys.values()}
    if (command := shutil.which("ssh-keygen")) is not None:
        for key in keys.values():
            said = subprocess.run([command, "-l", "-f", key.public], capture_output=True, text=True, check=True).stdout
            assert said.split()[1] == fingerprint(key.public.read_bytes())


@given(st.dictionaries(st.integers(0, 30), st.integers(0, 4), min_size=1))
def test_owners_are_read_as_they_were_written(whose: dict[int, int]) -> None:
    nodes = sorted(set(whose.values()))
    clients = {node: frozenset(client for client, owner in whose.items() if owner == node) for node in nodes}
    owners = tuple(Owner(f"node-{node}", f"SHA256:{node}", clients[node]) for node in nodes)
    assert read_owners(write_owners(owners)) == owners
    for owner in owners:
        check_owner(owners, owner.key, owner.clients)
        for client in whose.keys() - owner.clients:
            with pytest.raises(Rejected, match=f"node-{whose[client]}"):
                check_owner(owners, owner.key, [client])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "cannot be read"),
        ("{", "cannot be read"),
        ('{"a": 1}', "cannot be read"),
        ('{"a": {"key": "k", "clients": "0-"}}', "cannot be read"),
        ('{"a": {"key": "k", "clients": "0"}, "b": {"key": "k", "clients": "1"}}', "same key"),
        ('{"a": {"key": "k", "clients": "0-4"}, "b": {"key": "l", "clients": "4"}}', "same client 4"),
    ],
)
def test_what_owns_twice_or_is_no_json_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(BadExperiment, match=complaint):
        read_owners(text)
    assert read_owners("") == ()


def test_owners_host_their_clients(experiment: Experiment, keys: dict[int, Key]) -> None:
    grid, config = keyed(experiment, keys)
    assert_same(served(grid, experiment, **config), simulated(experiment))


@pytest.mark.parametrize("intruder", [11, 13])
def test_a_claim_on_anothers_clients_is_refused_and_named(
    experiment: Experiment, keys: dict[int, Key], intruder: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it comes first or last; the owner takes part as if nothing had been said."""
    caplog.set_level(logging.WARNING, "fedloom")
    grid, config = keyed(experiment, keys)
    grid.contexts[intruder].node_config["clients"] = "3,4"
    result = served(grid, experiment, **config, patience=1.0)
    assert {row["arrived"] for row in result.rounds} == {8 - len(OWNED[intruder])}
    asked = {message.metadata.dst_node_id for message in grid.sent if message.metadata.message_type == "train"}
    assert asked == OWNED.keys() - {intruder}
    assert f"node-{intruder} ({intruder}) takes no part: it names clients 3-4, who belong to node-12" in caplog.text


def test_a_change_of_owners_counts_in_the_run_that_goes_on(
    experiment: Experiment, keys: dict[int, Key], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Node 13 gets the clients of 12 before round 3; 12 goes on naming them. What is there before the run is old."""
    grid, terms = keyed(experiment, keys)
    file = tmp_path / "run" / "checkpoint" / NODES_FILE
    moved = {**{node: sorted(own) for node, own in OWNED.items()}, 12: [9], 13: [3, 4, 5, 6, 7]}

    def before(node: int, message: Message) -> None:
        if unpack(message.content).facts.get("round") == 2 and node == 11:
            file.write_text("no JSON")
        if unpack(message.content).facts.get("round") == 2 and node == 12:
            grid.contexts[13].node_config["clients"] = "3-7"
            file.write_text(
                write_owners(
                    Owner(f"node-{node}", fingerprint(key.public.read_bytes()), frozenset(moved[node]))
                    for node, key in keys.items()
                )
            )

    grid.before = before
    with caplog.at_level(logging.INFO, "fedloom"):
        found = served(grid, experiment, out=str(tmp_path / "run"), **terms)
    assert [row["arrived"] for row in found.rounds] == [8] * experiment.rounds
    [change] = [line for line in caplog.messages if "who hosts whom has changed" in line]
    refused = [line for line in caplog.messages if "takes no part" in line]
    assert any("node-12" in line and "clients 3-4, who belong to node-13" in line for line in refused)
    assert "nodes.json" in change


def test_a_key_that_is_not_of_the_run_is_refused(
    experiment: Experiment, keys: dict[int, Key], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the link has registered it; and a node whose key the link does not tell."""
    caplog.set_level(logging.WARNING, "fedloom")
    grid, config = keyed(experiment, keys)
    stranger = write_key(tmp_path, "stranger")
    grid.contexts[99], grid.contexts[98] = grid.contexts[12], grid.contexts[13]
    infos = [*grid.get_nodes(), NodeInfo(node_id=99, public_key=pem(stranger))]  # type: ignore[attr-defined]
    grid.get_nodes = lambda: infos  # type: ignore[attr-defined]
    assert_same(served(grid, experiment, **config), simulated(experiment))
    key = fingerprint(stranger.public.read_bytes())
    assert f"node 99 takes no part: its key {key} is none of the run's" in caplog.text
    assert "node 98 takes no part: its key None" in caplog.text


def test_the_first_to_answer_decides_nothing_for_others(
    experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    """A node with one client says that data are its own, before two nodes with the others say otherwise."""
    caplog.set_level(logging.WARNING, "fedloom")
    grid = fake(experiment)
    grid.contexts[11].node_config["clients"] = "0"
    grid.fault = hello_with(lambda node, facts: {"own": node == 11})
    result = served(grid, experiment, patience=1.0)
    assert {row["arrived"] for row in result.rounds} == {5}
    assert "node 11 takes no part: its data are its own, and those of this run are the experiment's" in caplog.text


def test_one_file_of_other_code_is_refused_and_named(
    data: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A network of the same shapes whose activation is another; the server read the file before it was changed."""
    caplog.set_level(logging.WARNING, "fedloom")
    file, source = tmp_path / "my_net.py", (
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4))\n"
    )  # fmt: skip
    file.write_text(source)
    experiment = tiny(data, method="fedavg", per_round=8, model=f"{file}:net")
    assert_same(served(fake(experiment), experiment), simulated(experiment))

    def before(node: int, message: Message) -> None:
        file.write_text(source if node == 12 else source.replace("ReLU", "Tanh"))

    grid = fake(experiment)
    grid.before = before
    with pytest.raises(RunStopped, match="2 of 8 clients are there"):
        served(grid, experiment, patience=1.0)
    for node in (11, 13):
        assert f"node {node} takes no part: its code is not the server's: {file}" in caplog.text
    assert "node 12 takes no part" not in caplog.text


def test_other_code_of_fedloom_is_refused(experiment: Experiment, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "fedloom")
    grid = fake(experiment)
    grid.fault = hello_with(lambda node, facts: {"code": {"fedloom": "0"}} if node == 13 else {})
    result = served(grid, experiment, patience=1.0)
    assert {row["arrived"] for row in result.rounds} == {5}
    assert "node 13 takes no part: its code is not the server's: fedloom; give both the same files" in caplog.text


def test_a_run_whose_nodes_are_all_refused_does_not_wait(experiment: Experiment, keys: dict[int, Key]) -> None:
    grid, config = keyed(experiment, keys)
    grid.fault = hello_with(lambda node, facts: {"code": {"fedloom": "0"}})
    began = time.monotonic()
    with pytest.raises(RunStopped, match=r"0 of 8 .*; node-11 .* takes no part: its code is not the server's: fedloom"):
        served(grid, experiment, patience=60.0, **config)
    assert time.monotonic() - began < 30


def test_the_hash_of_code_is_that_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every source file counts, its name included, and nothing else does."""
    root = tmp_path / "fedloom"
    (root / "inner").mkdir(parents=True)
    monkeypatch.setattr("fedloom.flower.protocol.code.__file__", str(root / "flower" / "protocol" / "code.py"))

    def hashed() -> str:
        code_of_fedloom.cache_clear()
        return code_of_fedloom()

    try:
        found = [hashed()]
        for change in (
            lambda: (root / "a.py").write_text("1"),
            lambda: (root / "inner" / "b.c").write_text("1"),
            lambda: (root / "a.py").write_text("2"),
            lambda: (root / "a.py").rename(root / "c.py"),
        ):
            change()
            found.append(hashed())
        assert len(set(found)) == len(found)
        (root / "a.pyc").write_text("1")
        assert hashed() == found[-1]
    finally:
        code_of_fedloom.cache_clear()


def test_missing_and_additional_files_are_named() -> None:
    for theirs, named in (({}, "a.py"), ({"a.py": "1", "b.py": "2"}, "b.py"), ({"a.py": "0"}, "a.py"), (None, "a.py")):
        with pytest.raises(Rejected, match=named):
            check_code(theirs, {"a.py": "1"})
    check_code({"a.py": "1"}, {"a.py": "1"})


def test_all_files_of_the_users_own_are_hashed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from fedloom.methods import fedavg\n\n\ndef method():\n    return fedavg()\n\n\n"
        "def net():\n    raise NotImplementedError\n"
    )
    found = code_of(Experiment(method=f"{file}:method", model=f"{file}:net"))
    assert set(found) == {"fedloom", str(file)}
