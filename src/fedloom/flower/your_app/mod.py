"""A mod that trains a part of the model around a ClientApp without masks: it unpacks before training and packs after.

In contrast to fedloom's own client, the steps are the user's. A mask is applied before and after them, not within:
frozen numbers start as the method says (at 0, or as the client's own) and are put back afterwards. Where they are 0 and
activations are 0 at 0 (ReLU, tanh; not sigmoid) they get no gradient, and nothing differs. Elsewhere one line in the
training function makes steps equal too: `fedloom.flower.hold(model)`. Momentum and weight decay may still move frozen
numbers until they are put back. Learning rate, epochs and optimiser are the user's, whatever the method says. States
are saved in `Context.state`: a node that is restarted is a new client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.codec import Expected, Message as Received, ModelPart, Stamp, decode, encode
from fedloom.codec.stamp import Direction
from fedloom.core.rows import expanded, rows
from fedloom.core.types import Fleet, State, Task
from fedloom.errors import BadExperiment, FedloomError
from fedloom.flower.protocol.part_form import form_of, part_of, with_form
from fedloom.flower.protocol.records import FACTS, PAYLOADS, NodeMessage, Payload, fact, pack, unpack
from fedloom.flower.protocol.round_id import RoundId
from fedloom.flower.your_app.arrays import from_arrays, to_arrays
from fedloom.flower.your_app.contract import check_client_half, client_half, frame_of, method_of, setting_of
from fedloom.flower.your_app.gradient_mask import train_only
from fedloom.layout import flatten, load
from fedloom.method import Method

STATE = "fedloom.masked"  # in `Context.state`


class Masked:
    """The client half of a method, around a `train` function that takes and returns the whole model as plain arrays."""

    def __init__(self, method: Method | str, model: nn.Module, example: Tensor, settings: Mapping[str, Any]) -> None:
        self.method = method_of(method, settings)
        check_client_half(self.method)
        alone = torch.ones(1, dtype=torch.int64)
        self.setting = setting_of(model, example, Fleet(alone, alone[:, None]))

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Messages that the strategy did not pack pass unchanged."""
        if FACTS not in message.content:
            return call_next(message, context)
        facts, (payload, *first_model) = unpack(message.content)
        self._check(facts)
        received = self._decode(facts, payload, str(facts["part"]))
        built = self._decode(facts, first_model[0], "all").values if first_model else None
        state, task = self._state(received, built, context), self._task(facts, received)
        first = self.method.local.start(task, state, task.model[None])
        trains = self.method.local.trains(task)
        others = {name: record for name, record in message.content.items() if name not in (FACTS, PAYLOADS)}
        arrays = to_arrays(self.setting.module, self.setting.layout, first[0])
        message.content = RecordDict({str(facts["arrays"]): arrays, **others})
        with train_only(None if trains is None else self.setting.layout.split(trains[0])):
            reply = call_next(message, context)
        if reply.has_error():
            return reply
        name, trained = _only_arrays(reply.content)
        last = from_arrays(trained, self.setting.module, self.setting.layout)[None]
        last = last if trains is None else torch.where(trains, last, first)
        sent, extras, state = self.method.local.finish(task, state, first, last, torch.ones(1))
        if extras:
            raise BadExperiment(f"local={self.method.local} sends {', '.join(extras)} along, which a mod cannot carry.")
        context.state[STATE] = ArrayRecord(rows(state, 0))
        data = self._encode(facts, received, task, state, first, sent) if bool(task.authorised) else b""
        rest = {other: record for other, record in reply.content.items() if other != name}
        reply.content = RecordDict({**rest, **pack(NodeMessage({}, [Payload({}, data)]))})
        return reply

    def _check(self, facts: Mapping[str, Any]) -> None:
        """Both ends must have the same client half."""
        for name, own in client_half(self.method).items():
            if facts.get(name) != own:
                raise BadExperiment(
                    f"the strategy's method has {name}={facts.get(name)}, this mod's {own}; give "
                    "fedloom.flower.masked the method and settings of fedloom.flower.strategy."
                )

    def _decode(self, facts: dict[str, Any], payload: Payload, form: str) -> Received:
        """A packed part of the model."""
        manifest = Expected(frame_of(self.setting, form), _stamp(facts, "down"))
        return decode(payload.data, with_form(manifest, form))

    def _task(self, facts: Mapping[str, Any], received: Received) -> Task:
        """The task as fedloom's own client would have it, a cohort of one."""
        number, optimiser = int(facts["round"]), self.method.optimiser
        layout, cut = self.setting.layout, facts["part"] == "neurons"
        return Task(
            model=received.on(torch.zeros(layout.total)),
            mask=None if received.mask is None else received.mask[None],
            keep=received.keep[None] if cut and received.keep is not None else None,
            share=torch.tensor([facts["share"]], dtype=torch.float64),
            authorised=torch.tensor([bool(facts["authorised"])]),
            extras=expanded(self.method.local.constants(self.setting), 1),
            round=number,
            rate=optimiser.rate_at(number),
            base_rate=optimiser.rate,
            trained=layout.trained,
            ids=torch.tensor([facts["client"]]),
        )

    def _state(self, received: Received, built: Tensor | None, context: Context) -> State:
        """The rule's state, one row; a new client starts from the network as the server built it."""
        if STATE in context.state:
            saved = context.state.array_records[STATE].to_torch_state_dict()
            return expanded(saved, 1)
        if built is None and received.mask is None:
            built = received.values
        if built is None and self.method.local.traits.needs_whole:
            raise FedloomError("this node's state is gone, and it was sent only a part of the model; ask it once more.")
        if built is not None:
            load(self.setting.module, self.setting.layout, built)  # rules read it from there
        first = flatten(self.setting.module, self.setting.layout)
        return expanded(self.method.local.client_state(self.setting, first), 1)

    def _encode(
        self, facts: dict[str, Any], received: Received, task: Task, state: State, first: Tensor, sent: Tensor
    ) -> bytes:
        """The reply as bytes."""
        if self.method.upload.sends_what_came:
            form = str(facts["part"])
            part = ModelPart(received.mask, received.keep, form.startswith("rows"), known=True)
        else:
            chance = Chance(int(facts["seed"]), task.round)
            mask = self.method.upload(self.setting, task, state, first, sent, chance)
            chosen = torch.ones(sent.shape[1], dtype=torch.bool) if mask is None else mask[0]
            part = part_of(self.setting, chosen, rows=self.method.upload.rows)
            form = form_of(self.setting, part)
        return encode(frame_of(self.setting, form), _stamp(facts, "up"), sent[0], part)


def _stamp(facts: dict[str, Any], direction: Direction) -> Stamp:
    """The stamp of a task or of its reply, from the task's facts; a strategy has one attempt."""
    return RoundId.read({**facts, "attempt": 1}).stamp(fact(facts, "client", int), direction)


def _only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The one record of arrays of a reply, and its name."""
    if len(content.array_records) != 1:
        raise BadExperiment(
            f"the training function answered with {len(content.array_records)} ArrayRecords; expected one, the state "
            "dict of the trained network."
        )
    return next(iter(content.array_records.items()))
