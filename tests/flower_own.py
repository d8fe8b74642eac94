"""A Flower grid in one process: messages and states are serialised and read back, and every message has a new app."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from fedloom.chance import Chance
from fedloom.engine.feed import Feed
from fedloom.flower import hold, masked, strategy
from fedloom.flower.your_app.arrays import from_arrays
from fedloom.flower.your_app.contract import needs_mod
from fedloom.method import Method
from worlds import ROUNDS, SEED, World

Tamper = Callable[[int, Message], Message | None]  # (node, reply) -> the reply that arrives, or None


class OneProcess(Grid):
    """Nodes 101, 102, ... with partition ids 0, 1, ...; `tamper` may change or lose a reply."""

    def __init__(self, app: Callable[[], ClientApp], nodes: int, tamper: Tamper = lambda node, reply: reply) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.tamper, self.sent, self.received = app, tamper, 0, 0
        self.contexts = {101 + i: Context(1, 101 + i, {"partition-id": i}, RecordDict(), {}) for i in range(nodes)}
        self.asked: list[list[int]] = []  # nodes, by exchange
        self.errors: list[str] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        self.asked.append([message.metadata.dst_node_id for message in messages])
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            context = context_from_proto(context_to_proto(self.contexts[node]))
            wire = message_to_proto(message).SerializeToString()
            self.sent += len(wire)
            copy = message_to_proto(message)
            copy.ParseFromString(wire)
            try:
                reply = self.app()(message_from_proto(copy), context)
                self.contexts[node] = context
            except Exception as problem:  # noqa: BLE001  a real node answers with an error as well
                self.errors.append(str(problem))
                reply = Message(Error(code=1, reason=str(problem)), reply_to=message)
            arrived = self.tamper(node, reply)
            if arrived is not None:
                self.received += message_to_proto(arrived).ByteSize()
                replies.append(message_from_proto(message_to_proto(arrived)))
        return replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: object, **kwargs: object) -> Message:  # type: ignore[override]
        raise NotImplementedError


def plain_app(world: World, method: Method, mods: list[Mod], held: bool = False) -> ClientApp:
    """A ClientApp in ordinary PyTorch: plain SGD on the batches that fedloom's own client would draw."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, config = message.content["arrays"], message.content["config"]
        client, number = int(context.node_config["partition-id"]), int(config["server-round"])
        model = deepcopy(world.setting.module).train()
        model.load_state_dict(arrays.to_torch_state_dict())
        if held:
            hold(model)
        ids, sizes = torch.tensor([client]), [world.shards.sizes[client]]
        rows = world.shards.rows(ids, sizes[0])
        batches = method.work.plan(ids, rows, sizes, Chance(SEED, number))
        optimiser = torch.optim.SGD(model.parameters(), lr=method.optimiser.rate_at(number))
        losses = []
        for batch in Feed(world.data, batches, world.setting.goal):
            real = batch.weight[0] > 0
            loss = F.cross_entropy(model(batch.x[0, real]), batch.y[0, real])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        metrics = {"num-examples": sizes[0], "train_loss": sum(losses) / len(losses), "steps": len(losses)}
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = deepcopy(world.setting.module).eval()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        with torch.no_grad():
            accuracy = (model(world.data.x).argmax(1) == world.data.y).float().mean()
        metrics = MetricRecord({"accuracy": float(accuracy), "num-examples": len(world.data.y)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


class Played:
    """Some rounds of a strategy on a grid in this process."""

    def __init__(
        self,
        method: Method,
        here: World,
        held: bool = False,
        rounds: int = ROUNDS,
        tamper: Tamper = lambda node, reply: reply,
        evaluate: float = 0.0,
    ) -> None:
        module, example = here.setting.module, here.data.x[:1]
        mods: list[Mod] = [masked(method, module, example)] if needs_mod(method) else []

        def app() -> ClientApp:
            return plain_app(here, method, mods, held)

        self.grid = OneProcess(app, len(here.shards.sizes), tamper)
        self.strategy = strategy(method, module, example, clients=12, seed=SEED, fleet="table4", evaluate=evaluate)
        self.result = self.strategy.start(self.grid, ArrayRecord(module.state_dict()), num_rounds=rounds)
        self.model = from_arrays(self.result.arrays, module, here.setting.layout)

    def total(self, name: str) -> int:
        """The sum of a metric over all rounds."""
        return sum(int(record.get(name, 0)) for record in self.result.train_metrics_clientapp.values())


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-5)
