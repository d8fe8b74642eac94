"""Which part of the model is it, and what does its receiver expect? K neurons, P numbers; both ends use this."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedloom.codec import AnyKeep, AnyMask, Expected, Part, Range, Rejected
from fedloom.codec.part import keep_word
from fedloom.core.rows import expanded
from fedloom.core.types import Setting, State, Task
from fedloom.method import Method
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.rows import rows_of
from fedloom.world.wire import REPORT

ROWS = keep_word(True, True)
FORMS: dict[str, Part | AnyMask | AnyKeep] = {
    "all": Part(),
    "bits": AnyMask(1.0),
    **{keep_word(rows, outputs): AnyKeep(1.0, rows, outputs) for rows in (False, True) for outputs in (False, True)},
}  # how a part may travel that the receiver does not know


def chosen_part(method: Method, setting: Setting, mask: Tensor | None) -> Part:
    """What a client chose to send [P], by rows where it is made of them."""
    if mask is None or not method.upload.rows:
        return Part(mask)
    rows = rows_of(setting.neurons, mask[None])[0]
    return Part(mask, rows, True) if torch.equal(setting.neurons.expand(rows, True), mask) else Part(mask)


def form_of(part: Part, neurons: NeuronMap | None) -> str:
    """The word of `FORMS` for a part whose receiver does not know it."""
    return part._replace(known=False).word(neurons)


def expected(like: Expected, form: object) -> Expected:
    """The same of a message whose sender says that its part has this form."""
    if not isinstance(form, str) or form not in FORMS:
        raise Rejected("mask", f"the part travels as {form!r}; expected {' or '.join(FORMS)}.")
    if isinstance(FORMS[form], AnyKeep) and like.frame.neurons is None:
        raise Rejected("mask", f"the part travels as {form!r}; nothing of this method is made of neurons.")
    return replace(like, part=FORMS[form])


def reply_of_nobody(method: Method, setting: Setting, task: Task) -> tuple[State, dict[str, Range]]:
    """Extras of a reply of no rows, and the ranges of its report: what every reply will have."""
    rule, none = method.local, task.model.expand(0, -1)
    empty = task.rows(slice(0, 0))
    state = expanded(rule.client_state(setting, task.model), 0)
    _, extras, own = rule.finish(empty, state, none, none, torch.zeros(0, dtype=torch.int64, device=none.device))
    columns = rule.judge(empty, own, none.new_zeros(0), none.new_zeros(0))[0] if rule.traits.judges else {}
    return extras, {**REPORT, **{name: Range() for name in columns}}
