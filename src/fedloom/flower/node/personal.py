"""Scores of clients' own models, tried by their nodes: own models and own test examples never leave."""

from __future__ import annotations

from fedloom.codec import Expected, Frame, decode
from fedloom.flower.node.client import engine_state
from fedloom.flower.node.hosted_clients import HostedClients
from fedloom.flower.node.state_store import StateStore
from fedloom.flower.protocol.records import NodeMessage, Payload
from fedloom.flower.protocol.round_id import NO_CLIENT, RoundId


def personal_scores(
    hosted: HostedClients, round_id: RoundId, payloads: list[Payload], store: StateStore
) -> NodeMessage:
    """The score of every hosted client's own model; None for a client without test examples."""
    inputs = hosted.inputs
    if inputs.own_test is None or len(payloads) != 1:
        return NodeMessage({"score": []}, [])
    message = decode(payloads[0].data, Expected(Frame(inputs.setting.layout), round_id.stamp(NO_CLIENT, "down")))
    states = {client: saved.after for client in hosted.numbers if (saved := store.get(client)) is not None}
    hosted.engine.load(engine_state(states))
    score = hosted.engine.personal(message.on(inputs.model))
    assert score is not None
    found = [[client, float(score[client])] for client in sorted(hosted.numbers)]
    return NodeMessage({"score": [[client, None if value != value else value] for client, value in found]}, [])
