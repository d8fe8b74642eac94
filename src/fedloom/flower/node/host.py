"""Whose clients are these? A node's own: their numbers, their examples, and all that is needed to train them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from fedloom.errors import BadExperiment
from fedloom.flower.node.own_data import OwnData, in_folder, own_world
from fedloom.flower.node.own_rows import only
from fedloom.runs.build import Simulation, prepare
from fedloom.runs.experiment import Experiment


class Host(NamedTuple):
    """What a node knows before a message comes."""

    experiment: Experiment
    world: Simulation  # of its own clients alone, at their places in the fleet
    clients: dict[int, int]  # those it hosts, by their places in the fleet: the partition's number of each
    own: bool  # are the data the node's own?


def host_of(run_config: Mapping[str, Any], node_config: Mapping[str, Any], data: OwnData | None, classes: int) -> Host:
    """The node's clients by its settings; `classes` are those of the server's data."""
    folder = str(node_config.get("data", ""))
    text, clients = str(run_config["experiment"]), clients_text(node_config, run_config)
    return _host(text, clients, folder, data, classes)


@lru_cache(maxsize=16)  # a process that hears of several rounds builds once
def _host(text: str, clients: str, folder: str, data: OwnData | None, classes: int) -> Host:
    experiment, hosted = experiment_of(text), numbers(clients)
    if data is not None or folder:
        world = own_world(experiment, hosted, data or in_folder(folder), classes)
        return Host(experiment, world, {number: number for number in hosted}, True)
    world = prepare(experiment)
    place = {number: at for at, number in enumerate(world.clients)}
    here = {place[number]: number for number in hosted if number in place}  # others have no examples
    return Host(experiment, only(world, {at: at for at in here}, len(place)), here, False)


def experiment_of(text: str) -> Experiment:
    """The run config's experiment, if a real network can play it."""
    try:
        values = json.loads(text)
        assert isinstance(values, dict)
    except (ValueError, AssertionError, RecursionError) as problem:
        raise BadExperiment("run config: 'experiment' is not an experiment as JSON text.") from problem
    experiment = Experiment(**values)
    settings = {name: value for name, value in experiment.world.model_dump().items() if name != "patience"}
    usual = {name: value for name, value in type(experiment.world)().model_dump().items() if name != "patience"}
    invented = {
        "channel": bool(experiment.channel.settings),
        "world": settings != usual,
        "attack": experiment.attack.name != "none",
        "engine": experiment.engine == "distributed",
    }
    for name, there in invented.items():
        if there:
            raise BadExperiment(f"{name}: it is simulated, and this network is real; leave it out.")
    return experiment


def clients_text(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> str:
    """Which clients a node hosts: its own setting or, as in Flower's simulation, its place among the partitions."""
    if "clients" in node_config:
        return str(node_config["clients"])
    if "partition-id" in node_config:
        first, step = int(node_config["partition-id"]), int(node_config.get("num-partitions", 0))
        total = experiment_of(str(run_config["experiment"])).clients
        return ",".join(str(n) for n in (range(first, total, step) if step else [first]))
    raise BadExperiment("node config: 'clients' is missing; say which this node hosts, as in clients='0-4,7'.")


def numbers(text: str) -> list[int]:
    """'0-4,7' as numbers, each once and rising."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise BadExperiment(f"node config: clients is '{text}'; expected numbers and ranges, such as 0-4,7.")
        found |= set(range(int(first), int(last or first) + 1)) if dash else {int(first)}
    return sorted(found)


def known(host: Host) -> list[list[Any]]:
    """Every hosted client's number, examples and label counts."""
    fleet = host.world.setting.fleet
    return [[number, int(fleet.examples[at]), fleet.labels[at].tolist()] for at, number in sorted(host.clients.items())]
