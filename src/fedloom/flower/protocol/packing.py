"""What does the server send each client, and what does it expect back? C clients in the cohort, P numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.codec import Codec, Cost, Expected, Frame, Message, Part
from fedloom.codec.places import pack_bits
from fedloom.core.rows import expanded, rows
from fedloom.core.types import Setting, State, Task
from fedloom.flower.protocol.asked_part import expected, form_of, reply_of_nobody
from fedloom.flower.protocol.records import Item
from fedloom.flower.protocol.round_id import Order
from fedloom.method import Method
from fedloom.world.wire import Wire

EVERYTHING = Part()
NOTHING: State = {}


@dataclass(frozen=True)
class Packing:
    """Tasks as bytes, and the manifests of replies."""

    method: Method
    setting: Setting
    wire: Wire  # describes parts as the simulator does
    codec: Codec  # of replies; tasks are whole float32 numbers

    def model(
        self, order: Order, client: int, model: Tensor, part: Part = EVERYTHING, extras: State = NOTHING
    ) -> bytes:
        """A message of the model's part and the extras that travel."""
        frame = self.wire.frame(expanded(extras, 1), {}, part)
        carried = {name: value for name, value in extras.items() if name in frame.extras}
        return Codec().encode(frame, order.stamp(client, "down"), model, part, carried)

    def items(self, order: Order, task: Task) -> list[Item]:
        """What goes to each of the cohort, in its order."""
        assert task.ids is not None
        whole = self.wire.asked(task)
        neurons = None if whole.keep is None else self.setting.neurons
        items = []
        for row, client in enumerate(task.ids.tolist()):
            part = row_of(whole, row)
            facts: dict[str, Any] = {
                "client": client,
                "form": form_of(part, neurons),
                "share": float(task.share[row]),
                "authorised": bool(task.authorised[row]),
            }
            if task.share.dtype == torch.float64:
                facts["double"] = True
            if task.keep is not None:
                own = part.keep is not None and torch.equal(part.keep, task.keep[row])
                facts["keep"] = "part" if own else bytes(pack_bits(task.keep[row].cpu().numpy())).hex()
            extras = rows(task.extras, row)
            items.append(Item(facts, self.model(order, client, task.model, part, extras)))
        return items

    def awaited(self, order: Order, task: Task) -> dict[int, Expected]:
        """What is expected of each that may send."""
        assert task.ids is not None
        extras, ranges = reply_of_nobody(self.method, self.setting, task)
        asked, found = self.wire.asked(task), {}
        frame = self.wire.frame(extras, ranges, asked)
        if not self.method.masks_known and self.method.upload.rows:
            frame = Frame(frame.layout, self.setting.neurons, frame.extras, frame.report)
        for row, client in enumerate(task.ids.tolist()):
            if bool(task.authorised[row]):
                stamp = order.stamp(client, "up")
                part = row_of(asked, row)._replace(known=True)
                known = Expected(frame, stamp, part, (self.codec.kind,))
                found[client] = known if self.method.masks_known else expected(known, "bits")
        return found

    def price(self, expected: Expected, message: Message, size: int) -> tuple[int, int, int]:
        """Bytes of an accepted reply's values, indices and the rest, which make up its `size`."""
        part = expected.part
        if not isinstance(part, Part):
            rows = message.keep is not None
            part = Part(message.mask, message.keep, rows)
        cost: Cost = self.codec.size(expected.frame, part)
        values, indices = int(cost.values), int(cost.indices)
        return values, indices, size - values - indices


def row_of(part: Part, row: int) -> Part:
    """One client's part of a cohort's."""
    mask, keep = (None if given is None else given[row] for given in (part.mask, part.keep))
    return part._replace(mask=mask, keep=keep)
