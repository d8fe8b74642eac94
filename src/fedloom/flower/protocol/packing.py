"""Tasks as bytes, and what the server expects back. C clients in the cohort, P numbers in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.codec import Codec, Expected, Frame, Message, ModelPart
from fedloom.codec.mask_bytes import pack_bits
from fedloom.core.rows import expanded, rows
from fedloom.core.types import Setting, State, Task
from fedloom.flower.protocol.part_form import empty_reply, form_of, with_form
from fedloom.flower.protocol.records import Payload
from fedloom.flower.protocol.round_id import RoundId
from fedloom.method import Method
from fedloom.world.message_parts import MessageParts

EVERYTHING = ModelPart()
NOTHING: State = {}


@dataclass(frozen=True)
class Packing:
    """How a method's tasks and replies travel."""

    method: Method
    setting: Setting
    parts: MessageParts  # describes messages as in simulation

    @property
    def codec(self) -> Codec:
        """The codec of replies; tasks are whole float32 numbers."""
        return self.parts.codec

    def model(
        self, round_id: RoundId, client: int, model: Tensor, part: ModelPart = EVERYTHING, extras: State = NOTHING
    ) -> bytes:
        """A message with a part of the model [P] and the extras that travel."""
        frame = self.parts.frame(expanded(extras, 1), {}, part)
        carried = {name: value for name, value in extras.items() if name in frame.extras}
        return Codec().encode(frame, round_id.stamp(client, "down"), model, part, carried)

    def tasks(self, round_id: RoundId, task: Task) -> list[Payload]:
        """What goes to each client of the cohort, in the cohort's order [C]."""
        assert task.ids is not None
        whole = self.parts.asked(task)
        payloads = []
        for row, client in enumerate(task.ids.tolist()):
            part = row_of(whole, row)
            facts: dict[str, Any] = {
                "client": client,
                "form": form_of(self.setting, part),
                "share": float(task.share[row]),
                "authorised": bool(task.authorised[row]),
            }
            if task.share.dtype == torch.float64:
                facts["double"] = True
            if task.keep is not None:
                in_part = part.keep is not None and torch.equal(part.keep, task.keep[row])
                facts["keep"] = "part" if in_part else bytes(pack_bits(task.keep[row].cpu().numpy())).hex()
            extras = rows(task.extras, row)
            payloads.append(Payload(facts, self.model(round_id, client, task.model, part, extras)))
        return payloads

    def manifests(self, round_id: RoundId, task: Task) -> dict[int, Expected]:
        """What is expected of each client that may send, by client."""
        assert task.ids is not None
        extras, ranges = empty_reply(self.method, self.setting, task)
        asked, found = self.parts.asked(task), {}
        frame = self.parts.frame(extras, ranges, asked)
        if not self.method.masks_known and self.method.upload.rows:
            frame = Frame(frame.layout, self.setting.neurons, frame.extras, frame.report)
        for row, client in enumerate(task.ids.tolist()):
            if bool(task.authorised[row]):
                stamp = round_id.stamp(client, "up")
                part = row_of(asked, row)._replace(known=True)
                known = Expected(frame, stamp, part, (self.codec.kind,))
                found[client] = with_form(known, "bits") if not self.method.masks_known else known
        return found

    def price(self, manifest: Expected, message: Message, size: int) -> tuple[int, int, int]:
        """Bytes of an accepted reply's values, indices and the rest, which add up to `size`."""
        part = manifest.part
        if not isinstance(part, ModelPart):
            rows = message.keep is not None
            part = ModelPart(message.mask, message.keep, rows)
        cost = self.codec.size(manifest.frame, part)
        values, indices = int(cost.values), int(cost.indices)
        return values, indices, size - values - indices


def row_of(part: ModelPart, row: int) -> ModelPart:
    """One client's part of a cohort's."""
    mask, keep = (None if given is None else given[row] for given in (part.mask, part.keep))
    return part._replace(mask=mask, keep=keep)
