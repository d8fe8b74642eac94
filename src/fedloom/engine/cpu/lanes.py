"""The front of a network of which neurons are frozen, in two lanes: all activations, and those of the trained neurons.

Below the first layer nothing is trained, so gradients need to reach only its trained neurons. All activations run
forwards without being recorded; what lies between the first two layers runs again for the trained neurons, and only
there gradients come back.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from fedloom.engine.gradient.frozen import Frozen
from fedloom.engine.gradient.products import Part, Step, convolved_back, settled, taken

BETWEEN = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Flatten)  # layers that keep neurons apart and draw no numbers


class Front(NamedTuple):
    """Names of the first two layers with weights, and of what lies between them."""

    first: str
    between: tuple[str, ...]
    second: str


def front_of(graph: fx.Graph, module: nn.Module, fused: frozenset[str]) -> Front | None:
    """The front of a network that begins as a chain; None: everything takes one lane."""
    uses = Counter(node.target for node in graph.nodes if node.op == "call_module")
    node = next(node for node in graph.nodes if node.op == "placeholder")
    names: list[str] = []  # from the first layer with weights on
    while len(node.users) == 1:
        node = next(iter(node.users))
        if node.op != "call_module" or uses[node.target] > 1:
            return None
        name = str(node.target)
        layer = module.get_submodule(name)
        weighty = name in fused and getattr(layer, "groups", 1) == 1
        if weighty and names:
            return Front(names[0], tuple(names[1:]), name)
        if not weighty and not isinstance(layer, BETWEEN):
            return None
        if weighty or names:
            names.append(name)
    return None


def passable(front: Front | None, frozen: Frozen | None) -> bool:
    """Are the trained neurons of the first layer just the inputs that the second one trains?"""
    if front is None or frozen is None or not {front.first, front.second} <= frozen.cuts.keys():
        return False
    rows, columns = frozen.cuts[front.first].rows, frozen.cuts[front.second].columns
    if rows is None or columns is None or rows.device.type != "cpu" or columns.shape[1] % rows.shape[1]:
        return False
    fan = columns.shape[1] // rows.shape[1]  # places of an image that is flattened between
    return torch.equal(columns, (rows[:, :, None] * fan + torch.arange(fan)).flatten(1))


class Trained(torch.autograd.Function):
    """The first layer's trained neurons, taken out of all its outputs; backwards, that layer's step."""

    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        how: tuple[Any, ...] | None,
        step: Step | None,
        part: Part,
    ) -> Tensor:
        """Outputs and inputs [C * B, ...]; `how` a convolution runs, None: the layer is linear."""
        ctx.save_for_backward(x, w, b)
        ctx.how, ctx.step, ctx.part = how, step, part
        assert part.rows is not None
        return taken(out, part.rows, -1 if how is None else 1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of weight and bias, or the step itself; none of the inputs, below which nothing is trained."""
        x, w, b = ctx.saved_tensors
        clients, how = len(w), ctx.how
        if how is None:
            g = g.reshape(clients, -1, g.shape[-1])
            gw, gb = torch.bmm(g.mT, x.reshape(clients, -1, x.shape[-1])), g.sum(1)
        else:
            like = w[:, : g.shape[1]]
            pairs = zip(g.chunk(clients), x.chunk(clients), like)
            gw = torch.stack(
                [convolved_back(own_g, own_x, own_w, how, (False, True))[1] for own_g, own_x, own_w in pairs]
            )
            gb = g.unflatten(0, (clients, -1)).sum((1, *range(3, g.dim() + 1)))
        told = settled(gw, None if b is None else gb, w, b, ctx.step, ctx.part)
        return None, None, *told, None, None, None


class First(nn.Module):
    """The first layer: all outputs without a record, and the other lane begins."""

    stacked: Any  # the layer with its name and the pass it is in

    def __init__(self, stacked: nn.Module) -> None:
        super().__init__()
        self.stacked = stacked

    def forward(self, x: Tensor) -> Tensor:
        """All of the cohort's activations after the layer."""
        layer, name, now = self.stacked.layer, self.stacked.name, self.stacked.now
        with torch.no_grad():
            out: Tensor = self.stacked(x)
        run = now.run
        how = (layer.stride, layer.padding, layer.dilation, 1) if hasattr(layer, "stride") else None
        w, b = run.tensors[f"{name}.weight"], run.tensors.get(f"{name}.bias")
        now.lane = Trained.apply(out, x, w, b, how, run.step_of(name), run.part_of(name))  # type: ignore[no-untyped-call]
        return out


class Between(nn.Module):
    """A layer that both lanes pass."""

    now: Any

    def __init__(self, layer: nn.Module, now: Any) -> None:
        super().__init__()
        self.layer, self.now = layer, now

    def forward(self, x: Tensor) -> Tensor:
        """All of the cohort's activations after the layer."""
        self.now.lane = self.layer(self.now.lane)
        out: Tensor = self.layer(x)
        return out


class Second(nn.Module):
    """The second layer: its inputs' gradients go to the trained lane alone."""

    stacked: Any

    def __init__(self, stacked: nn.Module) -> None:
        super().__init__()
        self.stacked = stacked

    def forward(self, x: Tensor) -> Tensor:
        """All of the cohort's activations after the layer."""
        now = self.stacked.now
        now.run, run = now.run._replace(lane=now.lane), now.run
        try:
            out: Tensor = self.stacked(x)
        finally:
            now.run, now.lane = run, None
        return out
