"""The contents of messages: parts of the model, extras and reports; and the sizes of messages by formula.

Masks that are made of whole neurons are sent as neurons. C clients in the cohort, P numbers, K neurons.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.codec import Codec, Frame, ModelPart, Range
from fedloom.core.costs import MEASURED, Bytes
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.method import Method
from fedloom.neurons.rows import rows_of

CARRIED = (torch.float32, torch.int64)  # dtypes of extras that are sent; a client computes others by itself
REPORT = {"examples": Range(0, whole=True), "steps": Range(0, whole=True), "loss": Range()}
WEIGHT = {"weight": Range(0)}  # a column of replies to an aggregate that reads it


class MessageParts:
    """The descriptions of a run's messages, for both ends."""

    def __init__(self, method: Method, setting: Setting, codec: Codec) -> None:
        """`codec` is that of replies; tasks are whole float32 numbers."""
        self.method, self.setting, self.codec = method, setting, codec
        self._compares = True  # whether masks are compared with neurons this round, which waits for the device
        self._seen: tuple[ModelPart, ...] = ()  # the descriptions of the last masks
        self._made_of_neurons = False  # the result of the last comparison
        self._whole: dict[tuple[str | int, ...], tuple[Bytes, Bytes]] = {}

    def begin_round(self, compares: bool) -> None:
        """Say whether this round's masks are compared with neurons; without, they are taken to be as those before."""
        self._compares = compares

    def prices(self, task: Task, reply: Reply) -> tuple[Bytes, Bytes]:
        """Sizes of the cohort's tasks and replies [C each], by formula."""
        if task.mask is not None or reply.mask is not None:
            return self._priced(task, reply)
        names: tuple[str | int, ...] = (*task.extras, "", *reply.extras, "", *reply.report, len(reply.ids))
        if names not in self._whole:  # whole models have the same size in every round
            self._whole[names] = self._priced(task, reply)
        return self._whole[names]

    def _priced(self, task: Task, reply: Reply) -> tuple[Bytes, Bytes]:
        """`prices`, computed anew."""
        asked, sent = self.asked(task), self.sent(task, reply)
        down = Codec().size(self.frame(task.extras, {}, asked), asked)
        up = self.codec.size(self.frame(reply.extras, ranges_of(reply), sent), sent)
        return down.per_client(len(reply.ids)), up.per_client(len(reply.ids))

    def asked(self, task: Task) -> ModelPart:
        """The parts of the model in tasks."""
        return self._described(task.mask, task.keep, self.method.mask.rows)

    def sent(self, task: Task, reply: Reply) -> ModelPart:
        """The parts of the model in replies; where the server chose them, their places need not be sent."""
        if self.method.upload.sends_what_came:
            return self.asked(task)._replace(known=True)
        return self._described(reply.mask, None, self.method.upload.rows)

    def frame(self, extras: State, report: dict[str, Range], part: ModelPart) -> Frame:
        """The frame of a message, which both ends derive before it is written."""
        carried = {name: (v.dtype, tuple(v.shape[1:])) for name, v in extras.items() if v.dtype in CARRIED}
        neurons = None if part.keep is None else self.setting.neurons  # else the network may have no map
        return Frame(self.setting.layout, neurons, carried, report)

    def _described(self, mask: Tensor | None, keep: Tensor | None, rows: bool) -> ModelPart:
        """A mask as whole neurons if it is made of them; some masks differ from that by a few numbers."""
        if mask is None or (keep is None and not rows):
            return ModelPart(mask)
        found = next((part for part in self._seen if part.mask is mask), None)
        if found is None:
            neurons = self.setting.neurons
            keep = rows_of(neurons, mask) if keep is None else keep
            rows = keep.shape[1] > neurons.size
            if self._compares:
                made = (neurons.expand(keep, rows) == mask).all(1) | ~mask.any(1)  # a lost reply has an empty mask
                self._made_of_neurons = bool(made.all())
            found = ModelPart(mask, keep, rows) if self._made_of_neurons else ModelPart(mask)
            self._seen = (found, *self._seen[:1])
        return found


def ranges_of(reply: Reply) -> dict[str, Range]:
    """The ranges of a client's report, a rule's own columns included, but not the columns of the simulated world."""
    return {name: (REPORT | WEIGHT).get(name, Range()) for name in reply.report if name not in MEASURED}
