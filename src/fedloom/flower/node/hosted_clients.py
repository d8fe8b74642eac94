"""The clients that a node hosts: their numbers, their examples, and all that is needed to train them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from fedloom.engine.protocol import Engine
from fedloom.errors import BadExperiment
from fedloom.flower.node.client_rows import restrict
from fedloom.flower.node.own_data import OwnData, inputs_from_own_data, read_folder
from fedloom.flower.protocol.assignment import parse_ranges
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.runs.build import trainer_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs, Widths, inputs_of
from fedloom.world.message_parts import MessageParts


class HostedClients(NamedTuple):
    """A node's clients, built before the first message is answered."""

    experiment: Experiment
    inputs: Inputs  # of the hosted clients alone, at their places in the fleet
    engine: Engine  # trains them; their states are loaded for each message
    parts: MessageParts  # describes messages as the server does
    numbers: dict[int, int]  # place in the fleet -> number in the partition, of each hosted client
    own_data: bool  # whether the data are the node's own


def hosted_clients(
    run_config: Mapping[str, Any], node_config: Mapping[str, Any], data: OwnData | None, widths: Widths
) -> HostedClients:
    """The clients that a node's settings name; `widths` are those of the server's data."""
    folder = str(node_config.get("data", ""))
    text, clients = str(run_config["experiment"]), clients_setting(node_config, run_config)
    return build_clients(text, clients, folder, data, widths)


@lru_cache(maxsize=16)  # a process that answers messages of several rounds builds once
def build_clients(text: str, clients: str, folder: str, data: OwnData | None, widths: Widths) -> HostedClients:
    """Build what trains the clients `0-4,7` of the experiment `text`."""
    experiment, numbers = read_experiment(text), parse_ranges(clients)
    experiment = experiment.model_copy(update={"start": None})  # weights come in messages
    own_data = data is not None or bool(folder)
    if own_data:
        inputs = inputs_from_own_data(experiment, numbers, data or read_folder(folder), widths)
        here = {number: number for number in numbers}
    else:
        whole = inputs_of(experiment)
        place = {number: at for at, number in enumerate(whole.clients)}
        here = {place[number]: number for number in numbers if number in place}  # the others have no examples
        inputs = restrict(whole, {at: at for at in here}, len(place))
    parts = MessageParts(inputs.method, inputs.setting, experiment.codec)
    return HostedClients(experiment, inputs, trainer_of(experiment, inputs), parts, here, own_data)


def clients_setting(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> str:
    """The clients that a node hosts, `0-4,7`: its own setting or, as in Flower's simulation, its partition's."""
    if "clients" in node_config:
        return str(node_config["clients"])
    if "partition-id" in node_config:
        first, step = int(node_config["partition-id"]), int(node_config.get("num-partitions", 0))
        total = read_experiment(str(run_config["experiment"])).clients
        return ",".join(str(n) for n in (range(first, total, step) if step else [first]))
    raise BadExperiment("node config: 'clients' is missing; say which this node hosts, as in clients='0-4,7'.")


def client_facts(hosted: HostedClients) -> list[list[Any]]:
    """Number, examples and examples per label of every hosted client, as the server's roster reads them."""
    fleet = hosted.inputs.setting.fleet
    return [
        [number, int(fleet.examples[at]), fleet.labels[at].tolist()] for at, number in sorted(hosted.numbers.items())
    ]
