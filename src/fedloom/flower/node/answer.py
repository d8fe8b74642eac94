"""A node's answers to the server: which clients it hosts, their replies, and the scores of their own models."""

from __future__ import annotations

import os
import resource
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedloom.accel.precision import computing
from fedloom.errors import FedloomError
from fedloom.flower.node.client import train_client
from fedloom.flower.node.first_weights import begin_with_first_weights
from fedloom.flower.node.hosted_clients import HostedClients, client_facts, hosted_clients
from fedloom.flower.node.own_data import OwnData
from fedloom.flower.node.state_store import StateStore
from fedloom.flower.protocol.code import code_of
from fedloom.flower.protocol.history import History
from fedloom.flower.protocol.process_age import LIFE, seconds_since_start
from fedloom.flower.protocol.records import NodeMessage, Payload, fact, pack, unpack
from fedloom.flower.protocol.round_id import RoundId
from fedloom.runs.base import hash_of_base
from fedloom.runs.inputs import Widths
from fedloom.runs.threads import threads_for

if TYPE_CHECKING:
    from flwr.app import Context, RecordDict


def answer(kind: str, content: RecordDict, context: Context, data: OwnData | None) -> RecordDict:
    """Answer a message of this kind (query, train or evaluate); an error becomes the fact `refused`."""
    began = time.time()
    try:
        message = unpack(content)
        widths = Widths(*(fact(message.facts, name, int) for name in Widths._fields))
        hosted = hosted_clients(context.run_config, context.node_config, data, widths)
        begin_with_first_weights(hosted, message, context)
        with threads_for([hosted.inputs]), computing(hosted.experiment.precision):
            found = _answer(kind, message, hosted, context)
    except FedloomError as problem:
        found = NodeMessage({"refused": str(problem)}, [])
    times = {"began": began, "ended": time.time(), "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    facts = {**found.facts, **times, "seconds_start": seconds_since_start(began), "life": os.environ.get(LIFE)}
    return pack(NodeMessage(facts, found.payloads))


def _answer(kind: str, message: NodeMessage, hosted: HostedClients, context: Context) -> NodeMessage:
    """The answer without times."""
    if kind == "query":
        facts = {"fedloom": version("fedloom"), "clients": client_facts(hosted), "own": hosted.own_data}
        facts["code"] = code_of(hosted.experiment)
        facts["base"] = hash_of_base(hosted.inputs.network, hosted.inputs.setting.layout)
        return NodeMessage({**facts, "tests": hosted.inputs.own_test is not None}, [])
    round_id = RoundId.read(message.facts)
    folder, barrier = str(context.node_config.get("state", "")), hosted.inputs.method.pace.barrier
    store = StateStore(context.state, folder, round_id.run, History.read(message.facts), barrier)
    if kind == "evaluate":
        from fedloom.flower.node.personal import personal_scores

        return personal_scores(hosted, round_id, message.payloads, store)
    return NodeMessage({}, [_train_or_refuse(hosted, round_id, payload, store) for payload in message.payloads])


def _train_or_refuse(hosted: HostedClients, round_id: RoundId, asked: Payload, store: StateStore) -> Payload:
    """One client's reply; an error in its message affects no other client."""
    client: Any = asked.facts.get("client")
    try:
        return train_client(hosted, round_id, fact(asked.facts, "client", int), asked, store)
    except FedloomError as problem:
        return Payload({"client": client, "refused": str(problem)})
