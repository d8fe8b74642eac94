"""A masked full model and the extracted small one are the same function with the same gradients."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from fedloom.layout import flatten, layout_of, load
from fedloom.neurons.trace import neuron_map
from neurons.equality import check
from neurons.nets import Bag, OffsetBag, cnn, cnns, mlp, mlps, random_keep, resnet

seeds = st.integers(0, 9999)


@settings(max_examples=30, deadline=None)
@given(net=mlps(), seed=seeds)
def test_any_perceptron(net: tuple[nn.Module, Tensor], seed: int) -> None:
    check(net[0], (net[1],), seed)


@settings(max_examples=40, deadline=None)
@given(net=cnns(), seed=seeds)
def test_any_convolutional_network(net: tuple[nn.Module, Tensor], seed: int) -> None:
    check(net[0], (net[1],), seed)


@pytest.mark.parametrize("seed", range(3))
def test_named_networks(seed: int) -> None:
    torch.manual_seed(seed)
    check(cnn(), (torch.randn(3, 1, 8, 8),), seed)
    check(mlp(6, 8, 5, 3), (torch.randn(4, 6),), seed)
    check(resnet((4, 6), 2), (torch.randn(2, 3, 8, 8),), seed)
    check(Bag(), (torch.randint(0, 20, (4, 7)),), seed)
    check(OffsetBag(), (torch.randint(0, 20, (9,)), torch.tensor([0, 4, 6])), seed)


def test_what_a_masked_neuron_emits_changes_no_output() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Sigmoid(), nn.Linear(3, 2))
    net_map, layout, x = neuron_map(net, torch.randn(4, 2)), layout_of(net), torch.randn(4, 2)
    masked = load(net, layout, flatten(net, layout) * net_map.expand(torch.tensor([True, False, True])))
    emitted = masked[:3](x)
    assert (emitted[:, 1] == 0.5).all()
    emitted[:, 1] = torch.nan  # whatever it is: the columns that read it are masked
    assert torch.equal(masked[3](emitted.nan_to_num(99)), masked[3](emitted.nan_to_num(-99)))


@settings(max_examples=20, deadline=None)
@given(net=cnns(), seed=seeds, rows=st.booleans())
def test_a_cohort_expands_like_its_members(net: tuple[nn.Module, Tensor], seed: int, rows: bool) -> None:
    map = neuron_map(*net)
    keep = random_keep(map, seed, cohort=4)
    mask = map.expand(keep, rows=rows)
    assert torch.equal(mask, torch.stack([map.expand(one, rows=rows) for one in keep]))
    assert torch.equal(map.bytes(keep, rows=rows, each=1), mask.sum(-1))
    assert torch.equal(map.flops(keep), torch.stack([map.flops(one) for one in keep]))
    assert torch.equal(map.expand(keep.view(2, 2, -1), rows=rows).flatten(0, 1), mask)
