"""What does a node do with a message? It decodes strictly, trains its clients, keeps their states and answers."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, Any

import fedloom
from fedloom.accel.precision import computing
from fedloom.errors import FedloomError
from fedloom.flower.node.client import teach
from fedloom.flower.node.host import Host, host_of, known
from fedloom.flower.node.own_data import OwnData
from fedloom.flower.node.process_age import since_start
from fedloom.flower.node.state import Store
from fedloom.flower.protocol.records import Item, Parcel, fact, pack, unpack
from fedloom.flower.protocol.round_id import Order
from fedloom.runs.threads import threads_for

if TYPE_CHECKING:
    from flwr.app import Context, RecordDict


def answer(what: str, content: RecordDict, context: Context, data: OwnData | None) -> RecordDict:
    """The node's answer; what it cannot do it says."""
    began = time.time()
    try:
        parcel = unpack(content)
        host = host_of(context.run_config, context.node_config, data, fact(parcel.facts, "classes", int))
        with threads_for([host.world]), computing(host.experiment.precision):
            found = _answers(what, parcel, host, context)
    except FedloomError as problem:
        found = Parcel({"refused": str(problem)}, [])
    times = {"began": began, "ended": time.time(), "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    return pack(Parcel({**found.facts, **times, "seconds_start": since_start(began)}, found.items))


def _answers(what: str, parcel: Parcel, host: Host, context: Context) -> Parcel:
    if what == "hello":
        tests = host.world.own_test is not None
        return Parcel({"fedloom": fedloom.__version__, "clients": known(host), "own": host.own, "tests": tests}, [])
    order = Order.read(parcel.facts)
    store = Store(context.state, str(context.node_config.get("state", "")), order.run)
    if what == "evaluate":
        from fedloom.flower.node.personal import tried

        return tried(host, order, parcel.items, store)
    return Parcel({}, [_taught(host, order, item, store) for item in parcel.items])


def _taught(host: Host, order: Order, item: Item, store: Store) -> Item:
    """One client's answer; what is wrong with its message concerns no other client."""
    client: Any = item.facts.get("client")
    try:
        return teach(host, order, fact(item.facts, "client", int), item, store)
    except FedloomError as problem:
        return Item({"client": client, "refused": str(problem)})
