"""Plain chains of linear layers on a CPU, trained without autograd, whose calls take longer than small products do.

Forwards and backwards are written out, and a weight takes its step inside the product of its gradient. Of a frozen
network all activations are computed, and then only the gradients that what moves needs (see `blocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedloom.engine.blocks import Blocks
from fedloom.layout import Layout
from fedloom.types import Batch, Loss

KEPT = 2**18  # numbers of outputs that wait until their losses are computed, many steps at once


Product = Callable[..., Tensor]


class Link(NamedTuple):
    """A linear layer."""

    name: str
    bias: bool
    relu: bool  # after it


def chain_of(graph: fx.Graph, module: nn.Module, layout: Layout, loss: Loss) -> tuple[Link, ...] | None:
    """The network's layers, if it flattens its inputs and all it has then is linear layers with or without ReLU."""
    links: list[Link] = []
    flat = False
    before: fx.Node | None = None
    for node in graph.nodes:
        if before is not None and (len(before.users) != 1 or node.args[0] is not before):
            return None
        layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if _flattens(node, layer) and before is not None:
            flat = True
        elif type(layer) is nn.Linear and flat:
            links.append(Link(str(node.target), layer.bias is not None, False))
        elif _rectifies(node, layer) and links and not links[-1].relu:
            links[-1] = links[-1]._replace(relu=True)
        elif node.op == "output":
            break
        elif node.op != "placeholder" or before is not None:
            return None
        before = node
    names = {f"{link.name}.{kind}" for link in links for kind in ("weight", "bias")[: 1 + link.bias]}
    once = len({link.name for link in links}) == len(links) > 0
    exact = once and not links[-1].relu and names == set(layout.names) == set(layout.parameters)
    return tuple(links) if exact and _is_cross_entropy(loss) else None


def _flattens(node: fx.Node, layer: nn.Module | None) -> bool:
    """All of an example's axes into one?"""
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return node.target in (torch.flatten, "flatten") and node.args[1:] == (1,) and not node.kwargs


def _rectifies(node: fx.Node, layer: nn.Module | None) -> bool:
    plain = node.target in (torch.relu, F.relu, "relu") and len(node.args) == 1
    return type(layer) is nn.ReLU or (plain and not node.kwargs.get("inplace"))


def _is_cross_entropy(loss: Loss) -> bool:
    """Tried on a few numbers."""
    outputs = torch.arange(12, dtype=torch.float64).sin().view(4, 3) * 3
    target = torch.tensor([0, 2, 1, 2])
    found = loss(outputs, target)
    return found.shape == (4,) and torch.allclose(found, F.cross_entropy(outputs, target, reduction="none"))


def descend_chain(
    links: tuple[Link, ...],
    layout: Layout,
    first: Tensor,
    batches: Iterator[Batch],
    rate: float,
    shrink: float,
    blocks: Blocks | None = None,
) -> tuple[Tensor, Tensor]:
    """All steps of `w <- shrink * w - rate * g` from `first` [C, P]: weights [C, P] and summed losses [C].

    `blocks`: what moves of every layer of a frozen network.
    """
    total = first.new_zeros(len(first))
    with torch.inference_mode():  # nothing is recorded, which saves a part of every call
        tensors = _apart(layout, first) if blocks is None else blocks.sort(layout, first)
        run: _Run | None = None
        for batch in batches:
            if run is None or run.shape != batch.y.shape:
                total = total if run is None else run.settle(total)
                run = _Run(links, tensors, batch.y.shape, rate, shrink, None if blocks is None else blocks.sizes)
            if run.step(batch) > KEPT:
                total = run.settle(total)
        total = total if run is None else run.settle(total)
    # outside, so that others may record what they do with them
    return layout.join(tensors, 1) if blocks is None else blocks.put_back(layout, first, tensors), total.clone()


def _apart(layout: Layout, first: Tensor) -> dict[str, Tensor]:
    """Every tensor of the models by itself."""
    return {name: t.clone(memory_format=torch.contiguous_format) for name, t in layout.split(first).items()}


def _nothing(*_: Tensor, **how: Any) -> Tensor:
    """Stands for the step of a bias that a layer does not have."""
    return _[0]


class _Run:
    """Steps of the first so many clients; a client that is alone has plain products instead of batched ones."""

    def __init__(
        self,
        links: tuple[Link, ...],
        tensors: dict[str, Tensor],
        shape: torch.Size,
        rate: float,
        shrink: float,
        sizes: list[tuple[int | None, int | None]] | None,
    ) -> None:
        self.shape, self.alone = shape, shape[0] == 1
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []  # outputs, targets and weights of steps not yet counted
        self.product: Product = torch.mm if self.alone else torch.bmm
        self.plus: Product = torch.addmm if self.alone else torch.baddbmm
        weights = [self._own(tensors[f"{link.name}.weight"]) for link in links]  # [C, o, i]
        biases = [self._own(tensors[f"{link.name}.bias"].unsqueeze(1)) if link.bias else None for link in links]
        relus = [link.relu for link in links]
        self.forwards = list(zip([w.mT for w in weights], biases, relus))
        many = sizes or [(None, None)] * len(links)  # rows and columns that move, the first ones; None: all
        lane = None if len(links) == 1 else many[1][1]  # neurons of the first layer that gradients reach
        moving = [w[..., :r, :c] for w, (r, c) in zip(weights, many)]
        moving_biases = [b if b is None else b[..., :r] for b, (r, _) in zip(biases, many)]
        down = [w[..., :lane] if place == 1 else w for place, w in enumerate(weights)]
        moves = self._moves(moving), self._moves(moving_biases)
        self.backwards = list(zip(down, *moves, [None, *relus], many))[::-1]
        self.how: dict[str, Any] = {"beta": shrink, "alpha": -rate}
        self.ones = self._own(weights[0].new_ones(()).expand(shape[0], 1, shape[1]))

    def _moves(self, tensors: Sequence[Tensor | None]) -> list[Product]:
        """Each tensor's own product that is added to it in place; nothing where there is no tensor."""
        return [_nothing if t is None else t.addmm_ if self.alone else t.baddbmm_ for t in tensors]

    def _own(self, t: Tensor) -> Tensor:
        return t[0] if self.alone else t[: self.shape[0]]

    def step(self, batch: Batch) -> int:
        """Move the weights. How many numbers wait to be counted?"""
        how, y, weight = self.how, batch.y.unsqueeze(-1), batch.weight.unsqueeze(-1)
        x = batch.x.flatten(2)
        if self.alone:
            x, y, weight = x[0], y[0], weight[0]
        inputs = []
        for turned, b, relu in self.forwards:
            inputs.append(x)
            x = self.product(x, turned) if b is None else self.plus(b, x, turned)
            if relu:
                x.relu_()
        self.seen.append((x, batch.y, batch.weight))
        weight = weight.to(x.dtype)
        g = x.softmax(-1).mul_(weight).scatter_add_(-1, y, -weight)
        for w, move, move_bias, before, (r, c) in self.backwards:  # is ReLU before it? None: the examples are
            below = None if before is None else self.product(g, w)  # before the weight takes its step
            x = inputs.pop()
            own, seen = g if r is None else g.narrow(-1, 0, r), x if c is None else x.narrow(-1, 0, c)
            move(own.mT, seen, **how)
            move_bias(self.ones, own, **how)
            if below is not None:
                x = seen if below.shape[-1] == seen.shape[-1] else x
                g = torch.ops.aten.threshold_backward(below, x, 0) if before else below
        return len(self.seen) * self.seen[0][0].numel()

    def settle(self, total: Tensor) -> Tensor:
        """Count the losses of the steps so far."""
        if not self.seen:
            return total
        outputs, y, weight = (torch.stack(column) for column in zip(*self.seen))
        losses = F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
        total[: self.shape[0]] += (losses.view_as(weight) * weight).sum((0, 2))
        self.seen.clear()
        return total
