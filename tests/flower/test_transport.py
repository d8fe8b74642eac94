"""Bytes that Flower adds: the reckoning against Flower's own requests, and the tables' columns."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, strategies as st

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    DeactivateNodeResponse,
    PullMessagesResponse,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse, PushObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

import fedloom.core.costs as costs_of
from fedloom.flower.protocol.records import NodeMessage, Payload, pack
from fedloom.flower.server.costs import CostRecorder
from fedloom.flower.server.transport import APP, CONNECTION, LinkBytes, Load, Meter, connections, exchange, waiting
from flower_world import NODES, fake, served, tiny, tiny_data

MIB = 2**20
ANSWER = b"HTTP/1.1 200 OK\r\ndate: Mon, 16 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
ANSWER += b"content-length: 100\r\ncontent-type: application/protobuf\r\n\r\n"
NUMBER = 2**63 + 5  # as long as Flower's own numbers


def node_message(*sizes: int) -> NodeMessage:
    """A message with payloads of these sizes, all different."""
    facts = {"run": "a" * 32, "round": 3, "attempt": 1, "base": "b" * 32, "classes": 10}
    return NodeMessage(facts, [Payload({"client": number}, os.urandom(size)) for number, size in enumerate(sizes)])


def message(content: NodeMessage, to: Message | None = None) -> tuple[Message, dict[str, bytes]]:
    """A message as Flower sends it, and its objects."""
    TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = NUMBER, NUMBER, NUMBER
    if to is None:
        made = Message(pack(content), dst_node_id=NUMBER, message_type="train", ttl=660.0)
    else:
        made = Message(pack(content), reply_to=to)
    made.metadata.__dict__["_message_id"] = made.object_id
    return made, {name: thing.deflate() for name, thing in get_all_nested_objects(made).items()}


def on_the_wire(size: int, body: int) -> int:
    """Bytes of a request or answer in TLS records; head and body have their own."""
    return size + 22 * (1 + -(-body // 2**14))


class Link:
    """A link in memory that sends one message, takes the answer, and counts bytes."""

    def __init__(self, asked: NodeMessage, answer: NodeMessage) -> None:
        self.asked, self.up, self.down = message(asked), 0, 0
        self.answer = message(answer, self.asked[0])

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = self._answer(path.rpartition("/")[2], request).SerializeToString()
        if not path.endswith(("activate-node", "heartbeat")):
            head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in request.headers.items()) + "\r\n"
            self.up += on_the_wire(len(head) + len(request.content), len(request.content))
            self.down += on_the_wire(len(ANSWER) + len(body), len(body))
        return httpx.Response(200, content=body)

    def _answer(self, what: str, request: httpx.Request) -> Any:
        match what:
            case "activate-node":
                return ActivateNodeResponse(node_id=NUMBER)
            case "deactivate-node":
                return DeactivateNodeResponse()
            case "send-node-heartbeat":
                return SendNodeHeartbeatResponse(success=True)
            case "pull-messages":
                made, _ = self.asked
                empty = message_to_proto(remove_content_from_message(made))
                return PullMessagesResponse(messages_list=[empty], message_object_trees=[get_object_tree(made)])
            case "pull-object":
                [content] = [v for k, v in self.asked[1].items() if k.encode() in request.content]
                return PullObjectResponse(object_found=True, object_available=True, object_content=content)
            case "push-messages":
                return PushMessagesResponse(objects_to_push=list(self.answer[1]), session_id="c" * 36)
            case "push-object":
                return PushObjectResponse(stored=True)
            case "confirm-message-received":
                return ConfirmMessageReceivedResponse()
        raise AssertionError(what)


@pytest.mark.parametrize(
    ("down", "up"),
    [((), ()), ((54_000,), (55_000,)), ((300_000, 5_000, 70_000), (20_000,)), ((3 * MIB, 6 * MIB), (5 * MIB,))],
)
def test_the_reckoning_is_what_flowers_node_sends(down: Any, up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Flower's own connection, message and signature; without payloads, bytes agree within 3 %."""
    asked, answer = node_message(*down), node_message(*up)
    link, key = Link(asked, answer), ec.generate_private_key(ec.SECP384R1())
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(link)))
    with http_request_response("127.0.0.1:8000", False, None, (key, key.public_key())) as connection:
        _, receive, send, _, _, pull, push, confirm = connection
        assert receive() is not None
        for name, content in link.asked[1].items():
            assert pull(NUMBER, name) == content
        confirm(NUMBER, link.asked[0].metadata.message_id)
        made, objects = link.answer
        _, session = send(made, get_object_tree(made), 1.0)
        for name, content in objects.items():
            push(NUMBER, session, name, content)
    assert (len(link.asked[1]), len(objects)) == (Load.of(asked).objects, Load.of(answer).objects)
    found = exchange(Load.of(asked), Load.of(answer))
    assert found.up - answer.size == pytest.approx(link.up - answer.size, rel=0.03)
    assert found.down - asked.size == pytest.approx(link.down - asked.size, rel=0.03)


def test_a_meter_counts_exchanges_and_time() -> None:
    meter, asked, answer = Meter(100.0), Load(3, 1000), Load(3, 2000)
    meter.seen({1, 2}, 110.0)
    meter.exchange(1, asked, answer, busy=0.5, now=120.0)
    first = meter.take(1, 130.0)
    whole = exchange(asked, answer).plus(CONNECTION).plus(APP).plus(waiting(20.0, 0.5))
    whole = whole.plus(waiting(10.0, since=0.0))
    assert first == pytest.approx(whole)
    assert meter.take(1, 130.0) == (0, 0)
    meter.exchange(1, asked, answer, busy=20.0, now=153.0)  # both connections are dropped meanwhile
    assert meter.take(1, 153.0) == pytest.approx(
        exchange(asked, answer).plus(CONNECTION, 3).plus(waiting(23.0, 20.0, 10.0))
    )
    meter.exchange(1, asked, answer, busy=1.0, now=157.0)  # at once: one is still there
    assert meter.take(1, 157.0) == pytest.approx(exchange(asked, answer).plus(waiting(4.0, 1.0, 0.0)))
    meter.seen({2}, 200.0)  # node 1 is away, and does not wait
    meter.seen({1, 2, 3}, 300.0)
    assert meter.take(1, 303.0) == pytest.approx(waiting(103.0, since=43.0))
    assert meter.take(3, 303.0) == pytest.approx(waiting(3.0))
    assert meter.take(2, 303.0) == pytest.approx(waiting(203.0))


def test_a_node_cannot_have_been_busy_for_longer_than_passed() -> None:
    meter = Meter(0.0)
    meter.seen({1}, 0.0)
    meter.exchange(1, Load(3, 0), Load(3, 0), busy=1e300, now=10.0)
    assert meter.take(1, 10.0).up >= exchange(Load(3, 0), Load(3, 0)).up


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=9),
    st.integers(0, 10**5),
    st.integers(0, 10**5),
)
def test_clients_of_a_node_share_its_link(sizes: list[tuple[int, int]], up: int, down: int) -> None:
    """Their own bytes and what they share are the link's, to the byte."""
    clients = list(range(len(sizes)))
    costs = CostRecorder(clients)
    for client, (sent, came) in enumerate(sizes):
        costs.down[client], costs.up[client] = sent, came
    link = LinkBytes(sum(costs.up.values()) + up, sum(costs.down.values()) + down)
    costs.record_link(clients, link)
    none = torch.zeros(len(clients), dtype=torch.int64)
    sizes_by_kind = costs_of.Bytes(none, none, none)
    found = costs.measured(sizes_by_kind, sizes_by_kind, torch.zeros(())).columns or {}
    assert int((found["bytes_up"] + found["transport_up"]).sum()) == link.up
    assert int((found["bytes_down"] + found["transport_down"]).sum()) == link.down
    assert int(found["transport_up"].max() - found["transport_up"].min()) <= 1


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 1e4))
def test_time_adds_up(one: float, other: float, busy: float) -> None:
    assert waiting(one).plus(waiting(other)) == pytest.approx(waiting(one + other))
    assert waiting(one, busy).up <= waiting(one).up
    assert 0 <= connections(one, busy) <= 3


def test_a_runs_tables_have_transport(tmp_path: Path) -> None:
    """One exchange a node and round, for any number of clients; the roster's query and the app in the first round."""
    experiment = tiny(tiny_data(tmp_path), method="fedavg", per_round=8, split=(1.0, 0.0, 0.0))
    found = served(fake(experiment), experiment, out=str(tmp_path / "run"))
    clients = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    rounds = pq.read_table(tmp_path / "run" / "rounds.parquet")
    assert [str(rounds.schema.field(f"transport_{way}").type) for way in ("up", "down")] == ["int64", "int64"]
    least = exchange(Load(3, 0), Load(3, 0))
    for way in ("up", "down"):
        column, base = f"transport_{way}", getattr(least, way)
        by_round = [sum(row[column] for row in clients if row["round"] == n) for n in rounds["round"].to_pylist()]
        assert by_round == rounds[column].to_pylist() == [row[column] for row in found.rounds]
        for size in by_round[1:]:
            assert len(NODES) * base < size < len(NODES) * (1.2 * base + 100)
        assert by_round[0] > 2 * len(NODES) * base


def test_what_an_evaluation_takes_is_in_the_next_round(tmp_path: Path) -> None:
    """Nodes are sent the model to try their clients' own models; no client's bytes include it."""
    plain, tested = (
        [row["transport_down"] for row in served(fake(one), one).rounds]
        for one in (tiny(tiny_data(tmp_path), per_round=8, split=split) for split in ((1.0, 0.0, 0.0), (0.7, 0.0, 0.3)))
    )
    model = 42_000  # bytes of one, about
    assert tested[0] < plain[0] + model
    assert all(one > other + len(NODES) * model for one, other in zip(tested[1:], plain[1:], strict=True))
