"""A Flower Strategy that runs the server half of a fedloom method in a ServerApp of your own.

Selection, allocation, masks, admission, repair, aggregation and memory are the method's parts, called as in `round.py`.
One Flower node is one client, numbered by the order of node ids among the nodes that are connected at first. A method
whose clients only train what they are sent works with any ClientApp of plain arrays; others need
`fedloom.flower.masked` in it, and methods that change local steps need fedloom's own client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from secrets import token_hex
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.codec import base_hash
from fedloom.core.devices import Devices
from fedloom.core.part import NobodyLeft
from fedloom.core.refused import counted
from fedloom.core.types import Fleet, Setting, Task
from fedloom.errors import BadExperiment, RunStopped
from fedloom.flower.protocol.round_id import RoundId
from fedloom.flower.your_app.arrays import from_arrays, to_arrays
from fedloom.flower.your_app.contract import check_client_half, check_server_half, method_of, needs_mod, setting_of
from fedloom.flower.your_app.messages import RoundMessages, mean_metrics
from fedloom.method import Memory, Method
from fedloom.round import ask_cohort, take_replies
from fedloom.runs.settings import settings_of
from fedloom.world.fleets import make_devices

log = logging.getLogger("flwr")


class OpenRound(NamedTuple):
    """A round whose replies have not been aggregated."""

    task: Task
    memory: Memory
    setting: Setting
    chance: Chance
    messages: RoundMessages


class Fedloom(Strategy):
    """The server half of a method.

    Args:
        method: the method; clients use their own optimiser and work here, not its.
        model: the network, as the clients have it; it is copied.
        example: one or more inputs [n, ...]; needed where neurons are chosen.
        clients: nodes to wait for before the first round; all nodes connected by then are the fleet.
        patience: seconds to wait for them.
        seed: of selection, masks and all other chance.
        fleet: the links and speeds that the server assumes of nodes, a name or a table's file as in `--fleet`.
        evaluate: the fraction of the nodes that evaluates the model after a round.
        weighted_by_key: the metric with a client's number of examples.
        loss_key: the metric with a client's mean training loss; FedDD, Oort and power-of-choice need it.
        arrayrecord_key: the name of the model's record in messages, as in Flower's strategies.
        configrecord_key: the name of the configuration's record.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        example: Tensor | None = None,
        *,
        clients: int = 2,
        patience: float = 600.0,
        seed: int = 0,
        fleet: str = "equal",
        evaluate: float = 1.0,
        weighted_by_key: str = "num-examples",
        loss_key: str = "train_loss",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        if clients < 1:
            raise BadExperiment(f"clients (nodes to wait for) is {clients}; it is at least 1.")
        if not 0 <= evaluate <= 1:
            raise BadExperiment(f"evaluate (fraction of the nodes that evaluate) is {evaluate}; it is from 0 to 1.")
        check_server_half(method)
        if needs_mod(method):
            check_client_half(method)
            if example is None:
                raise BadExperiment(
                    "example is missing; the network's neurons are found by tracing one or more inputs [n, ...]."
                )
        make_devices(fleet, clients, seed)  # raises if there is no such fleet
        self.method, self.clients, self.patience, self.seed, self.fleet = method, clients, patience, seed, fleet
        self.evaluate, self.keys = evaluate, (arrayrecord_key, configrecord_key)
        self.weight, self.loss = weighted_by_key, loss_key
        self.setting = setting_of(model, example, Fleet(torch.ones(0), torch.ones(0, 1)))
        self.run = token_hex(8)  # binds messages to this run
        self.nodes: list[int] = []  # [N] the node of each client
        self.memory: Memory | None = None
        self._first: Tensor | None = None  # [P] the model before the first round, from which new clients start
        self._answered: set[int] = set()  # nodes whose last reply was sound
        self._open: OpenRound | None = None

    def summary(self) -> None:
        """Log the method's parts and what it needs of clients."""
        for slot in ("select", "allocate", "mask", "local", "upload", "admit", "repair", "aggregate"):
            log.info("\t%s: %s", slot, getattr(self.method, slot))
        mods = " behind mods=[fedloom.flower.masked(...)]" if needs_mod(self.method) else ""
        log.info("\tclients: plain arrays%s; %d or more, seed %d", mods, self.clients, self.seed)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the method choose who trains what, and write their tasks."""
        model = from_arrays(arrays, self.setting.module, self.setting.layout)
        present = self._connected(grid)
        if self.memory is None:
            self._first, self.memory = model, self.method.init(self.setting, model)
        chance = Chance(self.seed, server_round)
        try:
            ids, task, memory = ask_cohort(self.method, self.memory, model, self.setting, chance)
        except NobodyLeft as why:
            log.info("round %d: %s", server_round, why)
            self._open = None
            return []
        config["server-round"] = server_round
        round_id = RoundId(self.run, server_round, 1, base_hash(model))
        written = RoundMessages(self.method, self.setting, task, round_id, self.seed, self.keys)
        who = [(row, self.nodes[client]) for row, client in enumerate(ids.tolist()) if self.nodes[client] in present]
        messages = []
        for row, node in who:
            first = None if node in self._answered else self._first
            content = written.write(row, node, config, first)
            messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN))
        self._open = OpenRound(task, memory, self.setting, chance, written)
        log.info("round %d: tasks for %d of %d nodes, %d bytes", server_round, len(who), len(self.nodes), written.down)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Read the replies and aggregate them."""
        if self._open is None:
            return None, None
        task, memory, setting, chance, messages = self._open
        for message in replies:
            node = message.metadata.src_node_id
            if messages.read(node, message, self.weight, self.loss):
                self._answered.add(node)
            else:
                self._answered.discard(node)  # it may have lost its state: send it the first model again
        reply = messages.reply()
        self._set_examples(reply.ids[reply.arrived], reply.report["examples"][reply.arrived])
        new, self.memory, reply = take_replies(self.method, memory, task, setting, reply, chance)
        self._open = None
        metrics = MetricRecord(mean_metrics(messages.metrics, self.weight))
        refused = counted(reply.rejected, reply.strays)
        came = {"replies": int(reply.arrived.sum()), "upload-bytes": messages.up, "download-bytes": messages.down}
        for name, count in {**came, **refused}.items():
            metrics[name] = count
        return to_arrays(self.setting.module, self.setting.layout, new), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the whole model to a fraction of the nodes, drawn anew every round."""
        present = [node for node in self.nodes if node in set(grid.get_node_ids())]
        count = min(len(present), round(self.evaluate * len(self.nodes)))
        config["server-round"] = server_round
        content = RecordDict({self.keys[0]: arrays, self.keys[1]: config})
        chosen = Chance(self.seed, server_round).choose("evaluate", count, len(present)).tolist() if count else []
        return [Message(content, dst_node_id=present[i], message_type=MessageType.EVALUATE) for i in chosen]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Means of the metrics, weighted by examples."""
        found = []
        for message in replies:
            if message.has_error():
                log.warning("node %d cannot evaluate: %s", message.metadata.src_node_id, message.error.reason)
            else:
                found += list(message.content.metric_records.values())[:1]
        means = mean_metrics([dict(record) for record in found], self.weight)
        return MetricRecord(means) if means else None

    def _connected(self, grid: Grid) -> set[int]:
        """The connected nodes. They are the fleet at first; later, new nodes take the places of nodes that are gone."""
        until = time.monotonic() + self.patience
        while len(present := set(grid.get_node_ids())) < self.clients and not self.nodes:
            if time.monotonic() > until:
                raise RunStopped(
                    f"{len(present)} nodes are connected after {self.patience:.0f} seconds; expected {self.clients}. "
                    "Start more, or lower `clients`."
                )
            time.sleep(0.5)
        if not self.nodes:
            self.nodes = sorted(present)
            devices = make_devices(self.fleet, len(present), self.seed)
            self._set_fleet(torch.ones(len(present), dtype=torch.int64), devices)
        for node in sorted(present - set(self.nodes)):
            free = next((place for place, other in enumerate(self.nodes) if other not in present), None)
            if free is not None:
                log.info("node %d takes the place of node %d, which is gone", node, self.nodes[free])
                self.nodes[free] = node
        return present

    def _set_examples(self, ids: Tensor, examples: Tensor) -> None:
        """Enter the numbers of examples that clients report; before its first reply a client counts with one."""
        self._set_fleet(self.setting.fleet.examples.index_put((ids,), examples.long()), self.setting.fleet.devices)

    def _set_fleet(self, examples: Tensor, devices: Devices | None) -> None:
        """Replace the setting's fleet; clients do not report classes, so all examples are of one class."""
        neurons = {name: value for name, value in vars(self.setting).items() if name == "neurons"}
        self.setting = replace(self.setting, fleet=Fleet(examples, examples[:, None], devices))
        vars(self.setting).update(neurons)  # traced once


def make_strategy(
    method: Method | str, model: nn.Module, example: Tensor | None, settings: Mapping[str, Any]
) -> Fedloom:
    """A strategy from `settings`: its own, and those of a named method."""
    own = settings_of(Fedloom.__init__, skip=("self", "method", "model", "example"))
    mine = {name: value for name, value in settings.items() if name in own}
    rest = {name: value for name, value in settings.items() if name not in own and name != "per_round"}
    return Fedloom(method_of(method, rest, settings.get("per_round")), model, example, **mine)
