"""Seconds and joules of a client's round: download, compute, upload."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.core.devices import Devices
from fedloom.core.rule import LocalRule
from fedloom.core.transport import Transport
from fedloom.core.types import Setting
from fedloom.core.work import Work

Compute = Literal["cycles", "flops"]
BYTES = 4  # of a float32
PASSES = 3  # a training step is one pass forward and about two back


class Seconds(NamedTuple):
    """Seconds that each client takes [C each]."""

    down: Tensor
    compute: Tensor
    up: Tensor

    @property
    def total(self) -> Tensor:
        """The sum: one after the other."""
        return self.down + self.compute + self.up

    def joules(self, devices: Devices) -> Tensor:
        """The energy of training and of sending and receiving [C]."""
        return self.compute * devices.compute_watts + (self.down + self.up) * devices.radio_watts


def processed(work: Work, sizes: Tensor) -> Tensor:
    """The number of examples that clients of these `sizes` train on in a round [C], with repeats."""
    if work.steps is None:
        return sizes * work.epochs * work.repeat
    batch = work.batch if work.batch else sizes
    passes = (sizes + batch - 1) // batch  # steps in one epoch
    once = work.steps // passes * sizes + work.steps % passes * batch  # a short batch is the last of its epoch
    return once * work.repeat


class Transfer(NamedTuple):
    """Messages on their way [C each]."""

    delay: Tensor  # seconds in which nothing is sent
    bits: Tensor
    rate: Tensor  # bit/s

    @property
    def seconds(self) -> Tensor:
        """How long each takes."""
        return self.delay + self.bits / self.rate


def download(size: Tensor, devices: Devices) -> Transfer:
    """Tasks of `size` bytes, from when they are ready; all that an exchange waits for besides comes first."""
    added = devices.transport
    if added is None:
        return Transfer(devices.latency, 8 * size, devices.down)
    sent = _transfer(added, size, added.requests_down, devices.down, devices.latency)
    return sent._replace(delay=sent.delay + added.wait(devices.latency))


def upload(size: Tensor, devices: Devices) -> Transfer:
    """Replies of `size` bytes."""
    added = devices.transport
    if added is None:
        return Transfer(devices.latency, 8 * size, devices.up)
    return _transfer(added, size, added.requests_up, devices.up, devices.latency)


def _transfer(added: Transport, size: Tensor, requests: Tensor, rate: Tensor, latency: Tensor) -> Transfer:
    """Messages and what a transport adds to them."""
    carried, reached = added.carried(size, requests), added.rate(rate, latency)
    return Transfer(latency + added.delay(size, carried, reached, latency), 8 * carried, reached)


def by_cycles(devices: Devices, examples: Tensor) -> Tensor:
    """Compute seconds by FedDD's formula `c * b / f` for any network (b: examples processed in the round)."""
    return devices.cycles_per_example * examples / devices.cycles


def by_flops(devices: Devices, examples: Tensor, forward: Tensor) -> Tensor:
    """Compute seconds from the floating-point operations of one example's forward pass."""
    return PASSES * forward * examples / devices.flops


def forward_flops(setting: Setting, rule: LocalRule, keep: Tensor | None, count: int) -> Tensor:
    """Floating-point operations of one example's forward pass on each of `count` clients [C].

    They are of the sub-model if the rule cuts the network, else of the whole network: masked neurons run nevertheless.
    """
    neurons = setting.neurons
    if keep is None or not rule.traits.cuts:
        keep = torch.ones(1, neurons.size, dtype=torch.bool, device=setting.fleet.examples.device)
    return neurons.flops(keep).double().expand(count)


def full_seconds(
    setting: Setting, devices: Devices, work: Work, compute: Compute = "cycles", part: Tensor | None = None
) -> Seconds:
    """Seconds of every client of the fleet for the whole model [N each], uncompressed and without extras.

    `part` [N]: the part of the model's numbers that each client has; its cycles are those of the whole model.
    """
    examples = processed(work, setting.fleet.examples).double()
    size = torch.full_like(setting.fleet.examples, BYTES * setting.layout.total)
    size = size if part is None else (size * part).round().to(size.dtype)
    if compute == "flops":
        inner = by_flops(devices, examples, forward_flops(setting, LocalRule(), None, devices.size))
    else:
        inner = by_cycles(devices, examples)
    return Seconds(download(size, devices).seconds, inner, upload(size, devices).seconds)
