"""A run, ready to be played: its inputs and the engine that trains for it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call

from fedloom.accel.machine import size
from fedloom.accel.precision import precision_note
from fedloom.chance import Chance
from fedloom.core.goal import Goal, Transform
from fedloom.core.types import Setting
from fedloom.data.dataset import Dataset
from fedloom.engine.distributed import Distributed
from fedloom.engine.local import Engines, Local, Measured, local_engine
from fedloom.engine.loop import Loop
from fedloom.engine.pace import fastest_way
from fedloom.engine.plan import ClientWay
from fedloom.engine.protocol import Engine, Timed
from fedloom.engine.ranks import ranks_here
from fedloom.errors import BadExperiment
from fedloom.layout import flatten
from fedloom.method import Method
from fedloom.runs.assumptions import assumption_notes
from fedloom.runs.base import hash_of_base
from fedloom.runs.default_fleet import fleet_notes
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs, clients_of, inputs_of
from fedloom.runs.threads import round_of, threads_for
from fedloom.runs.without_barrier import pace_notes
from fedloom.world.attack import Attacked
from fedloom.world.channel import Pieces
from fedloom.world.message_parts import MessageParts
from fedloom.world.simulated import Simulated
from fedloom.world.trace import Trace, read_trace
from fedloom.world.virtual_time import VirtualTime
from fedloom.world.wire import Wire

WORTH = 4_000_000_000  # multiply-adds of a round from which the ways are measured: about a second on two cores
UNREPEATABLE = (
    "this run cannot be repeated: in training the network draws random numbers from a generator (Python's, NumPy's, or "
    "of a function of torch that is not known here) that the run's seed does not set; draw by torch.rand or dropout."
)
WHOLE = "the network has no hidden neurons that can be cut: every client has all of it, as with a share of 1."


class Prepared(NamedTuple):
    """All that a run needs."""

    inputs: Inputs
    engine: Engine  # as the server calls it, with the codec and the simulated world around what trains
    notes: list[str]  # what should be known before the first round
    trainer: Local | Loop | None = None  # what trains in this process; None: clients train on nodes
    trace: Trace | None = None  # when devices are there, where the world says so
    timed: Timed | None = None  # the same clients without a barrier, where it is known how long they take


def prepare(
    experiment: Experiment,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    sibling: Prepared | None = None,
    *,
    goal: Goal | None = None,
    transform: Transform | None = None,
    way: ClientWay | None = None,
    start: Path | None = None,
) -> Prepared:
    """Load, deal, build; things of the user's own may replace what the experiment names.

    `sibling` is another run on the same `data` and device: its examples are used again, and so is its gradient where
    the networks differ in nothing but their weights. `way`: how clients shared the cores when the run was begun, and
    `start`: its copy of the weights that it began with.
    """
    own = None if sibling is None else sibling.inputs
    inputs = inputs_of(experiment, method, model, data, own, goal=goal, transform=transform, start=start)
    lead = experiment.engine != "distributed" or ranks_here(str(inputs.model.device)).rank == 0
    setting, trainer = inputs.setting, trainer_of(experiment, inputs, sibling, way, measure=lead)
    engine: Engine = trainer
    if experiment.engine == "distributed" and isinstance(trainer, Local):
        here = ranks_here(str(inputs.model.device))
        engine = Distributed(trainer, here) if here.rank == 0 else trainer
    if (attack := experiment.build_attack()) is not None:
        who = attack.who(setting.fleet.size, Chance(experiment.seed, 0, inputs.model.device))
        engine = Attacked(engine, attack, who)
    parts = MessageParts(inputs.method, setting, experiment.codec)
    wire = Wire(engine, parts, setting, experiment.exact_bytes)
    if setting.fleet.devices is None:
        if experiment.evaluate_seconds is not None:
            raise BadExperiment(
                f"evaluate_seconds is {experiment.evaluate_seconds:g}, and without devices nothing takes virtual time; "
                "choose a fleet, as in --fleet iot, or evaluate_every rounds."
            )
        return Prepared(inputs, wire, notes_of(experiment, inputs), trainer)
    world, trace = _in_world(experiment, wire, inputs, parts)
    return Prepared(inputs, world, notes_of(experiment, inputs), trainer, trace, VirtualTime(world))


def timed(prepared: Prepared) -> Timed:
    """The clients of a run that are in flight while others begin."""
    if prepared.timed is None:
        pace = type(prepared.inputs.method.pace).__name__
        raise BadExperiment(
            f"pace={pace} needs to know how long clients take, and this experiment's fleet has no devices; choose one, "
            "as in --fleet mobile-4g."
        )
    return prepared.timed


def trainer_of(
    experiment: Experiment,
    inputs: Inputs,
    sibling: Prepared | None = None,
    way: ClientWay | None = None,
    measure: bool = False,
) -> Local | Loop:
    """The engine that trains the clients of these inputs in this process.

    `way`: how clients shared the cores when the run was begun. None: it may be measured, if `measure` says so and a
    round takes long enough.
    """
    clients = clients_of(inputs)
    if experiment.engine == "loop":
        return Loop(clients, experiment.precision)
    chosen = None
    if sibling is not None and isinstance(sibling.trainer, Local) and _alike(inputs.setting, sibling.inputs.setting):
        chosen = sibling.trainer.chosen
        way = way or sibling.trainer.plan.clients
    worth = measure and round_of(inputs) >= WORTH

    def pick(engines: Engines) -> tuple[ClientWay, Measured]:
        if way is not None and not engines.why_not(way):
            return way, ()
        if not worth:
            return engines.ways()[0], ()
        with threads_for([inputs]):
            return fastest_way(engines, inputs.method.cohort_size(inputs.setting.fleet.size))

    sliced, pinned = experiment.execution == "sliced", None if experiment.way == "auto" else experiment.way
    return local_engine(clients, inputs.placement.chunk, experiment.precision, sliced, chosen, way=pinned, pick=pick)


def notes_of(experiment: Experiment, inputs: Inputs) -> list[str]:
    """What should be known before a run begins."""
    rounding = precision_note(experiment.precision, inputs.model.device)
    own = fleet_notes(inputs.method, experiment.fleet.name)
    own += pace_notes(experiment, inputs.method, inputs.setting) + inputs.method.notes(inputs.setting)
    own += assumption_notes(experiment, inputs.method, inputs.setting.fleet.devices, inputs.setting.fleet.size)
    own += inputs.notes
    own += [] if inputs.repeatable else [UNREPEATABLE]
    own += [] if experiment.start is None else [f"the model begins with the weights of '{experiment.start}'"]
    if inputs.method.of_neurons:
        neurons = inputs.setting.neurons  # which warns of layers that are kept whole
        own += [WHOLE] if neurons.note is None and not neurons.size else []
    own += [crowded_note(inputs)] if inputs.placement.crowded else []
    return [*own, str(inputs.placement), *([] if rounding is None else [rounding])]


def crowded_note(inputs: Inputs) -> str:
    """Clients in flight that do not fit into memory, and what to do."""
    placement, pace = inputs.placement, inputs.method.pace
    lighter = "" if pace.lighter is None else f"{pace.lighter}, "
    return (
        f"up to {min(pace.slots, inputs.setting.fleet.size):,} clients in flight take about "
        f"{size(placement.flight_bytes)}, and the run has {size(placement.budget)} in all: {lighter}have fewer "
        "in flight, or give it more memory."
    )


def _in_world(
    experiment: Experiment, engine: Engine, inputs: Inputs, parts: MessageParts
) -> tuple[Simulated, Trace | None]:
    """The engine in the experiment's simulated world."""
    world, trace = experiment.world, None
    if world.trace is not None:
        clients = torch.tensor(inputs.clients)
        trace = read_trace(Path(world.trace), experiment.clients, clients=clients).to(inputs.model.device)
    pieces = None if world.pieces is None else Pieces(world.pieces, world.piece_loss)
    channel = experiment.build_channel()
    simulated = Simulated(
        engine, inputs.method, inputs.setting, world, parts.prices, channel=channel, pieces=pieces, trace=trace
    )
    return simulated, trace


def _alike(one: Setting, other: Setting) -> bool:
    """Whether goals are equal and two networks answer alike once they have the same weights."""
    if one.layout != other.layout or one.goal != other.goal or one.transform != other.transform:
        return False
    if hash_of_base(one.module, one.layout) != hash_of_base(other.module, other.layout):
        return False
    tensors = one.layout.split(flatten(one.module, one.layout))
    with torch.no_grad():
        ours, theirs = (functional_call(each.module.eval(), tensors, (one.example,)) for each in (one, other))
    return torch.equal(ours, theirs)
