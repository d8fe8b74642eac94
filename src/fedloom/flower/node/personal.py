"""Accuracy of clients' own models, tried by their nodes: own models and own test examples never leave."""

from __future__ import annotations

import torch

from fedloom.codec import Expected, Frame, decode
from fedloom.engine.personal import personal_accuracy
from fedloom.engine.storage.client_states import ClientStates
from fedloom.flower.node.client import RESIDUAL
from fedloom.flower.node.hosted_clients import HostedClients
from fedloom.flower.node.state_store import StateStore
from fedloom.flower.protocol.records import NodeMessage, Payload
from fedloom.flower.protocol.round_id import NO_CLIENT, RoundId


def personal_accuracies(
    hosted: HostedClients, round_id: RoundId, payloads: list[Payload], store: StateStore
) -> NodeMessage:
    """The accuracy of every hosted client's own model; None for a client without test examples."""
    world = hosted.world
    if world.own_test is None or len(payloads) != 1:
        return NodeMessage({"accuracy": []}, [])
    frame = Frame(world.setting.layout)
    message = decode(payloads[0].data, Expected(frame, round_id.stamp(NO_CLIENT, "down")))
    model = message.on(world.model)
    engine = world.engine
    engine.states = ClientStates(world.setting.fleet.size, world.model.device)
    states = {client: saved.after for client in hosted.numbers if (saved := store.get(client)) is not None}
    own = {client: {n: v for n, v in state.items() if n != RESIDUAL} for client, state in sorted(states.items())}
    own = {client: state for client, state in own.items() if state}
    if own:
        names = list(next(iter(own.values())))
        rows = {f"row.{name}": torch.stack([state[name] for state in own.values()]) for name in names}
        engine.states.load({"client": torch.tensor(list(own)), **rows})
    accuracy = personal_accuracy(engine, model, *world.own_test)
    found = [[client, float(accuracy[client])] for client in sorted(hosted.numbers)]
    return NodeMessage({"accuracy": [[client, None if value != value else value] for client, value in found]}, [])
