"""What a run is made from, before any engine: data dealt to clients, the fleet, the network, and their places."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloom.accel.machine import device_of
from fedloom.chance import Chance
from fedloom.core.devices import Devices
from fedloom.core.goal import Goal, Transform
from fedloom.core.types import Examples, Fleet, Setting
from fedloom.data.augment import check_transform
from fedloom.data.dataset import Dataset
from fedloom.data.lists import Lists, from_ranges
from fedloom.data.partition import Partition, Split, split
from fedloom.data.sampling import Ints
from fedloom.data.targets import strata_of
from fedloom.engine.clients import ClientExamples, Clients
from fedloom.engine.gradient.dropout import keyed
from fedloom.engine.gradient.keyed_calls import draws_of
from fedloom.engine.ranks import rank_device
from fedloom.engine.storage.offload import offload, place_examples
from fedloom.engine.storage.placement import Placement, budget_of, place, sizes_of
from fedloom.engine.storage.shards import Shards
from fedloom.errors import BadData, BadExperiment
from fedloom.layout import flatten, layout_of
from fedloom.method import Method
from fedloom.models.check import FIRST, check_buffers, check_network, moving_buffers, own_copy
from fedloom.runs.adapter import later_start, with_adapter
from fedloom.runs.assumptions import stranger_notes
from fedloom.runs.augment import every_transform
from fedloom.runs.dealing import client_names, dataset_of, deal
from fedloom.runs.experiment import Experiment
from fedloom.runs.input_checks import check_classes, check_kind, check_weights
from fedloom.runs.start import begin_with
from fedloom.runs.without_barrier import check_pace
from fedloom.world.fleets import make_devices


class Widths(NamedTuple):
    """What nodes with data of their own must know of the server's."""

    classes: int = 0  # of targets
    vocabulary: int = 0  # of inputs that are tokens
    outputs: int = 0  # of the network


class Inputs(NamedTuple):
    """What a run is made from."""

    method: Method
    setting: Setting
    network: nn.Module  # as the user wrote it; the setting's has keyed dropout
    model: Tensor  # [P] before the first round
    train: Examples
    shards: Shards  # which of `train` are whose
    held_out: ClientExamples | None  # examples that clients try their models on while they train
    own_test: ClientExamples | None  # examples for the clients' personal score
    test: Examples
    outputs: int  # the width of the network's answer
    clients: list[int]  # the partition's number of each client in the fleet; empty clients are left out
    placement: Placement  # where examples and client states lie
    dealt: str  # how the data were dealt, in words
    dealt_by: str  # the name of the partition
    client_names: tuple[str, ...] | None = None  # of the partition's clients, where the data name them
    class_names: tuple[str, ...] | None = None
    widths: Widths = Widths()
    strata: Shards | None = None  # of the examples in `shards`, where the data have strata of their own
    parts: int = 0  # how many clients the data were dealt to, empty ones included
    validation: Examples | None = None  # of all clients together, which nobody trains on
    notes: tuple[str, ...] = ()  # what should be known of the data
    repeatable: bool = True  # False: the network draws random numbers that no seed of the run decides


def inputs_of(
    experiment: Experiment,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    sibling: Inputs | None = None,
    *,
    goal: Goal | None = None,
    transform: Transform | None = None,
    start: Path | None = None,
) -> Inputs:
    """Load, deal and place; things of the user's own may replace what the experiment names.

    `sibling`: the inputs of another run on the same `data`, which are ready for its goal, and on the same device; its
    examples are used again. `start`: the run's own copy of the weights that it begins with.
    """
    check_kind("method", method, Method)
    check_kind("model", model, nn.Module)
    check_kind("data", data, Dataset)
    check_kind("goal", goal, Goal)
    method = method or experiment.build_method()
    check_pace(experiment, method)
    device = device_of(rank_device(experiment.device) if experiment.engine == "distributed" else experiment.device)
    goal = goal or experiment.build_goal()
    dataset = data if data is not None and sibling is not None else dataset_of(experiment, goal, data)
    dealt = deal(experiment, dataset, goal)
    parts = split(dealt, experiment.split, experiment.seed)
    present = np.flatnonzero(parts.train.sizes)  # empty clients are left out
    if not len(present):
        raise BadData(f"no client has a training example ({dealt.note})")
    outputs = goal.outputs(dataset)
    check_weights(goal, dataset)
    network = model if model is not None else network_of(experiment, dataset, outputs)
    network = own_copy(with_adapter(experiment, network), device)
    module = keyed(network)
    transform = every_transform(experiment.augment, transform, goal, outputs)
    fleet = _fleet(experiment, dataset, goal, parts.train.at(present), present, device)
    x, y = (tensor_of(part[:FIRST]).to(device) for part in (dataset.x_train, dataset.y_train))
    layout = layout_of(module, moving_buffers(module, x))
    check_buffers(module, layout)
    if (source := start or later_start(experiment, network)) is not None:
        begin_with(source, layout, module, network)
    draws = draws_of(module, x)
    setting = Setting(fleet, module, layout, goal, x[:2], transform, draws.keyed)
    check_classes(method, setting)
    if sibling is None:  # else such a network was tried on the same data
        if transform is not None:
            check_transform(transform, x, y, goal)
        check_network(module, goal, x, y, outputs)
    weights = flatten(module, setting.layout)
    method.pace.init(setting, weights)  # refuses a fleet that is too small, before anything is written
    placement = _placement(experiment, method, setting, weights, dataset, Lists.of(dealt.clients).at(present))
    train, shards, held_out, own_test, test = _examples(
        experiment, method, setting, dataset, dealt, parts, present, placement, outputs, sibling
    )
    return Inputs(
        method, setting, network, weights, train, shards, held_out, own_test, test, outputs, present.tolist(),
        placement, dealt.note, dealt.name, client_names(dataset, dealt), dataset.class_names,
        Widths(dataset.classes, dataset.vocabulary, outputs), _strata(dataset, parts.train.at(present), device),
        len(parts.train), _validation(parts.validation.at(present), dataset, device, placement),
        stranger_notes(experiment, dataset, own_test is not None), not draws.unkeyed,
    )  # fmt: skip


def clients_of(inputs: Inputs) -> Clients:
    """The clients that train in this process."""
    return Clients(
        inputs.method, inputs.setting, inputs.train, inputs.shards, inputs.held_out, inputs.own_test,
        inputs.placement.states, inputs.strata,
    )  # fmt: skip


def _fleet(
    experiment: Experiment, dataset: Dataset, goal: Goal, own: Lists, present: Ints, device: torch.device
) -> Fleet:
    """How many examples every client has, of which strata, and on what device."""
    strata, count = strata_of(dataset, goal), 1
    if strata is not None:
        count = dataset.classes if dataset.stratum_train is None else int(strata.max()) + 1
    whose = own.owner * count + (0 if strata is None else strata[own.examples])
    labels = np.bincount(whose, minlength=len(own) * count)
    return Fleet(
        torch.tensor(own.sizes.tolist(), device=device),
        torch.from_numpy(labels).view(-1, count).to(device),
        devices_of(experiment, present, device),
        by_class=goal.one_class and dataset.stratum_train is None,
    )


def _examples(
    experiment: Experiment,
    method: Method,
    setting: Setting,
    dataset: Dataset,
    dealt: Partition,
    parts: Split,
    present: Ints,
    placement: Placement,
    outputs: int,
    sibling: Inputs | None,
) -> tuple[Examples, Shards, ClientExamples | None, ClientExamples | None, Examples]:
    """Training examples with their shards, held-out and own test examples, and the test set, each where it lies."""
    where, mine, device = placement.examples, parts.train.at(present), setting.example.device
    if sibling is not None:
        train, test = sibling.train, sibling.test
    else:
        train, test = (
            Examples(tensor_of(x), tensor_of(y))
            for x, y in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test))
        )
        train = place_examples(train, device, "device") if where == "device" else train
        test = place_examples(test, device, where)
    shards = _shards(mine, train.y.device)
    if (attack := experiment.build_attack()) is not None:
        who = attack.who(len(present), Chance(experiment.seed, 0, device)).to(train.y.device)
        taken = shards.examples[who.repeat_interleave(torch.tensor(mine.sizes.tolist(), device=train.y.device))]
        false = attack.targets(train.y[taken], setting.goal, outputs)
        train = train._replace(y=train.y.index_copy(0, taken, false))
    own = _own_split(parts.test, present, train) or _own_part(dataset, dealt, present, test)
    own_test = own and offload(*own, device, where, 0)
    own = _own_split(parts.validation, present, train)
    held_out = own_test if own is None else offload(*own, device, where, 0)
    if method.local.traits.judges and held_out is None:
        raise BadExperiment(
            "split keeps nothing back, and the method's clients try their models on examples of their own; set it to "
            "training, validation and test shares, as in split=[0.7,0,0.3]."
        )
    return *offload(train, shards, device, where, placement.buffer), held_out, own_test, test


def _placement(
    experiment: Experiment, method: Method, setting: Setting, model: Tensor, dataset: Dataset, dealt: Lists
) -> Placement:
    """Where examples and client states will lie; `dealt` are every client's examples, own test included."""
    device, chunk = setting.example.device, 1 if experiment.engine == "loop" else experiment.chunk
    arrays = (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test)
    stay = device.type == "cpu"  # arrays of the user's own files need no memory: they are read where they lie
    examples = sum(part.nbytes for part in arrays if not (stay and isinstance(part, np.memmap)))
    sizes = sizes_of(method, setting, model, examples, dealt.sizes.tolist(), experiment.rounds, chunk)
    return place(sizes, budget_of(device, experiment.memory, examples), str(device))


def tensor_of(array: NDArray[Any]) -> Tensor:
    """A tensor on the array's own memory, which may be a file that can only be read: examples are never written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def devices_of(experiment: Experiment, present: Ints, device: torch.device) -> Devices | None:
    """The devices of the clients that take part."""
    if experiment.fleet.name == "none":
        return None
    devices = make_devices(experiment.fleet.name, experiment.clients, experiment.seed, **experiment.fleet.settings)
    return devices.at(torch.from_numpy(present)).to(device)


def network_of(experiment: Experiment, dataset: Dataset, outputs: int) -> nn.Module:
    """The named network with weights drawn from the seed alone, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        return experiment.build_model(tuple(dataset.x_train.shape[1:]), outputs, dataset.vocabulary)


def _strata(dataset: Dataset, own: Lists, device: torch.device) -> Shards | None:
    """The stratum of every client's examples, where the data have strata of their own."""
    if dataset.stratum_train is None:
        return None
    return Shards.of(torch.from_numpy(dataset.stratum_train[own.examples]), own.sizes.tolist(), device)


def _shards(lists: Lists, device: torch.device) -> Shards:
    """The same for an engine."""
    return Shards.of(torch.from_numpy(lists.examples), lists.sizes.tolist(), device)


def _validation(kept: Lists, dataset: Dataset, device: torch.device, placement: Placement) -> Examples | None:
    """The validation examples of all clients together, with true labels."""
    if not len(kept.examples):
        return None
    found = Examples(*(tensor_of(part[kept.examples]) for part in (dataset.x_train, dataset.y_train)))
    return place_examples(found, device, placement.examples)


def _own_split(kept: Lists, present: Ints, train: Examples) -> ClientExamples | None:
    """What was kept of each client's data for its own test."""
    own = kept.at(present)
    return (train, _shards(own, train.y.device)) if len(own.examples) else None


def _own_part(dataset: Dataset, dealt: Partition, present: Ints, test: Examples) -> ClientExamples | None:
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
