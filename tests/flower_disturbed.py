"""Real nodes that are disturbed at chosen moments, and the simulator's model if the same replies are lost."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from fedloom.chance import Chance
from fedloom.core.types import Reply, Task
from fedloom.flower.deploy.trial import Trial, started
from fedloom.round import play_round
from fedloom.runs.build import prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.parquet import table_rows

LONG = 240.0  # seconds; on a busy machine
SLACK = 10.0  # seconds that a round may take beyond its deadline

# A client app that leaves a mark at every moment and, by its plan, waits there or answers badly.
CLIENT = '''
"""A node's app that is disturbed by the plan in `plan.json`."""

import json
import os
import time
from pathlib import Path

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedloom.flower import client_app
from fedloom.flower.node import client as node_client
from fedloom.flower.protocol.records import NodeMessage, pack, unpack

HERE = Path("{folder}")
inner, app = client_app(), ClientApp()


def moment(name, number, node):
    """Leave a mark, and wait while held; the first time, wait for ever if that is the plan."""
    mark = HERE / f"{{node}}-{{number}}-{{name}}"
    first = not mark.exists()
    mark.touch()
    if first and json.loads((HERE / "plan.json").read_text()).get(f"{{node}}-{{number}}") == name:
        time.sleep(600)
    while (HERE / f"hold-{{node}}-{{number}}-{{name}}").exists():
        time.sleep(0.05)


@app.query()
def query(message, context):
    return inner(message=message, context=context)


@app.train()
def train(message, context):
    node = context.node_config["clients"]
    number = unpack(message.content).facts["round"]
    moment("decode", number, node)
    write, how = node_client.write_reply, json.loads((HERE / "plan.json").read_text()).get(f"{{node}}-{{number}}", "")

    def written(*given):
        moment("train", number, node)  # it has trained, and nothing of it is kept yet
        hosted, round_id, client, task, reply, *rest = given
        if how == "nan":
            reply = reply._replace(params=reply.params * float("nan"))
        if how == "mask":  # all of it, where a part was asked for
            reply = reply._replace(mask=torch.ones_like(reply.mask))
        return write(hosted, round_id, client, task, reply, *rest)

    node_client.write_reply = written
    answer = inner(message=message, context=context)
    moment("reply", number, node)
    content = unpack(answer.content)
    [payload] = content.payloads
    keep = HERE / f"{{node}}.reply"
    if how == "stale" and keep.exists():
        payloads = [payload._replace(data=keep.read_bytes())]
    elif how == "garbage":
        payloads = [payload._replace(data=os.urandom(len(payload.data)))]
    elif how == "duplicate":
        payloads = [payload, payload, payload]
    else:
        payloads = [payload]
    keep.write_bytes(payload.data)
    return Message(pack(NodeMessage(content.facts, payloads)), reply_to=message)
'''


class Disturbed:
    """A trial whose nodes stop at chosen moments."""

    def __init__(self, trial: Trial, marks: Path, plan: dict[str, str]) -> None:
        self.trial, self.marks = trial, marks
        self._killed: set[int] = set()
        (marks / "plan.json").write_text(json.dumps(plan))
        text = CLIENT.format(folder=marks)
        (trial.deployment.app / "client.py").write_text(text)

    def hold(self, node: int, number: int, name: str) -> Path:
        """Let a node wait at a moment of a round until the file is gone."""
        file = self.marks / f"hold-{node}-{number}-{name}"
        file.touch()
        return file

    def until(self, what: Callable[[], bool], seconds: float = LONG) -> None:
        """Wait until a condition holds."""
        ends = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < ends, self.trial.processes.last_lines("link", 60)
            assert self.trial.processes.running("link")
            self.revive()
            time.sleep(0.05)

    def kill(self, node: int) -> None:
        """End all processes of a node at once; from now on `revive` starts it again."""
        self.trial.processes.kill(f"node-{node}")
        self._killed.add(node)

    def revive(self) -> None:
        """Start killed nodes again: Flower accepts one after a minute without its heartbeat; before that, it ends."""
        for node in self._killed:
            if not self.trial.processes.running(f"node-{node}"):
                self.trial.start_node(node)

    def over(self, run: int) -> None:
        """Wait for a run's end."""
        status = self.trial.wait(run, self.revive)
        assert status.outcome == "completed", (status, self.trial.processes.last_lines("link", 60))

    def reached(self, node: int, number: int, name: str) -> Callable[[], bool]:
        """A condition: a node has been at a moment of a round."""
        return (self.marks / f"{node}-{number}-{name}").exists

    def sent(self, node: int) -> int:
        """The number of answers that a node has sent, by its log."""
        return self.trial.processes.last_lines(f"node-{node}", 10_000).count("Sent successfully")


@dataclass
class Disturber:
    """Kills, stops and revives nodes at random."""

    trial: Trial
    nodes: list[int]  # those that are disturbed
    chance: random.Random
    every: float = 15.0  # seconds between disturbances, on average
    until: dict[int, float] = field(default_factory=dict)  # of stopped nodes: when they go on
    events: list[tuple[float, str, int]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    due: float = 0.0

    def look(self) -> None:
        """Do what is due; start killed nodes again, as a service would."""
        now = time.monotonic() - self.began
        for node in [node for node, end in self.until.items() if end <= now]:
            self.trial.processes.signal(f"node-{node}", signal.SIGCONT)
            del self.until[node]
        for node in self.nodes:
            if not self.trial.processes.running(f"node-{node}"):
                self.trial.start_node(node)
        if now < self.due:
            return
        self.due = now + self.chance.expovariate(1 / self.every)
        node, how = self.chance.choice(self.nodes), self.chance.choice(["kill", "stop", "stop", "end"])
        if node in self.until:
            return
        self.events.append((now, how, node))
        if how == "kill":
            self.trial.processes.kill(f"node-{node}")
        elif how == "end":
            self.trial.processes.heads[f"node-{node}"].terminate()
        else:
            self.trial.processes.signal(f"node-{node}", signal.SIGSTOP)
            self.until[node] = now + self.chance.uniform(3, 25)


@contextmanager
def disturbed(experiment: Experiment, folder: Path, plan: dict[str, str], lasting: bool = False) -> Iterator[Disturbed]:
    """A node for each client, disturbed by `plan`: 'NODE-ROUND' -> moment or kind of answer."""
    (folder / "marks").mkdir()
    with started(experiment, experiment.clients, folder / "work", folder / "states", lasting=lasting) as trial:
        yield Disturbed(trial, folder / "marks", plan)


def lost_in(run: Path) -> set[tuple[int, int]]:
    """Round and client of the replies that were not counted."""
    columns = pq.ParquetFile(run / "clients.parquet").read().to_pydict()
    rows = zip(columns["round"], columns["client"], columns["arrived"])
    return {(number, client) for number, client, arrived in rows if not arrived}


def model_of(run: Path, experiment: Experiment) -> torch.Tensor:
    """The model of a run folder [P]."""
    return prepare(experiment).inputs.setting.layout.join(load_file(run / "model.safetensors"), 0)


def with_lost(experiment: Experiment, lost: set[tuple[int, int]]) -> torch.Tensor:
    """The simulator's model if exactly those replies are lost [P].

    Clients train one at a time, as on nodes: rounding differs between one and many, and a neuron whose input is about
    zero amplifies the difference.
    """
    prepared = prepare(Experiment(**{**experiment.model_dump(), "chunk": 1}))
    inputs = prepared.inputs

    class Losing:
        """The engine, without those replies."""

        def train(self, ids: torch.Tensor, task: Task, chance: Chance) -> Reply:
            reply = prepared.engine.train(ids, task, chance)
            gone = torch.tensor([(chance.round, inputs.clients[client]) in lost for client in ids.tolist()])
            return reply._replace(arrived=reply.arrived & ~gone)

    model, memory = inputs.model, inputs.method.init(inputs.setting, inputs.model)
    for number in range(1, experiment.rounds + 1):
        chance = Chance(experiment.seed, number, model.device)
        model, memory, *_ = play_round(inputs.method, memory, model, inputs.setting, Losing(), chance)
    return model


def assert_right(run: Path, experiment: Experiment, deadline: float) -> list[dict[str, Any]]:
    """All rounds ran, none beyond its deadline, and the model is that of the replies that were counted."""
    rows, lost = table_rows(run / "rounds.parquet"), lost_in(run)
    assert [row["round"] for row in rows] == list(range(1, experiment.rounds + 1))
    for row in rows:
        assert row["wall_seconds"] <= deadline + SLACK
        assert row["clients"] - row["arrived"] == sum(number == row["round"] for number, _ in lost)
    torch.testing.assert_close(model_of(run, experiment), with_lost(experiment, lost), rtol=0, atol=1e-5)
    return rows
