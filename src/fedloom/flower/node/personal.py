"""Scores of clients' own models, tried by their nodes: own models and own test examples never leave."""

from __future__ import annotations

from contextlib import suppress

from fedloom.codec import Expected, Frame, Rejected, decode
from fedloom.core.types import State
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
    states: dict[int, State | None] = {}
    for client in hosted.numbers:
        with suppress(Rejected):  # its state is not kept any more, and so its model is not known
            states[client] = store.start_of(client, round_id.round + 1).state
    hosted.engine.load(engine_state({client: state for client, state in states.items() if state is not None}))
    score = hosted.engine.personal(message.on(inputs.model))
    assert score is not None
    found = [[client, float(score[client])] for client in sorted(states)]
    return NodeMessage({"score": [[client, None if value != value else value] for client, value in found]}, [])
