"""`device_model`, the network that a device of a run holds: the client's own numbers, cut to the part it can afford."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.types import State, listed
from fedloom.data.sources import as_dataset
from fedloom.engine.client import initial_state
from fedloom.errors import BadExperiment, BadModel
from fedloom.layout import copied, load
from fedloom.method import Method
from fedloom.neurons.extract import extract
from fedloom.runs.checkpoint.snapshot import ENGINE, Progress, server_of
from fedloom.runs.checkpoint.store import Found, tensors
from fedloom.runs.folder import experiment_in, newest_checkpoint, saved_model
from fedloom.runs.inputs import Inputs, clients_of, inputs_of

STRONGEST = "kept are the neurons with the largest weights"


class DeviceModel(NamedTuple):
    """A network as a device holds it."""

    network: nn.Module  # on the CPU, in evaluation mode
    examples: Tensor  # [n, ...] inputs of the test set, to try it with
    whole: int  # parameters of the whole network
    round: int  # after which the run had these numbers; 0: not known
    notes: tuple[str, ...]  # what was chosen, as sentences

    @property
    def parameters(self) -> int:
        """The number of its parameters."""
        return sum(value.numel() for value in self.network.parameters())


def device_model(
    run: str | Path,
    share: float | None = None,
    client: int | None = None,
    *,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Any = None,
) -> DeviceModel:
    """The network that a device holds after the last round that was saved of a run.

    Args:
        run: a run folder; its newest checkpoint counts, or `model.safetensors` where there is none.
        share: the fraction of every layer's neurons that the device can afford; if left out, what the client was sent
            last where clients hold a part of the network, else all.
        client: its number, as in `clients.parquet`. Where the method gives clients models of their own, it is this
            client's; where it chooses neurons per client, they are those that it would choose in the next round.
        method: the method that `run` was given in place of the experiment's, if any.
        model: the network that `run` was given, if any.
        data: the data that `run` was given, if any.

    Where the method says nothing about smaller networks (FedAvg, FedSPU), a share keeps the strongest neurons.
    """
    folder = Path(run)
    experiment = experiment_in(folder).model_copy(update={"engine": "local", "device": "cpu", "start": None})
    if share is not None and not 0 < share <= 1:
        raise BadExperiment(f"share is {share}; expected a fraction above 0 and at most 1, such as 0.5.")
    inputs = inputs_of(experiment, method, model, None if data is None else as_dataset(data))
    if client is not None and client not in inputs.clients:
        raise BadExperiment(f"client is {client}; '{folder}' has {_several(inputs.clients)}.")
    found = newest_checkpoint(folder)
    at, notes = _progress(folder, inputs, found), list[str]()
    row = None if client is None else inputs.clients.index(client)
    state = None if row is None or found is None else _state_of(inputs, found, at, row)
    if client is not None and state is None:
        notes.append(f"no state of client {client} is saved here (it never took part, or trains on a node of its own)")
    weights = _own(inputs, at, state)
    if weights is not None:
        notes.append(f"the numbers are client {client}'s own")
    weights = at.model if weights is None else weights
    keep, mask, why = _part(inputs, at, state, weights, share, row, experiment.seed)
    weights = weights if mask is None else torch.where(mask, weights, 0)
    network = load(copied(inputs.network), inputs.setting.layout, weights).eval()
    whole = sum(value.numel() for value in network.parameters())
    if keep is not None and not bool(keep.all()):
        network = extract(network, keep, inputs.setting.example, inputs.setting.neurons).eval()
    return DeviceModel(network.cpu(), inputs.test.x, whole, at.round, (*notes, *why))


def _progress(folder: Path, inputs: Inputs, found: Found | None) -> Progress:
    """The server as it was saved; without a checkpoint, its model alone and a memory as before the first round."""
    if found is not None:
        at = server_of(inputs, found)
        if at.model.shape != inputs.model.shape:
            raise BadModel(
                f"the model saved in '{folder}' has {len(at.model)} numbers and this network {len(inputs.model)}; pass "
                "the network that `run` was given as model."
            )
        return at
    model = saved_model(folder, inputs.setting.layout)
    return Progress(0, model, inputs.method.init(inputs.setting, inputs.model))


def _state_of(inputs: Inputs, found: Found, at: Progress, row: int) -> State | None:
    """The client's saved state; None if there is none."""
    clients = clients_of(inputs)
    clients.load({name: value for name, value in tensors(found, ENGINE).items() if name.startswith("states.")})
    if not clients.states.met([row]):
        return None
    return clients.states.get([row], initial_state(inputs.method, inputs.setting, at.model))


def _own(inputs: Inputs, at: Progress, state: State | None) -> Tensor | None:
    """The numbers of the client's own model [P]; None where the global model serves it."""
    rule, setting = inputs.method.local, inputs.setting
    if state is None or (rule.traits.cuts and not rule.traits.keeps_network):  # then its part is the global model's
        return None
    own = rule.personal(setting, at.model, state)
    return None if own is None else own[0]


def _part(
    inputs: Inputs, at: Progress, state: State | None, weights: Tensor, share: float | None, row: int | None, seed: int
) -> tuple[Tensor | None, Tensor | None, list[str]]:
    """The neurons that the device holds [K], or a mask of single numbers [P], each None for all; and the reasons."""
    method, setting = inputs.method, inputs.setting
    traits = method.local.traits
    last = None if state is None or "keep" not in state or not traits.cuts else state["keep"][0]
    if last is not None and (share is None or traits.keeps_network):
        return last, None, ["its neurons are those of the client's last round"]
    if share is None or share == 1:
        return None, None, []
    if traits.cuts and not traits.keeps_network:
        ids = listed([row or 0], weights.device)
        chance, wanted = Chance(seed, at.round + 1, weights.device), torch.tensor([share])
        portion, _ = method.mask(at.memory["mask"], setting, at.model, ids, wanted, chance)
        whose = f"client {inputs.clients[row or 0]}"
        if portion.keep is not None:
            said = f"its neurons are those that {type(method.mask).__name__} chooses for {whose} in the next round"
            return portion.keep[0], None, [said]
        if portion.mask is not None and not method.mask.of_neurons:
            kept = int(portion.mask[0].sum())
            said = f"single numbers are masked, not neurons: {kept:,} of {len(weights):,} for {whose}; the rest is 0"
            return None, portion.mask[0], [said]
    if not setting.neurons.size:
        raise BadModel(
            f"share is {share}, and no neurons of this network are understood, so it cannot be cut; leave the share "
            "out, or teach fedloom its layers with neuron_rule."
        )
    return setting.neurons.cut(setting.neurons.score(weights), share), None, [STRONGEST]


def _several(clients: list[int]) -> str:
    """The clients' numbers in words."""
    if len(clients) == clients[-1] - clients[0] + 1:
        return f"clients {clients[0]} to {clients[-1]}"
    return f"{len(clients)} clients, from {clients[0]} to {clients[-1]} with gaps: those without data are left out"
