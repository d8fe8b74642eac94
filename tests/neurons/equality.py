"""Checks that hold between a model, a keep and the model extracted with it."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedloom.layout import flatten, layout_of, load
from fedloom.neurons.extract import extract, scatter
from fedloom.neurons.slicing import slice_index
from fedloom.neurons.trace import neuron_map
from neurons.nets import random_keep


def shaken(model: nn.Module) -> nn.Module:
    """Convert to double precision, with statistics and norms away from their neutral start."""
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
    """Masked and sliced agree in output, gradients, statistics and costs, and `scatter` puts back what was cut."""
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
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        small.eval()(*inputs)
    assert int(map.flops(keep)) * len(inputs[-1]) == counter.get_total_flops()
