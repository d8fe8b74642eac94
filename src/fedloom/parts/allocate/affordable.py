"""Allocate: the share that each device can afford, by its memory and within a deadline.

Shapes: N clients in the fleet, C in the cohort, K hidden neurons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.clock import BYTES, by_flops, download, processed, upload
from fedloom.core.devices import Devices, known_devices
from fedloom.core.part import Allocate
from fedloom.core.types import Setting, State
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.neurons.map import NeuronMap


def activations(neurons: NeuronMap, keep: Tensor) -> Tensor:
    """Outputs of all linear and convolution layers of a sub-model for one example [...], from `keep` [..., K]."""
    kept = neurons.padded(keep)
    total = torch.zeros(kept.shape[:-1], dtype=torch.int64, device=kept.device)
    for tensor in neurons.tensors:
        if len(tensor.shape) > 1 and tensor.output is not None and (which := tensor.along[tensor.output]) is not None:
            total = total + tensor.positions * kept[..., neurons.lists[which]].sum(-1)
    return total


def training_bytes(neurons: NeuronMap, keep: Tensor, batch: Tensor | int) -> Tensor:
    """Bytes to train a sub-model [...]: weights, gradients, and a batch's activations with their gradients."""
    return 2 * neurons.bytes(keep) + 2 * BYTES * batch * activations(neurons, keep)


def affordable(setting: Setting, devices: Devices, shares: Tensor, work: Work, deadline: float | None = None) -> Tensor:
    """The largest of the rising `shares` (of neurons) that each client can afford [N]; the smallest if it affords none.

    A share is affordable if the leading part of every group of neurons fits into memory, and if downloading,
    training (by operations) and uploading it take at most the deadline.
    """
    neurons, examples = setting.neurons, setting.fleet.examples
    leading = -torch.arange(neurons.size, dtype=torch.float64, device=examples.device)
    keep = neurons.cut(leading.expand(len(shares), -1), shares)  # [shares, K]
    batch = torch.where(examples < work.batch, examples, work.batch) if work.batch else examples
    fits = training_bytes(neurons, keep[:, None], batch) <= devices.memory  # [shares, N]
    if deadline is not None:
        size = neurons.bytes(keep)[:, None]
        compute = by_flops(devices, processed(work, examples).double(), neurons.flops(keep)[:, None].double())
        fits = fits & (compute + download(size, devices).seconds + upload(size, devices).seconds <= deadline)
    return shares[(fits.sum(0) - 1).clamp(min=0)]  # costs rise with the share


@dataclass(frozen=True)
class Affordable(Allocate):
    """Each client's share by its device: the largest of `shares` that its memory and a deadline in seconds allow.

    Unit: neurons. A client that cannot afford the smallest share gets it nevertheless.
    """

    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    deadline: float | None = None
    work: Work = Work()

    def __post_init__(self) -> None:
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise BadExperiment(f"shares is {self.shares}; expected at least one, each above 0 and at most 1.")
        if list(self.shares) != sorted(self.shares):
            raise BadExperiment(f"shares is {self.shares}; expected them in rising order.")
        if self.deadline is not None and not self.deadline > 0:
            raise BadExperiment(f"deadline is {self.deadline} seconds; it must be above 0, or none.")

    @property
    def needs_devices(self) -> bool:
        """Shares are what devices can afford."""
        return True

    def for_work(self, work: Work) -> Self:
        """Compute seconds and the size of a batch depend on the clients' work."""
        return replace(self, work=work)

    def init(self, setting: Setting, model: Tensor) -> State:
        """The shares of the whole fleet [N], by the nominal rates of the devices."""
        devices = known_devices(setting.fleet.devices, "Affordable")
        shares = torch.tensor(self.shares, dtype=torch.float64).to(model.device, non_blocking=True)
        return {"share": affordable(setting, devices, shares, self.work, self.deadline).float()}

    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """Look up the shares of the cohort [C]."""
        return memory["share"][ids], memory
