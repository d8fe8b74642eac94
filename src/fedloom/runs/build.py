"""How does an experiment become something that can be played? Data, fleet, network and engine, put together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.accel.machine import device_of
from fedloom.accel.precision import precision_note
from fedloom.chance import Chance
from fedloom.core.devices import Devices
from fedloom.core.types import Examples, Fleet, Setting
from fedloom.data.dataset import Dataset, check
from fedloom.data.lists import Lists, from_ranges
from fedloom.data.load import load
from fedloom.data.partition import Partition, partition, split
from fedloom.data.sampling import Ints
from fedloom.engine.distributed import Distributed
from fedloom.engine.gradient.dropout import keyed
from fedloom.engine.gradient.fastest import lower
from fedloom.engine.local import Local, Loop
from fedloom.engine.ranks import rank_device, ranks_here
from fedloom.engine.storage.offload import at_home, shelve
from fedloom.engine.storage.placement import Plan, budget_of, plan as plan_memory, sizes_of
from fedloom.engine.storage.shards import Shards
from fedloom.errors import BadData, BadExperiment
from fedloom.layout import flatten, layout_of
from fedloom.method import Method
from fedloom.models.check import FIRST, check_network, own_copy
from fedloom.round import Engine
from fedloom.runs.experiment import Experiment
from fedloom.world.attack import Attacked
from fedloom.world.channel import Pieces
from fedloom.world.fleets import make_devices
from fedloom.world.simulated import Simulated
from fedloom.world.trace import read_trace
from fedloom.world.wire import Wire

if TYPE_CHECKING:
    from fedloom.flower.server.network import Network


class Simulation(NamedTuple):
    """All that a run needs."""

    method: Method
    setting: Setting
    network: nn.Module  # as the user wrote it; the setting's has keyed dropout
    engine: Local
    ranks: Distributed | Network | None  # where clients' states lie elsewhere: with other ranks, or on nodes
    wire: Wire  # the engine with its replies through the codec
    world: Simulated | Network | None  # that in a world, where a fleet of devices was chosen, or a real network
    model: Tensor  # [P] before the first round
    test: Examples
    own_test: tuple[Examples, Shards] | None  # every client's own test split, if there is one
    clients: list[int]  # the partition's number of each client in the fleet; empty ones are left out
    classes: int
    plan: Plan  # where examples and client states live
    notes: list[str]  # how the data were dealt, and what the method's parts say before they begin


def per_example(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of each example."""
    return F.cross_entropy(output, target, reduction="none")


def prepare(
    experiment: Experiment,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    beside: Simulation | None = None,
) -> Simulation:
    """Load, deal, build; a method, network or data set of the user's own may stand in for the experiment's names.

    `beside` is another run on the same `data` and device: its tensors are used again, and so is its gradient where the
    networks differ in nothing but their weights.
    """
    _of_kind("method", method, Method)
    _of_kind("model", model, nn.Module)
    _of_kind("data", data, Dataset)
    if data is not None and beside is None:
        check(data._asdict(), f"data '{data.name}'", data.classes)
    method = method or experiment.build_method()
    spread = experiment.engine == "distributed"
    device = device_of(rank_device(experiment.device) if spread else experiment.device)
    dataset = data or load(experiment.data.name, **experiment.data.settings)
    ids, settings = dataset.client_train, experiment.partition.settings
    dealt = partition(
        experiment.partition.name, dataset.y_train, experiment.clients, experiment.seed, client_ids=ids, **settings
    )
    parts = split(dealt, experiment.split, experiment.seed)
    present = np.flatnonzero(parts.train.sizes)  # empty clients are left out
    if not len(present):
        raise BadData(f"no client has a training example ({dealt.note})")
    mine = parts.train.at(present)
    sizes = mine.sizes.tolist()
    attack, unchanging = experiment.build_attack(), Chance(experiment.seed, 0, device)
    network = own_copy(model if model is not None else network_of(experiment, dataset), device)
    module = keyed(network)
    layout = layout_of(module)
    labels = np.bincount(
        mine.owner * dataset.classes + dataset.y_train[mine.examples], minlength=len(mine) * dataset.classes
    )
    fleet = Fleet(
        torch.tensor(sizes, device=device),
        torch.from_numpy(labels).view(-1, dataset.classes).to(device),
        devices_of(experiment, present, device),
    )
    setting = Setting(fleet, module, layout, per_example, torch.from_numpy(dataset.x_train[:2]).to(device))
    if beside is None:  # else such a network was tried on the same data
        x, y = (torch.from_numpy(part[:FIRST]).to(device) for part in (dataset.x_train, dataset.y_train))
        check_network(module, per_example, x, y, dataset.classes)
    plan = _plan(experiment, method, setting, dataset, Lists.of(dealt.clients).at(present).sizes.tolist())
    train, test = (
        Examples(torch.from_numpy(x), torch.from_numpy(y))
        for x, y in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test))
    )
    if beside is not None:
        train, test = beside.engine.data, beside.test
    else:
        train = at_home(train, device, "device") if plan.examples == "device" else train
        test = at_home(test, device, plan.examples)
    shards = _shards(mine, train.y.device)
    if attack is not None:
        who = attack.who(len(present), unchanging).to(train.y.device)
        taken = shards.examples[who.repeat_interleave(torch.tensor(sizes, device=train.y.device))]
        train = train._replace(y=train.y.index_copy(0, taken, attack.labels(train.y[taken], dataset.classes)))
    own = _own_split(parts.test, present, train) or _own_part(dataset, dealt, present, test)
    own_test = own and shelve(*own, device, plan.examples, 0)
    own = _own_split(parts.validation, present, train)
    held = own_test if own is None else shelve(*own, device, plan.examples, 0)
    train, shards = shelve(train, shards, device, plan.examples, plan.room)
    if method.local.judges and held is None:
        raise BadExperiment(
            "split keeps nothing back, and the method's clients try their models on examples of their own; set it to "
            "training, validation and test shares, as in split=[0.7,0,0.3]."
        )
    if experiment.engine == "loop":
        engine: Local = Loop(method, setting, train, shards, held, plan.states)
    else:
        sliced = experiment.execution == "sliced"
        gradient = None if beside is None or not _same(setting, beside.setting) else beside.engine.gradient
        engine = Local(method, setting, train, shards, plan.chunk, gradient, sliced, held, states=plan.states)
    lower(engine.gradient, experiment.precision)
    rounding = precision_note(experiment.precision, device)
    sender: Engine = engine
    if (here := ranks_here(str(device)) if spread else None) is not None and here.rank == 0:
        sender = Distributed(engine, here)
    ranks = sender if isinstance(sender, Distributed) else None
    if attack is not None:
        sender = Attacked(sender, attack, attack.who(len(present), unchanging))
    wire = Wire(sender, method, setting, experiment.codec, experiment.exact_bytes)
    return Simulation(
        method=method,
        setting=setting,
        network=network,
        engine=engine,
        ranks=ranks,
        wire=wire,
        world=None if fleet.devices is None else _world(experiment, wire, present),
        model=flatten(module, layout),
        test=test,
        own_test=own_test,
        clients=present.tolist(),
        classes=dataset.classes,
        plan=plan,
        notes=[dealt.note, *method.notes(setting), str(plan), *([] if rounding is None else [rounding])],
    )


def _plan(experiment: Experiment, method: Method, setting: Setting, dataset: Dataset, dealt: list[int]) -> Plan:
    """Where examples and client states will live; `dealt` are every client's examples, own test and all."""
    device, chunk = setting.example.device, 1 if experiment.engine == "loop" else experiment.chunk
    examples = sum(part.nbytes for part in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test))
    model = flatten(setting.module, setting.layout)
    sizes = sizes_of(method, setting, model, examples, dealt, experiment.rounds, chunk)
    return plan_memory(sizes, budget_of(device, experiment.memory, examples), str(device))


def devices_of(experiment: Experiment, present: Ints, device: torch.device) -> Devices | None:
    """The devices of the clients that take part."""
    if experiment.fleet.name == "none":
        return None
    devices = make_devices(experiment.fleet.name, experiment.clients, experiment.seed, **experiment.fleet.settings)
    return devices.at(torch.from_numpy(present)).to(device)


def _world(experiment: Experiment, wire: Wire, present: Ints) -> Simulated:
    """The wire in the experiment's world."""
    world, trace = experiment.world, None
    if world.trace is not None:
        device = wire.setting.fleet.examples.device
        trace = read_trace(Path(world.trace), experiment.clients, clients=torch.from_numpy(present)).to(device)
    return Simulated(
        wire,
        wire.method,
        wire.setting,
        world,
        wire.price,
        channel=experiment.build_channel(),
        pieces=None if world.pieces is None else Pieces(world.pieces, world.piece_loss),
        trace=trace,
    )


def _of_kind(name: str, value: object, kind: type) -> None:
    """Refuse a thing of the user's own that is something else."""
    if value is not None and not isinstance(value, kind):
        expected = "an nn.Module" if kind is nn.Module else f"a {kind.__name__}"
        raise BadExperiment(f"{name} is {value!r} ({type(value).__name__}); expected {expected}.")


def network_of(experiment: Experiment, dataset: Dataset) -> nn.Module:
    """The named network with weights drawn from the seed alone, whatever was drawn before."""
    shape = tuple(dataset.x_train.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        return experiment.build_model(shape, dataset.classes, dataset.vocabulary)


def _shards(lists: Lists, device: torch.device) -> Shards:
    """The same for an engine."""
    return Shards.of(torch.from_numpy(lists.examples), lists.sizes.tolist(), device)


def _own_split(kept: Lists, present: Ints, train: Examples) -> tuple[Examples, Shards] | None:
    """What was kept of each client's data for its own test."""
    own = kept.at(present)
    return (train, _shards(own, train.y.device)) if len(own.examples) else None


def _own_part(dataset: Dataset, dealt: Partition, present: Ints, test: Examples) -> tuple[Examples, Shards] | None:
    """Each client's part of the test set, where the data say whose is whose and were dealt so."""
    if dataset.client_train is None or dataset.client_test is None:
        return None
    own = Lists.of(dealt.clients).at(present)
    ids, first = dataset.client_train[own.examples], np.cumsum(own.sizes) - own.sizes
    whose = ids[first]
    if (ids != np.repeat(whose, own.sizes)).any() or not np.isin(dataset.client_test, whose).any():
        return None  # dealt otherwise, or those tested are strangers
    order = np.argsort(dataset.client_test, kind="stable")
    low, high = (np.searchsorted(dataset.client_test, whose, side, order) for side in ("left", "right"))
    return test, _shards(from_ranges(order, low, high - low), test.y.device)


def _same(one: Setting, other: Setting) -> bool:
    """Do two networks answer alike once they have the same weights?"""
    if one.layout != other.layout:
        return False
    tensors = one.layout.split(flatten(one.module, one.layout))
    with torch.no_grad():
        ours, theirs = (functional_call(each.module.eval(), tensors, (one.example,)) for each in (one, other))
    return torch.equal(ours, theirs)
