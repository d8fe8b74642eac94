"""How does an experiment become something that can be played? Data, fleet, network and engine, put together."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloom.client import Examples
from fedloom.codec import Codec
from fedloom.data.dataset import Dataset, check
from fedloom.data.load import load
from fedloom.data.partition import Partition, partition, split
from fedloom.engine.dropout import keyed
from fedloom.engine.local import Local, Loop, Shards
from fedloom.errors import BadData, BadExperiment, BadModel
from fedloom.experiment import Experiment
from fedloom.layout import flatten, layout_of
from fedloom.method import Method
from fedloom.models import build
from fedloom.models.trial import own_copy, try_network
from fedloom.settings import from_file, make
from fedloom.types import Fleet, Setting
from fedloom.world.channel import Pieces
from fedloom.world.devices import Devices
from fedloom.world.fleets import make_devices
from fedloom.world.simulated import Simulated, World
from fedloom.world.trace import read_trace
from fedloom.world.wire import Wire


class Simulation(NamedTuple):
    """All that a run needs."""

    method: Method
    setting: Setting
    network: nn.Module  # as the user wrote it; the setting's has keyed dropout
    engine: Local
    wire: Wire  # the engine with its replies through the codec
    world: Simulated | None  # that in a world, where a fleet of devices was chosen
    model: Tensor  # [P] before the first round
    test: Examples
    own_test: tuple[Examples, Shards] | None  # every client's own test split, if there is one
    clients: list[int]  # the partition's number of each client in the fleet; empty ones are left out
    classes: int
    notes: list[str]  # how the data were dealt, and what the method's parts say before they begin


def per_example(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of each example."""
    return F.cross_entropy(output, target, reduction="none")


def prepare(
    experiment: Experiment,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Dataset | None = None,
) -> Simulation:
    """Load, deal, build; a method, network or data set of the user's own may stand in for the experiment's names."""
    _of_kind("method", method, Method)
    _of_kind("model", model, nn.Module)
    _of_kind("data", data, Dataset)
    if data is not None:
        check(data._asdict(), f"data '{data.name}'", data.classes)
    method = method or experiment.build_method()
    device = _device(experiment.device)
    dataset = data or load(experiment.data.name, **experiment.data.settings)
    ids, settings = dataset.client_train, experiment.partition.settings
    dealt = partition(
        experiment.partition.name, dataset.y_train, experiment.clients, experiment.seed, client_ids=ids, **settings
    )
    parts = split(dealt, experiment.split, experiment.seed)
    present = [client for client, own in enumerate(parts.train) if len(own)]  # empty clients are left out
    if not present:
        raise BadData(f"no client has a training example ({dealt.note})")
    train, test = (
        Examples(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device))
        for x, y in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test))
    )
    shards = Shards([parts.train[client] for client in present], device)
    network = own_copy(model if model is not None else _network(experiment, dataset), device)
    module = keyed(network)
    layout = layout_of(module)
    owner = np.repeat(np.arange(len(present)), shards.sizes)
    labels = np.zeros((len(present), dataset.classes), np.int64)
    np.add.at(labels, (owner, dataset.y_train[shards.examples.cpu().numpy()]), 1)
    fleet = Fleet(
        torch.tensor(shards.sizes, device=device),
        torch.from_numpy(labels).to(device),
        _devices(experiment, present, device),
    )
    setting = Setting(fleet, module, layout, per_example, train.x[:2])
    try_network(module, per_example, train.x, train.y, dataset.classes)
    own_test = _own_split(parts.test, present, train) or _own_part(dataset, dealt, present, test)
    held = _own_split(parts.validation, present, train) or own_test
    if method.local.judges and held is None:
        raise BadExperiment(
            "split keeps nothing back, and the method's clients try their models on examples of their own; set it to "
            "training, validation and test shares, as in split=[0.7,0,0.3]."
        )
    if experiment.engine == "loop":
        engine: Local = Loop(method, setting, train, shards, held)
    else:
        sliced = experiment.execution == "sliced"
        engine = Local(method, setting, train, shards, experiment.chunk, sliced=sliced, held=held)
    wire = Wire(engine, method, setting, Codec(**experiment.codec.model_dump()), experiment.exact_bytes)
    world = _world(experiment, present, device)
    return Simulation(
        method=method,
        setting=setting,
        network=network,
        engine=engine,
        wire=wire,
        world=None if fleet.devices is None else Simulated(wire, method, setting, world, wire.price),
        model=flatten(module, layout),
        test=test,
        own_test=own_test,
        clients=present,
        classes=dataset.classes,
        notes=[dealt.note, *method.notes(setting)],
    )


def _devices(experiment: Experiment, present: list[int], device: torch.device) -> Devices | None:
    """The devices of the clients that take part."""
    if experiment.fleet.name == "none":
        return None
    devices = make_devices(experiment.fleet.name, experiment.clients, experiment.seed, **experiment.fleet.settings)
    return devices.at(torch.tensor(present)).to(device)


def _world(experiment: Experiment, present: list[int], device: torch.device) -> World:
    """What is simulated beside the devices."""
    chosen, trace = experiment.world, None
    if chosen.trace is not None:
        trace = read_trace(Path(chosen.trace), experiment.clients, clients=torch.tensor(present)).to(device)
    return World(
        channel=experiment.build_channel(),
        pieces=None if chosen.pieces is None else Pieces(chosen.pieces, chosen.piece_loss),
        trace=trace,
        compute=chosen.compute,
        deadline=chosen.deadline,
        first=chosen.first,
        server_up=chosen.server_up,
        server_down=chosen.server_down,
    )


def _of_kind(name: str, value: object, kind: type) -> None:
    """Refuse a thing of the user's own that is something else."""
    if value is not None and not isinstance(value, kind):
        expected = "an nn.Module" if kind is nn.Module else f"a {kind.__name__}"
        raise BadExperiment(f"{name} is {value!r} ({type(value).__name__}); expected {expected}.")


def _network(experiment: Experiment, dataset: Dataset) -> nn.Module:
    """The named network with weights drawn from the seed alone, whatever was drawn before."""
    shape = tuple(dataset.x_train.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        if ".py:" in experiment.model.name:
            name = experiment.model.name
            module = make(f"model '{name}'", from_file("model", name), experiment.model.settings)
            if not isinstance(module, nn.Module):
                raise BadModel(f"model '{experiment.model.name}' gave {type(module).__name__}; expected an nn.Module.")
            return module
        return build(experiment.model.name, shape, dataset.classes, dataset.vocabulary, **experiment.model.settings)


def _own_split(kept: list[NDArray[np.int64]], present: list[int], train: Examples) -> tuple[Examples, Shards] | None:
    """What was kept of each client's data for its own test."""
    if not any(len(kept[client]) for client in present):
        return None
    return train, Shards([kept[client] for client in present], train.y.device)


def _own_part(dataset: Dataset, dealt: Partition, present: list[int], test: Examples) -> tuple[Examples, Shards] | None:
    """Each client's part of the test set, where the data say whose is whose and were dealt so."""
    if dataset.client_train is None or dataset.client_test is None:
        return None
    whose = [np.unique(dataset.client_train[dealt.clients[client]]) for client in present]
    if any(len(ids) != 1 for ids in whose) or not np.isin(dataset.client_test, np.concatenate(whose)).any():
        return None  # dealt otherwise, or those tested are strangers
    owned = [np.flatnonzero(dataset.client_test == ids[0]) for ids in whose]
    return test, Shards(owned, test.y.device)


def _device(name: str) -> torch.device:
    """`auto` takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadExperiment(f"device is '{name}'; expected auto, cpu, cuda or cuda:0 and so on.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadExperiment(f"device is '{name}', but no CUDA device is present; use cpu or auto.")
    if device.type not in ("cpu", "cuda"):
        raise BadExperiment(f"device is '{name}'; fedloom runs on cpu and cuda.")
    return device
