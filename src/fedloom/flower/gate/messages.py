"""What a gate reads in Flower's own messages, and the errors that a node understands."""

from __future__ import annotations

import json

from fedloom.flower.gate.refused import Refused

ACTIVATE = "/v1/fleet/activate-node"


def check_sender(body: bytes) -> None:
    """Refuse answers in the name of another node; the link compares them only with whom a message was for."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from google.protobuf.message import DecodeError

    request = PushMessagesRequest()
    try:
        request.ParseFromString(body)
    except DecodeError:
        raise Refused(400, "its answer cannot be read") from None
    if any(message.metadata.src_node_id != request.node.node_id for message in request.messages_list):
        raise Refused(400, "it answers in the name of another node")


def messages_in(body: bytes) -> int:
    """The number of messages that the link gives to a node."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse

    return len(PullMessagesResponse.FromString(body).messages_list)


def error_of(path: bytes, refused: Refused) -> tuple[int, bytes]:
    """Status and body of the answer to a refused request.

    A node whose key is unknown is told so when it registers itself, in Flower's form, and ends; it stays up otherwise.
    """
    why = f"The gate refused the request: {refused.why}."
    if path == ACTIVATE.encode() and refused.status == 401:
        from flwr.supercore.error import ApiErrorCode

        code = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
        return 412, json.dumps({"code": code, "detail": "Failed to activate SuperNode.", "extra": why}).encode()
    return refused.status, json.dumps({"detail": why}).encode()
