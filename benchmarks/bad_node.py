"""The client app of a soak run: honest, but on the node that hosts the client BAD, which is bad in a new way a round.

`benchmarks/soak.py` copies this file into the run's app, with BAD's value.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedloom.flower import client_app
from fedloom.flower.node import client as node_client
from fedloom.flower.protocol.records import FACTS, NodeMessage, Payload, pack, unpack

BAD = ""  # as the node's setting `clients` has it

honest, app = client_app(), ClientApp()

TENSORS = {  # what is sent instead of the trained numbers
    "nan": lambda start, end: end * float("nan"),
    "infinite": lambda start, end: end.index_fill(-1, torch.tensor([0]), float("inf")),
    "beyond": lambda start, end: start + 1e25 * (end - start),
    "far": lambda start, end: start + 1e4 * (end - start),
}
PAYLOADS: dict[str, Callable[[Payload], list[Payload]]] = {
    "garbage": lambda one: [one._replace(data=os.urandom(len(one.data)))],
    "cut": lambda one: [one._replace(data=one.data[: len(one.data) // 2])],
    "flipped": lambda one: [one._replace(data=bytes([one.data[0] ^ 8]) + one.data[1:])],
    "empty": lambda one: [one._replace(data=b"")],
    "long": lambda one: [one._replace(data=one.data + os.urandom(2**26))],
    "three times": lambda one: [one, one, one],
    "another's": lambda one: [one._replace(facts={**one.facts, "client": 0})],
    "nobody's": lambda one: [one._replace(facts={**one.facts, "client": -7})],
    "many": lambda one: [one._replace(data=b"")] * 50_000,
    "lines": lambda one: [
        Payload({"client": one.facts["client"], "refused": "\x1b[2J\nround 9: all is well\n" * 10_000})
    ],
}
RECORDS = {
    "no facts": lambda: RecordDict({"other": ConfigRecord({"a": 1})}),
    "deep facts": lambda: RecordDict({FACTS: ConfigRecord({"json": "[" * 100_000})}),
    "other facts": lambda: RecordDict({FACTS: ConfigRecord({"json": json.dumps({"facts": [], "items": 3})})}),
}
DEEDS = {
    "raises": lambda: 1 / 0,
    "dies": lambda: os._exit(9),
    "dawdles": lambda: time.sleep(20),
}
WAYS = [*TENSORS, *PAYLOADS, *RECORDS, *DEEDS, "old"]


@app.query()
def query(message: Message, context: object) -> Message:
    """Honest: the node says whom it hosts."""
    return honest(message=message, context=context)


@app.train()
def train(message: Message, context: object) -> Message:
    """Train, and answer badly if this is the bad node."""
    if context.node_config["clients"] != BAD:
        return honest(message=message, context=context)
    number = unpack(message.content).facts["round"]
    way = WAYS[number % len(WAYS)]
    write, instead = node_client.write_reply, TENSORS.get(way)

    def written(hosted: object, round_id: object, client: int, task: object, reply: object, *rest: object) -> object:
        if instead is not None:
            reply = reply._replace(params=instead(task.model, reply.params))
        return write(hosted, round_id, client, task, reply, *rest)

    node_client.write_reply = written
    answer = honest(message=message, context=context)
    if way in DEEDS:
        DEEDS[way]()
    if way in RECORDS:
        return Message(RECORDS[way](), reply_to=message)
    content = unpack(answer.content)
    payloads = [new for one in content.payloads for new in PAYLOADS.get(way, lambda one: [one])(one)]
    file = os.path.join(context.node_config["state"], "old-reply")
    if way == "old" and os.path.exists(file):
        with open(file, "rb") as kept:
            payloads = [payloads[0]._replace(data=kept.read())]
    elif content.payloads:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "wb") as kept:
            kept.write(content.payloads[0].data)
    return Message(pack(NodeMessage(content.facts, payloads)), reply_to=message)
