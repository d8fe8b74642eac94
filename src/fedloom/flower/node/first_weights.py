"""The weights that a run began with, kept on the node; see `fedloom.flower.protocol.first_weights`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.codec import Rejected
from fedloom.files import replace_file
from fedloom.flower.node.hosted_clients import HostedClients
from fedloom.flower.protocol.first_weights import START, unpacked
from fedloom.flower.protocol.records import NodeMessage
from fedloom.layout import load
from fedloom.reading.cap import check_room

if TYPE_CHECKING:
    from flwr.app import Context

HASH = re.compile(r"[0-9a-f]{16}")
RECORD = "fedloom.start"  # in Context.state, where the node has no folder for states


def begin_with_first_weights(hosted: HostedClients, message: NodeMessage, context: Context) -> None:
    """Give the network the weights that the run began with, which a message may bring and later ones name."""
    wanted = message.facts.get(START, "")
    if not wanted:
        return
    if not isinstance(wanted, str) or not HASH.fullmatch(wanted):
        raise Rejected("base", "the hash of the weights that the run began with is none.")
    brought = next((payload.data for payload in message.payloads if payload.facts.get(START)), None)
    weights, setting = unpacked(_read(context, wanted) if brought is None else brought, wanted), hosted.inputs.setting
    if len(weights) != setting.layout.total:
        raise Rejected("base", f"the run began with {len(weights)} numbers; the network has {setting.layout.total}.")
    load(setting.module, setting.layout, weights)
    if brought is not None:
        _write(context, wanted, brought)


def _file(context: Context, wanted: str) -> Path | None:
    """Their file; None where the node has no folder for states."""
    folder = str(context.node_config.get("state", ""))
    return Path(folder) / f"{START}-{wanted}.safetensors" if folder else None


def _read(context: Context, wanted: str) -> bytes:
    """The weights that an earlier message brought."""
    file, record = _file(context, wanted), context.state.get(RECORD)
    if file is not None and file.is_file():
        check_room(file, 2 * file.stat().st_size)
        return file.read_bytes()
    data = record.get(wanted) if file is None and record is not None else None
    if not isinstance(data, bytes):
        raise Rejected("base", "the weights that the run began with are not here; they come with the next question.")
    return data


def _write(context: Context, wanted: str, data: bytes) -> None:
    """Keep the weights."""
    file = _file(context, wanted)
    if file is not None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, [data], mode=0o600)
        return
    from flwr.app import ConfigRecord

    context.state[RECORD] = ConfigRecord({wanted: data})
