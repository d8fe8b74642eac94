"""The codec: messages as bytes, and bytes as strictly checked messages."""

from fedloom.codec.codec import Codec
from fedloom.codec.expected import Expected, Message
from fedloom.codec.frame import Frame, Range
from fedloom.codec.inbox import Inbox
from fedloom.codec.model_part import AnyKeep, AnyMask, ModelPart
from fedloom.codec.price import price, size
from fedloom.codec.read import decode
from fedloom.codec.rejected import Rejected
from fedloom.codec.stamp import Stamp, base_hash
from fedloom.codec.write import encode
from fedloom.core.refused import Reason

__all__ = [
    "AnyKeep",
    "AnyMask",
    "Codec",
    "Expected",
    "Frame",
    "Inbox",
    "Message",
    "ModelPart",
    "Range",
    "Reason",
    "Rejected",
    "Stamp",
    "base_hash",
    "decode",
    "encode",
    "price",
    "size",
]
