"""One round or step of a run: played, evaluated and recorded."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.costs import TRANSPORT
from fedloom.core.devices import Devices
from fedloom.core.types import Reply
from fedloom.evaluate.score import evaluate
from fedloom.round import play_round
from fedloom.runs.build import Prepared, timed
from fedloom.runs.checkpoint.snapshot import Progress
from fedloom.runs.experiment import Experiment
from fedloom.runs.ledger import Ledger
from fedloom.step import play_step


def play_one(
    experiment: Experiment,
    prepared: Prepared,
    ledger: Ledger,
    at: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> Progress:
    """Play one round or step, evaluate the model if it is due, and record the round."""
    began, method, setting = clock(), prepared.inputs.method, prepared.inputs.setting
    chance = Chance(experiment.seed, at.round + 1, at.model.device)
    if at.flight is None:
        weights, memory, task, reply = play_round(method, at.memory, at.model, setting, prepared.engine, chance)
    else:
        weights, memory, task, reply = play_step(
            method, at.memory, at.flight, setting, timed(prepared), experiment.seed
        )
    ledger.add(task, with_transport(reply, setting.fleet.devices), clock() - began, method.record(memory))
    now = at.seconds
    if experiment.evaluate_seconds is not None and reply.costs is not None and reply.costs.duration is not None:
        now += float(reply.costs.duration)  # on a GPU this waits for the round
    if due(experiment, chance.round, at.seconds, now) or chance.round == experiment.rounds:
        add_score(ledger, prepared, weights, clock)
    return Progress(chance.round, weights, memory, at.flight, now)


def due(experiment: Experiment, number: int, before: float, after: float) -> bool:
    """Whether the model is evaluated after a round, by its number or by the virtual seconds before and after it."""
    every = experiment.evaluate_seconds
    return number % experiment.evaluate_every == 0 if every is None else after // every > before // every


def with_transport(reply: Reply, devices: Devices | None) -> Reply:
    """The reply with the bytes that its links carry besides messages, if the fleet has them and no network counted."""
    costs = reply.costs
    if devices is None or devices.transport is None or costs is None or costs.columns is None:
        return reply
    sizes = (costs.columns[name] for name in ("bytes_down", "bytes_up"))
    added = dict(zip(TRANSPORT, devices.transport.added(reply.ids, *sizes)))
    return reply._replace(costs=costs._replace(columns={**added, **costs.columns}))


def add_score(ledger: Ledger, prepared: Prepared, weights: Tensor, clock: Callable[[], float]) -> None:
    """Evaluate the model, and the clients' own models where they have test examples."""
    began, inputs = clock(), prepared.inputs
    own = prepared.engine.personal(weights)
    tried = [] if own is None else [clock() - began]
    whole = not inputs.method.local.traits.splits
    score = evaluate(inputs.setting, weights, inputs.test, inputs.outputs) if whole else None
    checked = None
    if whole and inputs.validation is not None:
        checked = evaluate(inputs.setting, weights, inputs.validation, inputs.outputs)
    ledger.score(score, own, clock() - began, *tried, validation=checked)
