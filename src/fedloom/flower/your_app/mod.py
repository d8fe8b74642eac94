"""How does a ClientApp that knows nothing of masks train part of a model? A mod unpacks before it and packs behind it.

Different from fedloom's own client: the steps are the user's. A mask is not applied within them but before and after:
what is not to be trained begins as the method says (0, or the client's own) and is put back afterwards. Where the rest
is 0 and activations are 0 at 0 (ReLU, tanh; not sigmoid) the rest gets no gradient, and nothing differs. Elsewhere one
line in the training function makes steps equal too: `fedloom.flower.hold(model)`. Momentum and weight decay may still
move held numbers, until they are put back. Learning rate, epochs and optimiser are the user's, whatever the method
says. States live in `Context.state`: a node that is restarted is a newcomer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.codec import Expected, Message as Decoded, Part, decode, encode
from fedloom.core.rows import expanded, rows
from fedloom.core.types import Fleet, State, Task
from fedloom.errors import BadExperiment, FedloomError
from fedloom.flower.protocol.part_form import with_form
from fedloom.flower.protocol.records import FACTS, PAYLOADS, NodeMessage, Payload, pack, unpack
from fedloom.flower.your_app.arrays import from_arrays, to_arrays
from fedloom.flower.your_app.contract import (
    check_client_half,
    described,
    frame_of,
    method_of,
    setting_of,
    stamp_of,
    told,
    word_of,
)
from fedloom.flower.your_app.gradient_mask import training_only
from fedloom.layout import flatten, load
from fedloom.method import Method
from fedloom.parts.upload.as_sent import AsSent

STATE = "fedloom.masked"  # in `Context.state`


class Masked:
    """The client half of a method, around a `train` function that takes and gives the whole model as plain arrays."""

    def __init__(self, method: Method | str, model: nn.Module, example: Tensor, settings: Mapping[str, Any]) -> None:
        self.method = method_of(method, settings)
        check_client_half(self.method)
        alone = torch.ones(1, dtype=torch.int64)
        self.setting = setting_of(model, example, Fleet(alone, alone[:, None]))

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Whatever the strategy did not pack goes through as it is."""
        if FACTS not in message.content:
            return call_next(message, context)
        asked, (payload, *first_model) = unpack(message.content)
        self._check(asked)
        received = self._read(asked, payload, str(asked["part"]))
        built = self._read(asked, first_model[0], "all").values if first_model else None
        state, task = self._state(received, built, context), self._task(asked, received)
        first = self.method.local.start(task, state, task.model[None])
        trains = self.method.local.trains(task)
        others = {name: record for name, record in message.content.items() if name not in (FACTS, PAYLOADS)}
        arrays = to_arrays(self.setting.module, self.setting.layout, first[0])
        message.content = RecordDict({str(asked["arrays"]): arrays, **others})
        with training_only(None if trains is None else self.setting.layout.split(trains[0])):
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
        data = self._packed(asked, received, task, state, first, sent) if bool(task.authorised) else b""
        rest = {other: record for other, record in reply.content.items() if other != name}
        reply.content = RecordDict({**rest, **pack(NodeMessage({}, [Payload({}, data)]))})
        return reply

    def _check(self, asked: Mapping[str, Any]) -> None:
        """Both ends must mean the same."""
        for name, own in told(self.method).items():
            if asked.get(name) != own:
                raise BadExperiment(
                    f"the strategy's method has {name}={asked.get(name)}, this mod's {own}; give "
                    "fedloom.flower.masked the method and settings of fedloom.flower.strategy."
                )

    def _read(self, asked: Mapping[str, Any], payload: Payload, word: str) -> Decoded:
        """A packed part of the model."""
        like = Expected(frame_of(self.setting, word), stamp_of(asked, "down"))
        return decode(payload.data, with_form(like, word))

    def _task(self, asked: Mapping[str, Any], received: Decoded) -> Task:
        """As fedloom's own client would be given it, a cohort of one."""
        number, optimiser = int(asked["round"]), self.method.optimiser
        layout, cut = self.setting.layout, asked["part"] == "neurons"
        return Task(
            model=received.on(torch.zeros(layout.total)),
            mask=None if received.mask is None else received.mask[None],
            keep=received.keep[None] if cut and received.keep is not None else None,
            share=torch.tensor([asked["share"]], dtype=torch.float64),
            authorised=torch.tensor([bool(asked["authorised"])]),
            extras={},
            round=number,
            rate=optimiser.rate_at(number),
            base_rate=optimiser.rate,
            trained=layout.trained,
            ids=torch.tensor([asked["client"]]),
        )

    def _state(self, received: Decoded, built: Tensor | None, context: Context) -> State:
        """What the rule remembers, one row; a newcomer begins with the network as the server built it."""
        if STATE in context.state:
            kept = context.state.array_records[STATE].to_torch_state_dict()
            return expanded(kept, 1)
        if built is None and received.mask is None:
            built = received.values
        if built is None and self.method.local.traits.needs_whole:
            raise FedloomError("this node's state is gone, and it was sent only a part of the model; ask it once more.")
        if built is not None:
            load(self.setting.module, self.setting.layout, built)  # rules read it from there
        first = flatten(self.setting.module, self.setting.layout)
        return expanded(self.method.local.client_state(self.setting, first), 1)

    def _packed(
        self, asked: Mapping[str, Any], received: Decoded, task: Task, state: State, first: Tensor, sent: Tensor
    ) -> bytes:
        """What goes back, as bytes."""
        if isinstance(self.method.upload, AsSent):
            word = str(asked["part"])
            part = Part(received.mask, received.keep, word.startswith("rows"), known=True)
        else:
            chance = Chance(int(asked["seed"]), task.round)
            mask = self.method.upload(self.setting, task, state, first, sent, chance)
            chosen = torch.ones(sent.shape[1], dtype=torch.bool) if mask is None else mask[0]
            part = described(self.setting, chosen, None, self.method.upload.rows)
            word = word_of(self.setting, part)
        return encode(frame_of(self.setting, word), stamp_of(asked, "up"), sent[0], part)


def _only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The one record of arrays that a reply has."""
    if len(content.array_records) != 1:
        raise BadExperiment(
            f"the training function answered with {len(content.array_records)} ArrayRecords; expected one, the state "
            "dict of the trained network."
        )
    return next(iter(content.array_records.items()))
