"""A masked full model and the extracted small one are the same function with the same gradients."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedloom.layout import flatten, layout_of, load
from fedloom.neurons.extract import extract, scatter, slice_index
from fedloom.neurons.trace import neuron_map
from neurons.nets import Bag, OffsetBag, cnn, cnns, mlp, mlps, random_keep, resnet

seeds = st.integers(0, 9999)


def shaken(model: nn.Module) -> nn.Module:
    """In double precision, with statistics and norms away from their neutral start."""
    chance = torch.Generator().manual_seed(0)
    for name, tensor in model.double().state_dict().items():
        if "running" in name or (tensor.dim() == 1 and tensor.is_floating_point()):
            tensor.copy_(torch.rand(tensor.shape, generator=chance) + 0.5)
    return model


def gradients(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Output and flat gradients (zeros for buffers) of a loss that treats every output differently."""
    out = model(*inputs)
    weights = torch.linspace(1, 2, out.numel(), dtype=out.dtype).view_as(out)
    names = [name for name, _ in model.named_parameters()]
    grads = dict(zip(names, torch.autograd.grad((out.square() * weights).sum(), list(model.parameters()))))
    layout = layout_of(model)
    rest = {name: torch.zeros_like(b) for name, b in model.named_buffers() if b.is_floating_point()}
    return out.detach(), layout.join({**grads, **rest}, 0)


def check(model: nn.Module, inputs: tuple[Tensor, ...], seed: int) -> None:
    """Everything that must hold between a model, a keep and the model extracted with it."""
    model, inputs = shaken(model), tuple(x.double() if x.is_floating_point() else x for x in inputs)
    map, layout = neuron_map(model, inputs), layout_of(model)
    assert map.across == ()
    keep = random_keep(map, seed)
    mask, flat = map.expand(keep), flatten(model, layout)
    small = extract(model, keep, map=map)
    index, shapes = slice_index(map, keep)
    assert torch.equal(index.sort().values, mask.nonzero().flatten())
    assert layout_of(small).shapes == shapes
    assert torch.equal(flatten(small, layout_of(small)), flat[index])
    masked = load(deepcopy(model), layout, flat * mask)
    for training in (False, True):
        out, grad = gradients(masked.train(training), inputs)
        small_out, small_grad = gradients(small.train(training), inputs)
        torch.testing.assert_close(small_out, out, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(small_grad, grad[index], rtol=1e-6, atol=1e-6)
    # training mode has moved the running statistics of both, alike
    torch.testing.assert_close(flatten(small, layout_of(small)), flatten(masked, layout)[index], rtol=1e-6, atol=1e-6)

    back = flatten(scatter(load(deepcopy(model), layout, flat), small, keep, map=map), layout)
    assert torch.equal(back[index], flatten(small, layout_of(small)))
    assert torch.equal(back[~mask], flat[~mask])

    assert int(map.parameters(keep)) == sum(p.numel() for p in small.parameters())
    assert int(map.bytes(keep)) == 4 * int(mask.sum())
    with FlopCounterMode(display=False) as counter:
        small.eval()(*inputs)
    assert int(map.flops(keep)) * len(inputs[-1]) == counter.get_total_flops()


@settings(max_examples=40, deadline=None)
@given(net=mlps(), seed=seeds)
def test_any_perceptron(net: tuple[nn.Module, Tensor], seed: int) -> None:
    check(net[0], (net[1],), seed)


@settings(max_examples=60, deadline=None)
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
