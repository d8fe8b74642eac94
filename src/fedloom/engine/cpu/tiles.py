"""A network's first convolution and the max-pooling of 2 x 2 after it, as one step on CPUs.

The four numbers of every window are computed as four images that lie one after another: a kernel that is larger by one
holds the filter at four places and moves by two. Comparing whole images takes a fraction of pooling's time, and what
pooling drops is not kept: only the maxima and their places are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from fedloom.engine.gradient.products import Part, Step, settled, taken
from fedloom.engine.stages import halves, plain_padding

NARROW = 4  # channels up to which gradients, too, are taken of the four images: torch fills up to eight channels
SPARING = 8  # channels up to which the gradient of the weight is taken in two halves: a small model takes less memory
POOL = ([2, 2], [2, 2], [0, 0], [1, 1], False)


class ConvPool(torch.autograd.Function):
    """Inputs [C * B, i, ...] without gradients, weights [C, o, i, ...] (of a lone client [o, i, ...]) and biases."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, padding: tuple[int, int]) -> Tensor:
        """The largest of every window of the convolved images."""
        out, places = _largest(x, w, b, padding)
        ctx.save_for_backward(x, w, places)
        ctx.padding, ctx.biased = padding, b is not None
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of weight and bias."""
        x, w, places = ctx.saved_tensors
        gw, gb = _back(g, x, w if w.dim() == 5 else w[None], places, ctx.padding)
        return None, gw.view_as(w), gb.view(w.shape[:-3]) if ctx.biased else None, None


class TrainedTiles(torch.autograd.Function):
    """The trained channels, taken out of all that were pooled; backwards, the layer's step (see `lanes.py`)."""

    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        places: Tensor,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        padding: tuple[int, int],
        step: Step | None,
        part: Part,
    ) -> Tensor:
        """Pooled outputs and places [C * B, o, ...] of inputs [C * B, i, ...]."""
        assert part.rows is not None
        ctx.save_for_backward(x, w, b, taken(places, part.rows))
        ctx.padding, ctx.step, ctx.part = padding, step, part
        return taken(out, part.rows)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of weight and bias, or the step itself; none of the inputs, below which nothing is trained."""
        x, w, b, places = ctx.saved_tensors
        gw, gb = _back(g, x, w[:, : g.shape[1]], places, ctx.padding)
        told = settled(gw, None if b is None else gb, w, b, ctx.step, ctx.part)
        return None, None, None, *told, None, None, None


def _largest(x: Tensor, w: Tensor, b: Tensor | None, padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Of every window the largest number, and its place (uint8)."""
    each = w if w.dim() == 5 else w[None]
    shape = (len(x), each.shape[1], *(size // 2 for size in _sizes(x, each, padding)))
    out, places = x.new_empty(shape), torch.empty(shape, dtype=torch.uint8)
    kernels = [_fourfold(one) for one in each]
    for client, here in _pieces(len(each), len(x)):
        four = torch.conv2d(x[here], kernels[client], None, 2, padding).unflatten(1, (4, -1))
        first, second, third, fourth = four.unbind(1)
        right, beside = (torch.gt(*pair).view(torch.uint8) for pair in ((second, first), (fourth, third)))
        top, bottom = torch.maximum(first, second, out=first), torch.maximum(third, fourth, out=third)
        torch.maximum(top, bottom, out=out[here])
        down = torch.gt(bottom, top).view(torch.uint8)
        right ^= down & (right ^ beside)  # the lower one's where that is larger; of equal ones the first counts
        torch.add(right, down, alpha=2, out=places[here])
    if b is not None:
        out.unflatten(0, (len(each), -1)).add_(b.view(len(each), 1, -1, 1, 1))
    return out, places


def _back(g: Tensor, x: Tensor, like: Tensor, places: Tensor, padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Gradients of weights like these [C, o, i, ...] and of their biases [C, o]."""
    gws = []
    for client, here in _pieces(len(like), len(x)):
        way = _back_narrow if like.shape[1] <= NARROW else _back_wide
        gws.append(way(g[here], x[here], like[client], places[here], padding))
    gb = g.unflatten(0, (len(like), -1)).sum((1, 3, 4))
    return gws[0][None] if len(gws) == 1 else torch.stack(gws), gb


def _back_wide(g: Tensor, x: Tensor, like: Tensor, places: Tensor, padding: tuple[int, int]) -> Tensor:
    """One client's gradient of the weight, from that of the images that were pooled."""
    sizes = _sizes(x, like, padding)
    whole = g.new_empty(1).expand(*g.shape[:2], *sizes)  # only its shape is read
    g = torch.ops.aten.max_pool2d_with_indices_backward(g.contiguous(), whole, *POOL, _spread(places, *sizes))
    return _weight_back(g, x, like, 1, padding)


def _back_narrow(g: Tensor, x: Tensor, like: Tensor, places: Tensor, padding: tuple[int, int]) -> Tensor:
    """The same from gradients of the four images."""
    four = g.new_empty(len(g), 2, 2, *g.shape[1:])
    left, right = four.unbind(2)  # all of a row's gradient goes to its left image first
    left[:, 0] = g  # in plain order, which may not be its own
    torch.mul(left[:, 0], places > 1, out=left[:, 1])
    left[:, 0] -= left[:, 1]
    torch.mul(left, (places & 1).unsqueeze(1), out=right)
    left -= right
    kernel = like.new_empty(
        4 * len(like), like.shape[1], like.shape[2] + 1, like.shape[3] + 1
    )  # only its shape is read
    gw = _weight_back(four.flatten(1, 3), x, kernel, 2, padding)
    return _corners(gw.unflatten(0, (2, 2, -1)), like.shape).sum((0, 1))


def _weight_back(g: Tensor, x: Tensor, like: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
    """A convolution's gradient of the weight."""
    some = -(-len(x) // 4) * 2 if g.shape[1] // stride**2 <= SPARING else len(x)  # an even number for two threads
    how = (None, [stride, stride], padding, [1, 1], False, [0, 0], 1, (False, True, False))
    pairs = zip(g.split(max(1, some)), x.split(max(1, some)))
    found: list[Tensor] = [torch.ops.aten.convolution_backward(*pair, like, *how)[1] for pair in pairs]
    return found[0] if len(found) == 1 else torch.stack(found).sum(0)


def _sizes(x: Tensor, w: Tensor, padding: tuple[int, int]) -> list[int]:
    """Height and width of the convolved images."""
    return [size + 2 * pad - kernel + 1 for size, pad, kernel in zip(x.shape[2:], padding, w.shape[-2:])]


def _spread(places: Tensor, height: int, width: int) -> Tensor:
    """Places in windows [..., h, w] as places in the images [height, width] that were pooled."""
    kind = torch.int16 if height * width < 2**15 else torch.int64  # short numbers are quicker
    at = places.to(kind)
    at += (at >> 1) * (width - 2)
    at += torch.arange(0, 2 * at.shape[-2] * width, 2 * width, dtype=kind)[:, None]
    at += torch.arange(0, 2 * at.shape[-1], 2, dtype=kind)
    return at.long()


def _fourfold(w: Tensor) -> Tensor:
    """A filter [o, i, h, w] at the four places of a kernel that is larger by one [4 * o, i, h + 1, w + 1]."""
    outputs, inputs, height, width = w.shape
    four = w.new_zeros(2, 2, outputs, inputs, height + 1, width + 1)
    _corners(four, w.shape).copy_(w)
    return four.flatten(0, 2)


def _corners(four: Tensor, shape: torch.Size) -> Tensor:
    """Where the filter lies in each of the four kernels: one lower, one further right."""
    down, right, *rest = four.stride()
    return four.as_strided((2, 2, *shape), (down + rest[-2], right + rest[-1], *rest))


def _pieces(clients: int, images: int) -> list[tuple[int, slice]]:
    """Whose images come next."""
    many = images // clients
    return [(client, slice(client * many, (client + 1) * many)) for client in range(clients)]


def pool_first(graph: fx.Graph, module: nn.Module) -> None:
    """Move ReLU from before max-pooling to after it: the same numbers and gradients, from fewer activations."""

    def layer(node: object) -> nn.Module | None:
        if isinstance(node, fx.Node) and node.op == "call_module":
            return module.get_submodule(str(node.target))
        return None

    for pool in list(graph.nodes):
        if not isinstance(layer(pool), nn.MaxPool1d | nn.MaxPool2d) or not isinstance(layer(pool.args[0]), nn.ReLU):
            continue
        relu = pool.args[0]
        before = relu.args[0]
        if len(relu.users) == len(before.users) == 1:  # nobody else reads what changes
            pool.replace_all_uses_with(relu)
            pool.replace_input_with(relu, before)
            relu.replace_input_with(before, pool)
            pool.append(relu)


def tiled_front(graph: fx.Graph, module: nn.Module, fused: frozenset[str]) -> tuple[str, str] | None:
    """Names of a convolution of the examples and of the pooling that alone reads it, if they can be one step."""
    node = next(node for node in graph.nodes if node.op == "placeholder")
    names = []
    for kind in (nn.Conv2d, nn.MaxPool2d):
        readers = list(node.users)
        node = readers[0]
        if len(readers) > 1 or node.op != "call_module" or type(module.get_submodule(str(node.target))) is not kind:
            return None
        names.append(str(node.target))
    conv, pool = (module.get_submodule(name) for name in names)
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(pool, nn.MaxPool2d)
    if plain_padding(conv) is None or names[0] not in fused or not halves(pool):
        return None
    return names[0], names[1]


class Tiled(nn.Module):
    """The convolution together with the pooling, which is then nothing."""

    stacked: Any  # the layer with its name and the pass it is in

    def __init__(self, stacked: nn.Module) -> None:
        super().__init__()
        self.stacked = stacked

    def forward(self, x: Tensor) -> Tensor:
        """All of the cohort's activations after the pooling."""
        layer, name, tensors = self.stacked.layer, self.stacked.name, self.stacked.now.run.tensors
        b = tensors.get(f"{name}.bias")
        out: Tensor = ConvPool.apply(x.contiguous(), tensors[f"{name}.weight"], b, layer.padding)  # type: ignore[no-untyped-call]
        return out


class TiledFirst(Tiled):
    """The same of a frozen network: all outputs without a record, and the other lane begins."""

    def forward(self, x: Tensor) -> Tensor:
        """All of the cohort's activations after the pooling."""
        layer, name, now = self.stacked.layer, self.stacked.name, self.stacked.now
        run, x = now.run, x.contiguous()
        w, b = run.tensors[f"{name}.weight"], run.tensors.get(f"{name}.bias")
        with torch.no_grad():
            out, places = _largest(x, w, b, layer.padding)
        now.lane = TrainedTiles.apply(  # type: ignore[no-untyped-call]
            out, places, x, w, b, layer.padding, run.step_of(name), run.part_of(name)
        )
        return out
