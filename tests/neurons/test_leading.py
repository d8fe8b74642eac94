"""Fleets of networks of several sizes: FedDD's two families, coverage, and what is refused."""

from __future__ import annotations

import pytest
import torch

from fedloom.errors import BadExperiment
from fedloom.methods.feddd import FAMILIES
from fedloom.models import build
from fedloom.models.table import example
from fedloom.neurons.leading import LeadingNeurons
from fedloom.neurons.trace import neuron_map
from worlds import world

COUNTS = {
    "het-a": [3_973_194, 2_203_466, 2_191_206, 2_153_446, 2_153_446],
    "het-b": [3_973_194, 2_767_690, 1_578_826, 1_458_090, 609_962],
}
CPU = torch.device("cpu")


@pytest.mark.parametrize("family", COUNTS)
def test_the_papers_families(family: str) -> None:
    shape = (3, 32, 32)
    neurons = neuron_map(build(f"{family}-1", shape, 10), example(shape))
    keep = FAMILIES[family].of(neurons, torch.arange(5, 15))
    assert neurons.parameters(keep).tolist() == COUNTS[family] * 2
    for number, count in enumerate(COUNTS[family], 1):
        assert sum(p.numel() for p in build(f"{family}-{number}", shape, 10).parameters()) == count
    covered = FAMILIES[family].coverage(neurons, 100, CPU)
    assert covered.min() == 0.2  # of 512 channels
    assert covered[:64].tolist() == pytest.approx([1.0] * 32 + [0.6] * 32)


def test_shares_are_rounded_up() -> None:
    neurons = world("cnn").setting.neurons  # 3 and 4 channels
    keep = LeadingNeurons((0.34, 1.0)).of(neurons, torch.tensor([4, 7]))
    assert keep.tolist() == [[True, True, False, True, True, False, False], [True] * 7]
    covered = LeadingNeurons((0.34, 1.0)).coverage(neurons, 3, CPU)
    assert covered.tolist() == pytest.approx([1, 1, 1 / 3, 1, 1, 1 / 3, 1 / 3])


@pytest.mark.parametrize("tiers", [(), (0.0,), (1.5,), (0.5, float("nan"))])
def test_refuses_tiers(tiers: tuple[float, ...]) -> None:
    with pytest.raises(BadExperiment, match="tier"):
        LeadingNeurons(tiers)


@pytest.mark.parametrize("tier", [(3,), (3, 5), (0, 4), (3, 4, 1)])
def test_refuses_widths_of_another_network(tier: tuple[int, ...]) -> None:
    with pytest.raises(BadExperiment, match=r"hidden layers are \(3, 4\)"):
        LeadingNeurons((tier,)).of(world("cnn").setting.neurons, torch.arange(2))
