"""The part of the model that a message carries, and the form in which it travels if the receiver cannot derive it.

K neurons, P numbers; server and nodes both use this.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedloom.codec import AnyKeep, AnyMask, Expected, ModelPart, Range, Rejected
from fedloom.codec.model_part import keep_word
from fedloom.core.nobody import finish_nobody
from fedloom.core.types import Setting, State, Task
from fedloom.method import Method
from fedloom.neurons.rows import rows_of
from fedloom.world.message_parts import REPORT, WEIGHT

ROWS = keep_word(True, True)
FORMS: dict[str, ModelPart | AnyMask | AnyKeep] = {
    "all": ModelPart(),
    "bits": AnyMask(1.0),
    **{keep_word(rows, outputs): AnyKeep(1.0, rows, outputs) for rows in (False, True) for outputs in (False, True)},
}  # forms of parts that the receiver cannot derive


def part_of(setting: Setting, mask: Tensor | None, keep: Tensor | None = None, rows: bool = False) -> ModelPart:
    """One client's part with this mask [P]: by its neurons `keep` [K], or by whole `rows`, if it consists of them."""
    if mask is None or (keep is None and not rows):
        return ModelPart(mask)
    found = rows_of(setting.neurons, mask[None])[0] if keep is None else keep
    same = torch.equal(setting.neurons.expand(found, rows=keep is None), mask)
    return ModelPart(mask, found, keep is None) if same else ModelPart(mask)


def form_of(setting: Setting, part: ModelPart) -> str:
    """The key in `FORMS` of a part that the receiver cannot derive; only parts made of neurons need a neuron map."""
    return part._replace(known=False).word(None if part.keep is None else setting.neurons)


def with_form(manifest: Expected, form: object) -> Expected:
    """The manifest of a message whose sender says that its part travels in this form; `Rejected` if it cannot."""
    if not isinstance(form, str) or form not in FORMS:
        raise Rejected("mask", f"the part travels as {form!r}; expected {' or '.join(FORMS)}.")
    if isinstance(FORMS[form], AnyKeep) and manifest.frame.neurons is None:
        raise Rejected("mask", f"the part travels as {form!r}; this method has no masks of whole neurons.")
    return replace(manifest, part=FORMS[form])


def empty_reply(method: Method, setting: Setting, task: Task) -> tuple[State, dict[str, Range]]:
    """Extras of a reply of no rows and the ranges of its report: the names and shapes that every reply will have."""
    rule, none = method.local, task.model.expand(0, -1)
    empty, extras, own = finish_nobody(rule, setting, task)
    columns = rule.judge(empty, own, none.new_zeros(0), none.new_zeros(0))[0] if rule.traits.judges else {}
    weight = WEIGHT if method.aggregate.reads_weight else {}
    return extras, {**REPORT, **{name: Range() for name in columns}, **weight}
