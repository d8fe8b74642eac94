"""How does a fedloom method run in a ServerApp of one's own? As a Flower Strategy that plays its server half.

Selection, allocation, masks, admission, repair, aggregation and memory are the method's parts, asked as in `round.py`.
One Flower node is one client, numbered by the order of node ids among those that were there at first. A method whose
clients only train what they are sent works with any ClientApp of plain arrays; others need `fedloom.flower.masked` in
it, and those whose steps are not plain need fedloom's own client.
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
from fedloom.flower.your_app.arrays import from_arrays, to_arrays
from fedloom.flower.your_app.contract import check_client_half, method_of, plain, setting_of
from fedloom.flower.your_app.messages import Letters, mean_metrics
from fedloom.method import Memory, Method
from fedloom.round import ask_cohort, take_replies
from fedloom.runs.settings import settings_of
from fedloom.world.fleets import make_devices

log = logging.getLogger("flwr")


class Asked(NamedTuple):
    """A round whose replies are awaited."""

    task: Task
    memory: Memory
    setting: Setting
    chance: Chance
    letters: Letters


class Fedloom(Strategy):
    """A method's server half.

    Args:
        method: the method; its optimiser and work are the clients' own business here.
        model: the network, as the clients have it; it is copied.
        example: one or more inputs [n, ...]; needed where neurons are chosen.
        clients: nodes to wait for before the first round; all that are there by then are the fleet.
        patience: seconds to wait for them.
        seed: of selection, masks and all other chance.
        fleet: what the server takes the nodes' links and speed to be, a name or a table's file as in `--fleet`.
        evaluate: the share of the nodes that is asked to evaluate the model after a round.
        weighted_by_key: the metric that says how many examples a client has.
        loss_key: the metric that says a client's mean training loss; FedDD, Oort and power-of-choice need it.
        arrayrecord_key: the name of the model's record in messages, as in Flower's strategies.
        configrecord_key: the name of the configuration's.
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
            raise BadExperiment(f"evaluate (share of the nodes that evaluate) is {evaluate}; it lies from 0 to 1.")
        if not plain(method):
            check_client_half(method)
            if example is None:
                raise BadExperiment(
                    "example is missing; the network's neurons are found by tracing one or more inputs [n, ...]."
                )
        make_devices(fleet, clients, seed)  # refuses a fleet that does not exist
        self.method, self.clients, self.patience, self.seed, self.fleet = method, clients, patience, seed, fleet
        self.evaluate, self.keys = evaluate, (arrayrecord_key, configrecord_key)
        self.weight, self.loss = weighted_by_key, loss_key
        self.setting = setting_of(model, example, Fleet(torch.ones(0), torch.ones(0, 1)))
        self.run = token_hex(8)  # binds messages to this run
        self.nodes: list[int] = []  # [N] the node of each client
        self.memory: Memory | None = None
        self._first: Tensor | None = None  # [P] the model before the first round, with which newcomers begin
        self._met: set[int] = set()  # nodes that have answered
        self._asked: Asked | None = None

    def summary(self) -> None:
        """Say what is played."""
        for slot in ("select", "allocate", "mask", "local", "upload", "admit", "repair", "aggregate"):
            log.info("\t%s: %s", slot, getattr(self.method, slot))
        needs = "plain arrays" if plain(self.method) else "plain arrays behind mods=[fedloom.flower.masked(...)]"
        log.info("\tclients: %s; %d or more, seed %d", needs, self.clients, self.seed)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the method who trains what, and write to them."""
        model = from_arrays(arrays, self.setting.module, self.setting.layout)
        present = self._settle(grid)
        if self.memory is None:
            self._first, self.memory = model, self.method.init(self.setting, model)
        chance = Chance(self.seed, server_round)
        try:
            ids, task, memory = ask_cohort(self.method, self.memory, model, self.setting, chance)
        except NobodyLeft as why:
            log.info("round %d: %s", server_round, why)
            self._asked = None
            return []
        config["server-round"] = server_round
        letters = Letters(self.method, self.setting, task, self.run, base_hash(model), self.seed, self.keys)
        who = [(row, self.nodes[client]) for row, client in enumerate(ids.tolist()) if self.nodes[client] in present]
        messages = []
        for row, node in who:
            first = None if node in self._met else self._first
            content = letters.written(row, node, config, first)
            messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN))
        self._asked = Asked(task, memory, self.setting, chance, letters)
        log.info("round %d: %d of %d nodes are asked, %d bytes", server_round, len(who), len(self.nodes), letters.down)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Read what came, and let the method make a model of it."""
        if self._asked is None:
            return None, None
        task, memory, setting, chance, letters = self._asked
        for message in replies:
            node = message.metadata.src_node_id
            if letters.take(node, message, self.weight, self.loss):
                self._met.add(node)
            else:
                self._met.discard(node)  # it may have lost its state: it will be sent the first model again
        reply = letters.reply()
        self._learn(reply.ids[reply.arrived], reply.report["examples"][reply.arrived])
        new, self.memory, reply = take_replies(self.method, memory, task, setting, reply, chance)
        self._asked = None
        metrics = MetricRecord(mean_metrics(letters.metrics, self.weight))
        refused = counted(reply.rejected, reply.strays)
        came = {"replies": int(reply.arrived.sum()), "upload-bytes": letters.up, "download-bytes": letters.down}
        for name, count in {**came, **refused}.items():
            metrics[name] = count
        return to_arrays(self.setting.module, self.setting.layout, new), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The whole model to a share of the nodes, drawn anew every round."""
        present = [node for node in self.nodes if node in set(grid.get_node_ids())]
        count = min(len(present), round(self.evaluate * len(self.nodes)))
        config["server-round"] = server_round
        content = RecordDict({self.keys[0]: arrays, self.keys[1]: config})
        chosen = Chance(self.seed, server_round).choose("evaluate", count, len(present)).tolist() if count else []
        return [Message(content, dst_node_id=present[i], message_type=MessageType.EVALUATE) for i in chosen]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics' means, by examples."""
        found = []
        for message in replies:
            if message.has_error():
                log.warning("node %d cannot evaluate: %s", message.metadata.src_node_id, message.error.reason)
            else:
                found += list(message.content.metric_records.values())[:1]
        means = mean_metrics([dict(record) for record in found], self.weight)
        return MetricRecord(means) if means else None

    def _settle(self, grid: Grid) -> set[int]:
        """The nodes that are there; the first time the fleet is founded, later newcomers take places that are free."""
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
            self._settled(torch.ones(len(present), dtype=torch.int64), devices)
        for node in sorted(present - set(self.nodes)):
            free = next((place for place, other in enumerate(self.nodes) if other not in present), None)
            if free is not None:
                log.info("node %d takes the place of node %d, which is gone", node, self.nodes[free])
                self.nodes[free] = node
        return present

    def _learn(self, ids: Tensor, examples: Tensor) -> None:
        """How many examples clients have is known from their replies; until then they count as equally many."""
        self._settled(self.setting.fleet.examples.index_put((ids,), examples.long()), self.setting.fleet.devices)

    def _settled(self, examples: Tensor, devices: Devices | None) -> None:
        """The setting with a new fleet; classes are not told, so that everyone has the one there is."""
        known = {name: value for name, value in vars(self.setting).items() if name == "neurons"}
        self.setting = replace(self.setting, fleet=Fleet(examples, examples[:, None], devices))
        vars(self.setting).update(known)  # what was traced need not be traced again


def make_strategy(
    method: Method | str, model: nn.Module, example: Tensor | None, settings: Mapping[str, Any]
) -> Fedloom:
    """A strategy from its own settings and those of a named method."""
    own = settings_of(Fedloom.__init__, skip=("self", "method", "model", "example"))
    mine = {name: value for name, value in settings.items() if name in own}
    rest = {name: value for name, value in settings.items() if name not in own and name != "per_round"}
    return Fedloom(method_of(method, rest, settings.get("per_round")), model, example, **mine)
