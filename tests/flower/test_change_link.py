"""The link admits the keys of a deployment's folder and refuses those that were changed or removed, by the commands."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedloom.cli.main import main
from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.commands import deploy
from fedloom.flower.deploy.control import Control
from fedloom.flower.deploy.folder import Deployment
from fedloom.flower.deploy.processes import Processes, marked_processes
from fedloom.flower.deploy.trial import CONFIG, environment, free_port
from fedloom.runs.experiment import Experiment

LONG = 120.0  # seconds; on a busy machine
Say = Callable[..., str]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Deployment]:
    """Three nodes and a running link, by its printed command."""
    control = Address("127.0.0.1", free_port())
    made, typed = deploy(tmp_path / "made", Experiment(clients=3), 3, dict(CONFIG), control=control)
    with (
        Processes(tmp_path / "logs", environment(made.home, 1)) as processes,
        Control(str(control), made.certificates.authority) as asking,
    ):
        processes.start("link", shlex.split(typed.link))
        asking.wait_for_link(LONG, lambda: processes.running("link"))
        yield made
    assert not marked_processes(processes.mark)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """What a command of `fedloom deploy` prints."""

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["fedloom", "deploy", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return str(capsys.readouterr().out)

    return run


def test_keys_come_and_go(made: Deployment, say: Say) -> None:
    root = made.root

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(say("show", root, "--json"))
        assert found["problem"] == ""
        return found

    def numbers() -> dict[str, int | None]:
        return {node["name"]: node["link"] and node["link"]["number"] for node in shown()["nodes"]}

    assert set(numbers().values()) == {None}
    assert "warning: node-0 is not registered" in say("show", root)
    assert say("register", root).count("is registered, as") == 3
    first = numbers()
    assert None not in first.values()
    assert say("register", root) == ""  # what is there stays
    say("remove", root, "--node", 1, "--deal")
    say("rotate", root, "--node", 2)
    assert shown()["retired"] == ["node-1.1.pub", "node-2.1.pub"]
    assert "node-1.1.pub is not refused yet" in say("show", root)
    assert "node-2 is registered" in say("register", root)
    assert numbers()["node-2"] not in (None, first["node-2"])
    say("remove", root, "--node", 2, "--deal")  # which has not come with its new key, and need not any more
    said = say("register", root, "--retire")
    assert said.count("is refused from now on") == 3
    assert shown()["retired"] == []
    say("add", root, "--nodes", 1)
    assert "node-3 is registered" in say("register", root)
    assert numbers().keys() == {"node-0", "node-3"}
    assert shown()["runs"] == {}
