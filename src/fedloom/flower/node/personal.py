"""How good are clients' own models? Their nodes try them: own models and own test splits never leave."""

from __future__ import annotations

from typing import Any

import torch

from fedloom.codec import Expected, Frame, decode
from fedloom.engine.personal import personal_accuracy
from fedloom.engine.storage.client_states import ClientStates
from fedloom.flower.node.client import RESIDUAL
from fedloom.flower.node.host import Host
from fedloom.flower.node.state import Store
from fedloom.flower.protocol.records import Item, Parcel
from fedloom.flower.protocol.round_id import Order

EVERYBODY = 0  # the global model is not sent to one client, and stamped as if to the first


def tried(host: Host, order: Order, items: list[Item], store: Store) -> Parcel:
    """The accuracy of every hosted client's own model; None for one without test examples."""
    world = host.world
    if world.own_test is None or len(items) != 1:
        return Parcel({"accuracy": []}, [])
    frame = Frame(world.setting.layout)
    message = decode(items[0].data, Expected(frame, order.stamp(EVERYBODY, "down")))
    model = message.on(world.model)
    engine = world.engine
    engine.states = ClientStates(world.setting.fleet.size, world.model.device)
    met = {client: kept.after for client in host.clients if (kept := store.get(client)) is not None}
    own = {client: {n: v for n, v in state.items() if n != RESIDUAL} for client, state in sorted(met.items())}
    own = {client: state for client, state in own.items() if state}
    if own:
        names = list(next(iter(own.values())))
        rows = {f"row.{name}": torch.stack([state[name] for state in own.values()]) for name in names}
        engine.states.load({"client": torch.tensor(list(own)), **rows})
    accuracy = personal_accuracy(engine, model, *world.own_test)
    found = [[client, float(accuracy[client])] for client in sorted(host.clients)]
    return Parcel({"accuracy": [[client, None if value != value else value] for client, value in found]}, [])


def accuracies(facts: dict[str, Any], clients: list[int]) -> list[tuple[int, float]]:
    """What a node says of its clients' models, as far as it can be so."""
    said = facts.get("accuracy")
    pairs = [pair for pair in said if isinstance(pair, list) and len(pair) == 2] if isinstance(said, list) else []
    return [
        (client, float(value))
        for client, value in pairs
        if type(client) is int and client in clients and type(value) in (int, float) and 0 <= value <= 1
    ]
