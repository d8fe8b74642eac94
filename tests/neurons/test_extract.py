"""Small models stand on their own, come back into the big one, and slice as flat vectors."""

import io
import time

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fedloom.errors import BadModel
from fedloom.layout import flatten, layout_of
from fedloom.neurons.cut import Cut
from fedloom.neurons.extract import extract, scatter
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.slicing import slice_index
from fedloom.neurons.trace import neuron_map
from neurons.nets import Apply, cnn, random_keep, resnet

IMAGES = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return cnn().eval()


@pytest.fixture
def net_map(net: nn.Module) -> NeuronMap:
    return neuron_map(net, IMAGES)


def test_it_prints_its_real_sizes(net: nn.Module) -> None:
    printed = repr(extract(net, {"0": [0, 2], "4": [1, 3, 5], "9": torch.arange(8) < 4}, example=IMAGES))
    for part in (
        "Conv2d(1, 2,",
        "BatchNorm2d(2,",
        "Conv2d(2, 3,",
        "in_features=12, out_features=4",
        "in_features=4, out",
    ):
        assert part in printed


def test_it_trains_saves_and_exports_alone(net: nn.Module, net_map: NeuronMap) -> None:
    small = extract(net, net_map.cut(torch.rand(net_map.size), 0.5), map=net_map).train()
    optimiser = torch.optim.Adam(small.parameters(), 0.05)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(small(IMAGES), torch.tensor([0, 1, 2, 0]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    sizes = []
    for model in (net, small):
        torch.save(model, file := io.BytesIO())
        sizes.append(len(file.getvalue()))
    assert sizes[1] < sizes[0]
    program = torch.export.export(small.eval(), (IMAGES,))
    torch.testing.assert_close(program.module()(IMAGES), small(IMAGES))


def test_it_shares_nothing_with_the_model_it_came_from(net: nn.Module, net_map: NeuronMap) -> None:
    net[0].weight.requires_grad_(False)
    before = flatten(net, layout_of(net))
    whole = extract(net, {}, example=IMAGES)  # freezing changes the vector
    assert [p.requires_grad for p in whole.parameters()] == [p.requires_grad for p in net.parameters()]
    assert torch.equal(flatten(whole, layout_of(whole)), before)
    assert not whole.training
    for tensor in (*whole.parameters(), *whole.buffers()):
        tensor.detach().zero_()
    assert torch.equal(flatten(net, layout_of(net)), before)


def test_scatter_writes_what_was_kept_and_leaves_the_rest(net: nn.Module, net_map: NeuronMap) -> None:
    keep = random_keep(net_map, 3)
    small, mask, before = extract(net, keep, map=net_map), net_map.expand(keep), flatten(net, layout_of(net))
    assert torch.equal(flatten(scatter(net, small, keep, map=net_map), layout_of(net)), before)
    for tensor in (*small.parameters(), *small.buffers()):
        tensor.detach().fill_(7)
    after = flatten(scatter(net, small, keep, example=IMAGES), layout_of(net))
    assert torch.equal(after, torch.where(mask, 7.0, before))
    assert torch.equal(flatten(net, layout_of(net)), before)


def test_a_cohort_of_equal_widths_slices_as_one(net: nn.Module, net_map: NeuronMap) -> None:
    keep = net_map.cut(torch.rand(5, net_map.size), 0.5)
    flat = torch.randn(5, net_map.total)
    index, shapes = slice_index(net_map, keep)
    for client in range(5):
        alone, alone_shapes = slice_index(net_map, keep[client])
        assert torch.equal(index[client], alone)
        assert alone_shapes == shapes
    small = flat.gather(1, index)
    assert torch.equal(flat.scatter(1, index, small), flat)
    # the first one's module runs everybody's tensors
    template = extract(net, keep[0], map=net_map)
    layout = layout_of(template)
    assert layout.shapes == shapes
    outputs = vmap(lambda values: functional_call(template, layout.split(values), (IMAGES,)))(small.abs())
    masked = flat.abs() * net_map.expand(keep)
    for client in range(5):
        expected = functional_call(net, layout_of(net).split(masked[client]), (IMAGES,))
        torch.testing.assert_close(outputs[client], expected)


def test_a_cohort_of_unequal_widths_is_refused(net_map: NeuronMap) -> None:
    keep = net_map.cut(torch.rand(2, net_map.size), torch.tensor([0.5, 1.0]))
    with pytest.raises(BadModel, match=r"members of a cohort keep 2 to 4 entries along an axis of '0.weight'"):
        slice_index(net_map, keep)


def test_a_resnet18_is_mapped_and_halved_quickly() -> None:
    net = resnet((64, 128, 256, 512), 2)
    start = time.perf_counter()
    net_map = neuron_map(net, torch.randn(1, 3, 32, 32))
    assert time.perf_counter() - start < 15  # 0.3 s here
    keep = net_map.cut(torch.rand(net_map.size), 0.5)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        small = extract(net, keep, map=net_map)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.25  # 0.02 s here
    assert sum(p.numel() for p in small.parameters()) == int(net_map.parameters(keep)) < 11_173_962 / 3.9


def test_literal_sizes_are_told_what_was_kept() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), Apply(lambda x: x.view(-1, 144)), nn.Linear(144, 3))
    small = extract(net, {"0": [0, 3]}, example=IMAGES)
    assert (type(small), small(IMAGES).shape) == (Cut, (4, 3))
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Unflatten(1, (4, 36)), nn.Flatten(), nn.Linear(144, 3))
    assert extract(net, {"0": [0]}, example=IMAGES)(IMAGES).shape == (4, 3)


def test_bad_input_is_refused(net: nn.Module, net_map: NeuronMap) -> None:
    with pytest.raises(BadModel, match="keep leaves no neuron of group '4'"):
        extract(net, {"4": []}, map=net_map)
    with pytest.raises(BadModel, match="over 18 neurons"):
        extract(net, torch.ones(5, dtype=torch.bool), map=net_map)
    with pytest.raises(BadModel, match="keep must be of one model, a vector"):
        extract(net, torch.ones(2, 18, dtype=torch.bool), map=net_map)
    with pytest.raises(BadModel, match="need an example input of the model, or its map"):
        extract(net, {})
    with pytest.raises(BadModel, match="map must be that of the Sequential"):
        extract(net[:4], {}, map=net_map)
    small = extract(net, {"9": [0, 1]}, map=net_map)
    with pytest.raises(BadModel, match=r"'9.weight' of the small model must have shape \(3, 24\) here; got \(2, 24\)"):
        scatter(net, small, {"9": [0, 1, 2]}, map=net_map)
    with pytest.raises(BadModel, match=r"'1.weight' of the small model must have shape \(4,\) here; got None"):
        scatter(net, net[:1], {}, map=net_map)
