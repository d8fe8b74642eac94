"""One client's round on a node: decode the task, train as the simulator's cohort of one, encode the reply."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.codec import Codec, Expected, Frame, Message, ModelPart, Rejected, base_hash, decode
from fedloom.codec.mask_bytes import unpack_bits
from fedloom.core.types import Reply, State, Task
from fedloom.flower.node.hosted_clients import HostedClients
from fedloom.flower.node.state_store import StateStore
from fedloom.flower.protocol.part_form import form_of, part_of, with_form
from fedloom.flower.protocol.records import Payload, fact
from fedloom.flower.protocol.round_id import RoundId
from fedloom.world.message_parts import CARRIED, ranges_of

ROW = "states.row."  # leads the names of clients' states in an engine's
RESIDUAL = "codec.residual"  # in a client's state: what rounding took from its last reply


def train_client(hosted: HostedClients, round_id: RoundId, client: int, asked: Payload, store: StateStore) -> Payload:
    """Answer a client's task: decode, train, encode and save its new state."""
    if client not in hosted.numbers:
        raise Rejected("client", f"client {client} of the fleet is not hosted here.")
    began, engine = time.perf_counter(), hosted.engine
    chance = Chance(hosted.experiment.seed, round_id.round, hosted.inputs.model.device)
    task, part = read_task(hosted, round_id, client, asked, chance)
    decoded = time.perf_counter()
    begin = store.start_of(client, round_id.round)
    start = begin.state
    engine.load(engine_state({client: start} if start else {}))
    reply = engine.train(torch.tensor([client]), task, chance)
    engine.settle([client])
    state = {name.removeprefix(ROW): v[0].cpu() for name, v in engine.save().items() if name.startswith(ROW)}
    trained = time.perf_counter()
    authorised, data, form = bool(task.authorised[0]), b"", ""
    codec = hosted.experiment.codec
    if codec.feedback:
        state[RESIDUAL] = torch.zeros_like(task.model, device="cpu") if start is None else start[RESIDUAL]
    if authorised:
        data, form, residual = write_reply(
            hosted, round_id, client, task, reply, part, codec, state.get(RESIDUAL), chance
        )
        state |= {} if residual is None else {RESIDUAL: residual}
    if state:
        store.put(client, round_id.round, round_id.attempt, begin, state)
    ended = time.perf_counter()
    facts = {
        "client": client,
        "form": form,
        "seconds_decode": decoded - began,
        "seconds_compute": trained - decoded,
        "seconds_encode": ended - trained,
    }
    return Payload(facts, data)


def engine_state(clients: dict[int, State]) -> State:
    """The state of an engine whose only clients with a state are these; without what rounding took."""
    own = {client: {n: v for n, v in state.items() if n != RESIDUAL} for client, state in sorted(clients.items())}
    own = {client: state for client, state in own.items() if state}
    if not own:
        return {}
    names = list(next(iter(own.values())))
    found = {ROW + name: torch.stack([state[name] for state in own.values()]) for name in names}
    return {**found, "states.client": torch.tensor(list(own))}


def read_task(
    hosted: HostedClients, round_id: RoundId, client: int, asked: Payload, chance: Chance
) -> tuple[Task, ModelPart]:
    """A task as the engine reads it, and the part of the model that was sent; the rest of the model is zero."""
    inputs, facts = hosted.inputs, asked.facts
    setting, method, device = inputs.setting, inputs.method, inputs.model.device
    ids = torch.tensor([client], device=device)
    memory = method.local.server_state(setting, inputs.model)
    extras = dict(method.local.brief(memory, setting, ids))  # their names and shapes; some do not travel
    form = facts.get("form")
    keeps = form not in ("all", "bits") or facts.get("keep") is not None
    frame = Frame(
        setting.layout,
        setting.neurons if keeps else None,
        {name: (v.dtype, tuple(v.shape[1:])) for name, v in extras.items() if v.dtype in CARRIED},
    )
    message: Message = decode(asked.data, with_form(Expected(frame, round_id.stamp(client, "down")), form))
    extras |= {name: value[None].to(device) for name, value in message.extras.items()}
    if message.mask is None and base_hash(message.values) != round_id.base:
        raise Rejected("base", "the model does not have the hash that the message says.")
    keep = _keep(facts, message, setting.neurons.size if keeps else 0)
    share = fact(facts, "share", float)
    if not 0 < share <= 1:
        raise Rejected("share", f"the share is {share}; expected above 0 and at most 1.")
    task = Task(
        model=message.on(torch.zeros_like(inputs.model)),
        mask=None if message.mask is None else message.mask[None].to(device),
        keep=None if keep is None else keep[None].to(device),
        share=torch.tensor([share], dtype=torch.float64, device=device).to(_kind(facts)),
        authorised=torch.tensor([fact(facts, "authorised", bool)], device=device),
        extras=extras,
        round=round_id.round,
        rate=method.optimiser.rate_at(round_id.round),
        base_rate=method.optimiser.rate,
        trained=setting.layout.trained,
        ids=ids,
    )
    rows = isinstance(form, str) and form.startswith("rows")
    return task, ModelPart(message.mask, message.keep, rows)


def _keep(facts: dict[str, Any], message: Message, size: int) -> Tensor | None:
    """The neurons of a client's network [K]: those of the part that was sent, or those listed in the facts."""
    neurons = facts.get("keep")
    if neurons is None:
        return None
    if neurons == "part":
        return message.keep
    try:
        packed = np.frombuffer(bytes.fromhex(fact(facts, "keep", str)), np.uint8)
    except ValueError:
        raise Rejected(
            "mask", f"'keep' is {str(neurons)[:50]!r}; expected 'part' or bits of neurons in hexadecimal."
        ) from None
    if len(packed) != (size + 7) // 8:
        raise Rejected(
            "mask", f"'keep' has {len(packed)} bytes of bits; expected {(size + 7) // 8} for {size} neurons."
        )
    return torch.from_numpy(unpack_bits(packed, size))


def _kind(facts: dict[str, Any]) -> torch.dtype:
    """The precision of shares."""
    return torch.float64 if facts.get("double") is True else torch.float32


def write_reply(
    hosted: HostedClients,
    round_id: RoundId,
    client: int,
    task: Task,
    reply: Reply,
    asked: ModelPart,
    codec: Codec,
    residual: Tensor | None,
    chance: Chance,
) -> tuple[bytes, str, Tensor | None]:
    """A reply's bytes, the form of its part and, with error feedback, the residual that rounding left [P]."""
    method, setting = hosted.inputs.method, hosted.inputs.setting
    if not method.masks_known:
        mask = None if reply.mask is None else reply.mask[0].cpu()
        part = part_of(setting, mask, rows=method.upload.rows)
    else:
        part = asked._replace(known=True)
    key, values = chance.key("codec", reply.ids), reply.params[0].cpu()
    if codec.values != "float32":  # send changes, where the client was sent the model; elsewhere it has no model
        mask = None if part.whole else part.numbers(setting.neurons)
        left = torch.zeros_like(values) if residual is None else residual
        wanted, _, lost = codec.correct(
            (values - task.model.cpu())[None],
            left[None],
            key.cpu(),
            None if mask is None else mask[None].cpu(),
            setting.layout,
        )
        values, residual = wanted[0], lost[0] if codec.feedback else None
    frame = hosted.parts.frame(reply.extras, ranges_of(reply), part)
    extras: State = {name: reply.extras[name][0] for name in frame.extras}
    report = {name: float(reply.report[name][0]) for name in frame.report}
    data = codec.encode(frame, round_id.stamp(client, "up"), values, part, extras, report, key[0].cpu())
    return data, form_of(setting, part), residual
