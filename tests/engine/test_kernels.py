"""Our kernels against torch's layers, client by client: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from fedloom.engine.cuda import convolution
from fedloom.engine.cuda.convolution_kernels import convolve, input_gradient, weight_gradient
from fedloom.engine.cuda.pool_norm_kernels import GroupNorm, Pool
from fedloom.engine.cuda.sgd_momentum import sgd_momentum
from fedloom.engine.gradient.products import ClientConv, Step

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# clients, batch, inputs, outputs, size, kernel, stride, padding, dilation
SHAPES = [
    (3, 2, 3, 5, 8, 3, 1, 1, 1),
    (2, 3, 4, 20, 9, 3, 2, 1, 1),
    (2, 2, 1, 10, 10, 5, 1, 0, 1),
    (2, 2, 5, 70, 7, 1, 2, 0, 1),
    (2, 2, 16, 4, 11, 3, 2, 2, 2),
]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("last", [True, False], ids=["channels-last", "channels-first"])
def test_convolutions(shape: tuple[int, ...], last: bool) -> None:
    torch.manual_seed(0)
    clients, batch, inputs, outputs, size, kernel, stride, padding, dilation = shape
    x, w, b = draw(clients * batch, inputs, size, size + 1), draw(clients, outputs, inputs, kernel, kernel), None
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    b, how = draw(clients, outputs), ((stride,) * 2, (padding,) * 2, (dilation,) * 2)
    own_x, own_w = x.double().requires_grad_(), w.double().requires_grad_()
    parts = zip(own_x.chunk(clients), own_w, b.double())
    wanted = torch.cat([F.conv2d(part, own, bias, stride, padding, dilation) for part, own, bias in parts])
    g = torch.randn_like(wanted)
    gx, gw = torch.autograd.grad(wanted, (own_x, own_w), g)
    torch.testing.assert_close(convolve(x, w, b, how, "float32"), wanted.float(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(input_gradient(g.float(), w, x, how, "float32"), gx.float(), rtol=1e-5, atol=1e-4)
    found, bias = weight_gradient(g.float(), x, w, how, "float32")
    torch.testing.assert_close(found, gw.float(), rtol=1e-5, atol=1e-4)
    sums = g.unflatten(0, (clients, -1)).sum((1, 3, 4)).float()
    torch.testing.assert_close(bias, sums, rtol=1e-5, atol=1e-4)


def test_convolutions_by_views_of_all_of_a_clients_numbers() -> None:
    """As rules see them that correct gradients: weights and biases are no tensors of their own."""
    torch.manual_seed(0)
    clients, outputs, inputs, kernel = 3, 4, 2, 3
    x, how = draw(clients * 2, inputs, 6, 6), ((1, 1), (2, 2), (2, 2))
    flat = draw(clients, 5 + outputs * (inputs * kernel**2 + 1))
    w = flat[:, 5:-outputs].unflatten(1, (outputs, inputs, kernel, kernel))
    b = flat[:, -outputs:]
    found = convolve(x, w, b, how, "float32")
    torch.testing.assert_close(found, convolve(x, w.contiguous(), b.contiguous(), how, "float32"), rtol=0, atol=0)
    wanted = torch.cat([F.conv2d(part, own, bias, *how) for part, own, bias in zip(x.chunk(clients), w, b)])
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    g = torch.randn_like(found)
    ours, theirs = (input_gradient(g, weight, x, how, "float32") for weight in (w, w.contiguous()))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    for one, other in zip(
        weight_gradient(g, x, w, how, "float32"), weight_gradient(g, x, w.contiguous(), how, "float32")
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ends", [(True, True), (True, False), (False, True)], ids=["both", "inputs", "outputs"])
def test_convolutions_of_the_first_channels(shape: tuple[int, ...], ends: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    clients, batch, inputs, outputs, size, kernel, *rest = shape
    how = tuple((number,) * 2 for number in rest)
    counts = [torch.randint(1, n + 1, (clients,), dtype=torch.int32, device=DEVICE) for n in (inputs, outputs)]
    live = [
        torch.arange(n, device=DEVICE) < (own[:, None] if cut else n)
        for n, own, cut in zip((inputs, outputs), counts, ends)
    ]
    kept = tuple(own if cut else None for own, cut in zip(counts, ends))
    images = live[0].expand(clients, inputs).repeat_interleave(batch, 0)[:, :, None, None]
    x = draw(clients * batch, inputs, size, size) * images
    both = live[1].expand(clients, outputs)[:, :, None] & live[0].expand(clients, inputs)[:, None, :]
    w = draw(clients, outputs, inputs, kernel, kernel) * both[..., None, None]
    b = draw(clients, outputs) * live[1]
    y = convolve(x, w, b, how, "float32")
    g = torch.randn_like(y) * live[1].expand(clients, outputs).repeat_interleave(batch, 0)[:, :, None, None]
    for found, wanted in (
        (convolve(x, w, b, how, "float32", kept), y),
        (input_gradient(g, w, x, how, "float32", kept), input_gradient(g, w, x, how, "float32")),
        *zip(weight_gradient(g, x, w, how, "float32", kept), weight_gradient(g, x, w, how, "float32")),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["grouped", "triton"])
@pytest.mark.parametrize("fused", [False, True])
def test_either_implementation_of_a_measured_convolution(
    name: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(convolution, "fastest", lambda kind, *facts: convolution.implementations()[name][kind])
    x, w, b = draw(6, 3, 8, 7), draw(2, 5, 3, 3, 3), draw(2, 5)
    how = ((2, 2), (1, 1), (1, 1), 1)
    step = Step(torch.tensor(0.1, dtype=torch.float64, device=DEVICE), 0.9) if fused else None
    found = []
    for conv, options in ((convolution.MeasuredConv, ("float32", step)), (ClientConv, (step, None))):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        y = conv.apply(*leaves, how, *options)
        grads = torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)
        assert [grad is None for grad in grads] == [False, fused, fused]  # fused: weights have moved instead
        found.append([y, *(leaf.detach() if grad is None else grad for leaf, grad in zip(leaves, grads))])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("shape", "window"), [((4, 3, 8, 9), 2), ((2, 5, 7, 7), 3)])
def test_pooling_and_its_ties(shape: tuple[int, ...], window: int) -> None:
    torch.manual_seed(0)
    x = draw(*shape).round().contiguous(memory_format=torch.channels_last).requires_grad_()  # rounding makes ties
    ours, wanted = Pool.apply(x, (window, window)), F.max_pool2d(x, window)
    g = torch.randn_like(wanted)
    assert torch.equal(ours, wanted)
    assert torch.equal(torch.autograd.grad(ours, x, g)[0], torch.autograd.grad(wanted, x, g)[0])


@pytest.mark.parametrize(("clients", "batch", "channels", "groups"), [(2, 3, 6, 2), (3, 2, 16, 2), (2, 2, 12, 4)])
def test_group_norm(clients: int, batch: int, channels: int, groups: int) -> None:
    torch.manual_seed(0)
    x = draw(clients * batch, channels, 5, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    w, b = draw(clients, channels).requires_grad_(), draw(clients, channels).requires_grad_()
    ours = GroupNorm.apply(x, w, b, groups, 1e-5)
    normed = F.group_norm(x, groups).unflatten(0, (clients, batch))
    wanted = (normed * w[:, None, :, None, None] + b[:, None, :, None, None]).flatten(0, 1)
    g = torch.randn_like(wanted)
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(torch.autograd.grad(ours, (x, w, b), g), torch.autograd.grad(wanted, (x, w, b), g)):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("works", [None, (True, False, True)])
@pytest.mark.parametrize("masked", [False, True])
def test_momentum(works: tuple[bool, ...] | None, masked: bool) -> None:
    torch.manual_seed(0)
    w, g, v = draw(3, 50, 7), draw(3, 50, 7), draw(3, 50, 7)
    rows = None if works is None else torch.tensor(works, device=DEVICE)
    movable = draw(3, 50, 7) > 0 if masked else None
    rate = torch.tensor(0.1, dtype=torch.float64, device=DEVICE)
    allowed = torch.ones_like(w, dtype=torch.bool) if movable is None else movable
    allowed = allowed if rows is None else allowed & rows[:, None, None]
    speed = 0.9 * v + g + 0.01 * w
    wanted = torch.where(allowed, w - 0.1 * speed, w)
    sgd_momentum(w, g, v, rows, movable, rate, 0.9, 0.01)
    torch.testing.assert_close(w, wanted)
    torch.testing.assert_close(v[allowed], speed[allowed])
