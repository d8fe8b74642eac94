"""Affordable: memory and seconds by hand, and shares in a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.methods.fjord import fjord
from fedloom.parts.allocate.affordable import Affordable, activations, affordable, training_bytes
from world.made import FLEET, equipped, made, simulated, with_devices
from worlds import SIZES, play, small, world

SHARES = (0.25, 0.5, 0.75, 1.0)


def leading(network: str, share: float) -> Tensor:
    """A keep of the leading neurons."""
    neurons = world(network).setting.neurons
    return neurons.cut(-torch.arange(neurons.size).double(), share)


def test_memory_of_a_dense_network_by_hand():
    neurons = world("mlp").setting.neurons
    keep = leading("mlp", 0.5)
    assert int(activations(neurons, keep)) == 4 + 3
    numbers = 36 * 4 + 4 + 4 * 3 + 3
    assert int(training_bytes(neurons, keep, 10)) == 4 * (2 * numbers + 2 * 10 * (4 + 3))


def test_activations_of_a_convolution_count_every_position():
    neurons = world("cnn").setting.neurons
    assert int(activations(neurons, leading("cnn", 1.0))) == 3 * 36 + 4 * 4 + 3


def costs(share: float, size: int, work: Work) -> tuple[int, float, float]:
    """Bytes in memory, bytes of the model and operations of a round, of a dense network at a share."""
    width = int(8 * share)
    numbers = width * 36 + width + width * 3 + 3
    memory = 4 * (2 * numbers + 2 * min(size, work.batch) * (width + 3))
    return memory, 4 * numbers, 3 * 2 * width * 39 * size * work.epochs


@pytest.mark.parametrize("deadline", [None, 2.0, 6.0])
def test_everyone_gets_the_largest_share_that_fits(deadline):
    work = Work(epochs=2, batch=6)
    memory = [900.0 + 300 * client for client in range(FLEET)]
    devices = made(memory=memory, flops=2e4, latency=0.1)
    setting = equipped(devices).setting
    found = affordable(setting, devices, torch.tensor(SHARES, dtype=torch.float64), work, deadline)
    for client, size in enumerate(SIZES):
        fitting = []
        for share in SHARES:
            room, sent, operations = costs(share, size, work)
            rates = 1 / float(devices.up[client]) + 1 / float(devices.down[client])
            seconds = 0.2 + 8 * sent * rates + operations / 2e4
            if room <= memory[client] and (deadline is None or seconds <= deadline):
                fitting.append(share)
        assert float(found[client]) == max(fitting, default=SHARES[0])
    assert len(set(found.tolist())) > 1


def test_who_has_an_affordable_share_is_in_time():
    here = equipped(made(up=[1e3, 2e3, 4e3] * 4, flops=1e6))
    work = Work(epochs=1, batch=6)
    method = small(fjord(), allocate=Affordable(SHARES, 5.0, work), work=work)
    engine = simulated(here, method, compute="flops", deadline=5.0)
    run = play(here, method, engine)
    assert all(reply.arrived.all() for reply in run.replies)
    assert run.tasks[0].share.unique().numel() > 1
    whole = replace(method, allocate=Affordable((1.0,), 5.0, work))
    late = play(here, whole, simulated(here, whole, compute="flops", deadline=5.0)).replies
    assert not all(reply.arrived.all() for reply in late)


def test_refusals():
    for settings in ({"shares": ()}, {"shares": (0.5, 0.2)}, {"shares": (0.0, 1.0)}, {"deadline": 0.0}):
        with pytest.raises(BadExperiment):
            Affordable(**settings)
    here = world("mlp")
    with pytest.raises(BadExperiment, match="Affordable needs a fleet with devices"):
        Affordable().init(with_devices(here.setting, None), here.model)
