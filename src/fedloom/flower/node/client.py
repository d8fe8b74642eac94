"""How does one client take its part in a round? The simulator's engine with a cohort of one, between two messages."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.codec import Codec, Expected, Frame, Message, Part, Rejected, base_hash, decode
from fedloom.codec.places import unpack_bits
from fedloom.core.types import Reply, State, Task
from fedloom.engine.client import initial_state
from fedloom.engine.storage.client_states import ClientStates
from fedloom.flower.node.host import Host
from fedloom.flower.node.state import Kept, Store
from fedloom.flower.protocol.asked_part import chosen_part, expected, form_of
from fedloom.flower.protocol.records import Item, fact
from fedloom.flower.protocol.round_id import Order
from fedloom.world.wire import CARRIED, ranges_of

RESIDUAL = "codec.residual"  # what rounding took from the last reply, beside what the rule remembers


def teach(host: Host, order: Order, client: int, item: Item, store: Store) -> Item:
    """Decode, train, keep the state, encode."""
    if client not in host.clients:
        raise Rejected("client", f"client {client} of the fleet is not hosted here.")
    began, world = time.perf_counter(), host.world
    chance = Chance(host.experiment.seed, order.round, world.model.device)
    task, part = read_task(host, order, client, item, chance)
    decoded = time.perf_counter()
    newborn = initial_state(world.method, world.setting, task.model)
    kept = store.get(client)
    start = None if kept is None else kept.at(order.round)
    world.engine.states = ClientStates(world.setting.fleet.size, world.model.device)
    if newborn and start is not None:
        own = {name: value for name, value in start.items() if name != RESIDUAL}
        world.engine.states.load({"client": torch.tensor([client]), **{f"row.{n}": v[None] for n, v in own.items()}})
    reply = world.engine(torch.tensor([client]), task, chance)
    state = {name: value[0].cpu() for name, value in world.engine.states.get([client], newborn).items()}
    trained = time.perf_counter()
    authorised, data, form = bool(task.authorised[0]), b"", ""
    codec = Codec(**host.experiment.codec.model_dump())
    if codec.feedback:
        state[RESIDUAL] = torch.zeros_like(task.model, device="cpu") if start is None else start[RESIDUAL]
    if authorised:
        data, form, residual = write_reply(host, order, client, task, reply, part, codec, state.get(RESIDUAL), chance)
        state |= {} if residual is None else {RESIDUAL: residual}
    if state:
        store.put(client, Kept(order.round, start, state))
    ended = time.perf_counter()
    facts = {
        "client": client,
        "form": form,
        "seconds_decode": decoded - began,
        "seconds_compute": trained - decoded,
        "seconds_encode": ended - trained,
    }
    return Item(facts, data)


def read_task(host: Host, order: Order, client: int, item: Item, chance: Chance) -> tuple[Task, Part]:
    """What came down, as the engine reads it, and the part that it was; what was not sent is zero."""
    world, facts = host.world, item.facts
    setting, method, device = world.setting, world.method, world.model.device
    ids = torch.tensor([client], device=device)
    memory = method.local.server_state(setting, world.model)
    extras = dict(method.local.brief(memory, setting, ids))  # names and shapes; what does not travel is derived
    form = facts.get("form")
    keeps = form not in ("all", "bits") or facts.get("keep") is not None
    frame = Frame(
        setting.layout,
        setting.neurons if keeps else None,
        {name: (v.dtype, tuple(v.shape[1:])) for name, v in extras.items() if v.dtype in CARRIED},
    )
    message: Message = decode(item.data, expected(Expected(frame, order.stamp(client, "down")), form))
    extras |= {name: value[None].to(device) for name, value in message.extras.items()}
    if message.mask is None and base_hash(message.values) != order.base:
        raise Rejected("base", "the model is not the one that the message is about.")
    keep = _keep(facts, message, setting.neurons.size if keeps else 0)
    share = fact(facts, "share", float)
    if not 0 < share <= 1:
        raise Rejected("share", f"the share is {share}; expected above 0 and at most 1.")
    task = Task(
        model=message.on(torch.zeros_like(world.model)),
        mask=None if message.mask is None else message.mask[None].to(device),
        keep=None if keep is None else keep[None].to(device),
        share=torch.tensor([share], dtype=torch.float64, device=device).to(_kind(facts)),
        authorised=torch.tensor([fact(facts, "authorised", bool)], device=device),
        extras=extras,
        round=order.round,
        rate=method.optimiser.rate_at(order.round),
        base_rate=method.optimiser.rate,
        trained=setting.layout.trained,
        ids=ids,
    )
    rows = isinstance(form, str) and form.startswith("rows")
    return task, Part(message.mask, message.keep, rows)


def _keep(facts: dict[str, Any], message: Message, size: int) -> Tensor | None:
    """The neurons a client's network has [K], where it is told: those of the part, or others said beside it."""
    said = facts.get("keep")
    if said is None:
        return None
    if said == "part":
        return message.keep
    try:
        packed = np.frombuffer(bytes.fromhex(fact(facts, "keep", str)), np.uint8)
    except ValueError:
        raise Rejected("mask", "the neurons of the client's network are not written as expected.") from None
    if len(packed) != (size + 7) // 8:
        raise Rejected("mask", f"the neurons of the client's network take {len(packed)} bytes; there are {size}.")
    return torch.from_numpy(unpack_bits(packed, size))


def _kind(facts: dict[str, Any]) -> torch.dtype:
    """The precision of shares."""
    return torch.float64 if facts.get("double") is True else torch.float32


def write_reply(
    host: Host,
    order: Order,
    client: int,
    task: Task,
    reply: Reply,
    asked: Part,
    codec: Codec,
    residual: Tensor | None,
    chance: Chance,
) -> tuple[bytes, str, Tensor | None]:
    """A reply's bytes, the form of its part, and what rounding took from it, if that is given back."""
    method, setting = host.world.method, host.world.setting
    if not method.masks_known:
        part = chosen_part(method, setting, None if reply.mask is None else reply.mask[0].cpu())
    else:
        part = asked._replace(known=True)
    key, values = chance.key("codec", reply.ids), reply.params[0].cpu()
    if codec.values != "float32":  # changes, of what was sent: of the rest the client does not know the model
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
    frame = host.world.wire.frame(reply.extras, ranges_of(reply), part)
    extras: State = {name: reply.extras[name][0] for name in frame.extras}
    report = {name: float(reply.report[name][0]) for name in frame.report}
    data = codec.encode(frame, order.stamp(client, "up"), values, part, extras, report, key[0].cpu())
    return data, form_of(part, frame.host), residual
