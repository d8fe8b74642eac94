"""What a gate passes on: requests that nodes need, of registered keys, within their bytes; the rest is refused."""

from __future__ import annotations

import inspect
import json
import time
from datetime import timedelta
from email.utils import parsedate_to_datetime

import pytest

pytest.importorskip("flwr")

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node as NodeNumber
from flwr.supercore.date import now
from flwr.supercore.error import FlowerError
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedloom.flower.gate.limits import Limits
from fedloom.flower.gate.pass_on import PASSED
from gate_in_process import Node, gate

REPLY = 10_000
OWN = ("/v1/fleet/register-node", "/v1/fleet/unregister-node")  # which a link with node authentication refuses


@pytest.fixture
def running(tmp_path):
    """A gate whose link has registered one node."""
    with gate(tmp_path, Limits(REPLY, small=1000)) as found:
        yield found


@pytest.fixture
def node(running):
    """The registered node."""
    return running.register("node-0 (7)")


def test_flowers_nodes_ask_for_nothing_else():
    """All paths of Flower's client for nodes pass, but those that are refused where nodes have keys."""
    asked = {
        line.split('"')[1]
        for _, method in inspect.getmembers(FleetHttpClient, inspect.isfunction)
        for line in inspect.getsource(method).splitlines()
        if 'path="/' in line
    }
    assert asked - set(OWN) == PASSED


def test_only_what_nodes_need_is_passed_on(running, node):
    """Of all paths that the link serves; operators' and apps' are refused whoever asks."""
    with running.client() as client:
        for method, path in PROTOBUF_REQUEST_TYPES:
            answer = client.request(method, path, headers=node.headers())
            assert (answer.status_code == 200) == (path in PASSED), path
    assert {request.url.path for request in running.asked} == PASSED


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/get-run/../../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "//v1/fleet/get-run"),
        ("POST", "/v1/fleet/get-run?"),
        ("POST", "/V1/FLEET/get-run"),
        ("POST", "https://127.0.0.1/v1/control/start-run"),
        ("POST", "https://127.0.0.1/v1/fleet/get-run"),
        ("GET", "/v1/fleet/get-run"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/health"),
        ("CONNECT", "127.0.0.1:8001"),
        ("POST", "*"),
    ],
)
def test_no_spelling_of_a_path_leads_elsewhere(running, node, method, target):
    head = f"{method} {target} HTTP/1.1\r\nhost: gate\r\ncontent-length: 0\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in node.headers().items())
    with running.connect() as peer:
        peer.sendall(head.encode() + b"\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.1 404")
    assert running.asked == []


def test_signed_headers_and_answers_arrive_as_they_were_sent(running, node):
    headers = {**node.headers(), "x-forwarded-for": "10.1.1.1", "host": "elsewhere", "cookie": "a=b", "flwr-x": "1"}
    with running.client() as client:
        answer = client.post("/v1/fleet/get-run", headers=headers, content=b"the body")
    assert (answer.content, answer.headers["server"], answer.headers["content-type"]) == (
        b"the link's answer", "link", "x/y",
    )  # fmt: skip
    [request] = running.asked
    assert request.content == b"the body"
    assert request.headers["x-forwarded-for"] == "127.0.0.1"
    assert request.headers["host"] == "link"
    assert "cookie" not in request.headers
    for name in (*node.headers(), "flwr-x"):
        assert request.headers[name] == headers[name]


def test_who_has_no_registered_key_is_refused(running, node):
    stranger, old = Node(), (now() - timedelta(hours=1)).isoformat()
    ways = {
        "no key": {},
        "not registered": stranger.headers(),
        "not of its key": node.headers(signer=stranger),
        "s ago by its clock": node.headers(old),
        "cannot be read": {**node.headers(), "flwr-signature": "?"},
    }
    for why, headers in ways.items():
        with running.client() as client:
            answer = client.post("/v1/fleet/pull-messages", headers=headers)
        assert answer.status_code == 401
        assert why in answer.json()["detail"]
        assert abs(parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()) < 60  # nodes read it
    assert running.asked == []


def test_a_node_with_an_unknown_key_reads_flowers_own_error(running):
    with running.client() as client:
        answer = client.post("/v1/fleet/activate-node", headers=Node().headers())
    assert answer.status_code == 412
    found = FlowerError.from_json(answer.text)
    assert found is not None
    assert found.message == "Failed to activate SuperNode."
    assert "not registered" in str(found.public_details)


def test_keys_are_asked_for_when_they_are_needed(running, node, monkeypatch):
    monkeypatch.setattr("fedloom.flower.gate.keys.AGAIN", 0.2)
    later = Node()
    with running.client() as client:
        for _ in range(3):
            assert client.post("/v1/fleet/get-run", headers=node.headers()).status_code == 200
        assert running.questions == 1
        running.registered[later.public] = "node-1 (8)"
        assert client.post("/v1/fleet/get-run", headers=later.headers()).status_code == 200
        assert running.questions == 2
        running.status = 401  # the link does not take it any more
        assert client.post("/v1/fleet/get-run", headers=later.headers()).status_code == 401
        running.status, running.registered = 200, {node.public: "node-0 (7)"}
        assert client.post("/v1/fleet/get-run", headers=later.headers()).status_code == 401
    assert len(running.asked) == 5


def test_long_bodies_are_refused_before_they_are_read(running, node):
    """By the head alone: nothing of the body is sent here."""
    head = "".join(f"{name}: {value}\r\n" for name, value in node.headers().items())
    for path, length, status in (
        ("push-object", f"content-length: {REPLY + 1}", 413),
        ("push-object", "content-length: 99999999999999999999", 413),
        ("pull-messages", "content-length: 1001", 413),
        ("push-object", "transfer-encoding: chunked", 411),
        ("push-object", "content-length: 5\r\ntransfer-encoding: chunked", 411),
    ):
        with running.connect() as peer:
            peer.sendall(f"POST /v1/fleet/{path} HTTP/1.1\r\nhost: g\r\n{length}\r\n{head}\r\n".encode())
            assert peer.recv(100).startswith(b"HTTP/1.1 %d" % status), path
    assert running.asked == []


def test_a_node_may_send_a_reply_for_every_message(running, node):
    """A tenth of what it may is sent at a time; whom the link refuses has not spent it."""
    piece = b"x" * (REPLY // 10)

    def sent(client) -> int:
        """How many pieces are taken."""
        for number in range(100):
            answer = client.post("/v1/fleet/push-object", headers=node.headers(), content=piece)
            if answer.status_code != running.status:
                assert answer.status_code == 413
                return number
        return 100

    with running.client() as client:
        running.status = 500
        assert sent(client) == 100  # nothing of which is stored
        running.status = 200
        assert sent(client) == 10
        for messages, pieces in ((0, 0), (1, 10), (2, 20), (9, 40)):
            running.messages = messages
            assert client.post("/v1/fleet/pull-messages", headers=node.headers()).status_code == 200
            assert sent(client) == pieces
        other = running.register("node-1 (8)")
        assert client.post("/v1/fleet/push-object", headers=other.headers(), content=piece).status_code == 200


def test_a_node_answers_in_its_own_name_only(running, node):
    def pushed(sender: int) -> bytes:
        message = Message(metadata=Metadata(src_node_id=sender))
        return PushMessagesRequest(node=NodeNumber(node_id=7), messages_list=[message]).SerializeToString()

    for body, status in ((pushed(7), 200), (pushed(8), 400), (b"\xff\xff", 400)):
        with running.client() as client:
            assert client.post("/v1/fleet/push-messages", headers=node.headers(), content=body).status_code == status
    assert len(running.asked) == 1


def test_a_link_that_is_away_is_tried_again(running, node):
    """With the status that Flower's nodes take as a reason to try again."""
    running.status = 0
    for _ in range(2):
        with running.client() as client:
            answer = client.post("/v1/fleet/get-run", headers=node.headers())
        assert answer.status_code == 503
        assert "the link does not answer" in json.loads(answer.text)["detail"]
    running.status = 200
    with running.client() as client:
        assert client.post("/v1/fleet/get-run", headers=node.headers()).status_code == 200
