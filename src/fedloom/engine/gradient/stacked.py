"""Gradients of a cohort at once, without vmap: the network's fx graph runs with parameters stacked over the clients.

Nodes without trained parameters, such as frozen layers, run as they are on the cohort's examples, one client's after
another's; layers with trained parameters have a function in `layers.py`. `fastest.py` compares the gradients with those
of plain PyTorch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import vmap

from fedloom.core.rule import Objective
from fedloom.core.types import Batch, Setting
from fedloom.engine.cpu.native_steps import native_outputs
from fedloom.engine.gradient.dropout import KeyedDropout
from fedloom.engine.gradient.frozen import Frozen, freeze
from fedloom.engine.gradient.graph import traced, zeros_stay
from fedloom.engine.gradient.layers import ALONE, FUSED, LAYERS, Pass
from fedloom.engine.gradient.products import Kept, Step
from fedloom.engine.gradient.protocol import GradientKind
from fedloom.layout import Layout, tensors_of
from fedloom.neurons.resized import Sizes, resized, sizes_of


class _Now:
    """The pass that all layers of a network run."""

    run: Pass


class _Layer(nn.Module):
    """A layer that runs as its stacked function."""

    def __init__(self, layer: nn.Module, name: str, now: _Now) -> None:
        super().__init__()
        self.stacked, self.layer, self.name, self.now = LAYERS[type(layer)], layer, name, now

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The cohort's activations after the layer."""
        with torch._C.DisableTorchFunction():  # its own calls are not the network's
            return self.stacked(self.layer, self.name, self.now.run, *args, **kwargs)


class StackedGradient:
    """Gradients of a cohort from one run of the network's graph."""

    kind: GradientKind = "stacked"

    def __init__(self, setting: Setting) -> None:
        self.setting, self.layout = setting, setting.layout
        self.low = False  # products of bfloat16 numbers
        if setting.draws:
            raise NotImplementedError("functions in the network's code draw random numbers, as F.dropout does")
        graph = traced(setting.module)
        layers = {node.target: setting.module.get_submodule(str(node.target)) for node in graph.nodes
                  if node.op == "call_module"}  # fmt: skip
        self._inside = {*self.layout.names, *(name for name, _ in self.layout.aliases)}  # what is in the vector
        tied = {name for pair in self.layout.aliases for name in pair}
        self._base: dict[str, Tensor] = {}  # frozen tensors of layers that are stacked
        for name, layer in layers.items():
            own = {f"{name}.{key}".lstrip("."): value for key, value in tensors_of(layer).items()}
            if type(layer) in LAYERS:
                self._base |= {} if self._runs_as_is(str(name), layer) else {
                    key: value.detach() for key, value in own.items()
                    if key not in self._inside and value.is_floating_point()
                }  # fmt: skip
            elif any(key in self._inside for key in own):
                raise NotImplementedError(f"layer '{name}' ({type(layer).__name__}) has no stacked form")
        if any(node.op == "get_attr" for node in graph.nodes):
            raise NotImplementedError("the network uses a parameter outside any layer")
        uses = Counter(node.target for node in graph.nodes if node.op == "call_module")
        self._trained = frozenset(self.layout.parameters)
        self._fused = frozenset(
            str(name)
            for name, layer in layers.items()
            if type(layer) in FUSED
            and uses[name] == 1
            and all(p.requires_grad for p in layer.parameters())
            and not any(f"{name}.{key}".lstrip(".") in tied for key in tensors_of(layer))
        )
        self._dropouts = [layer for layer in layers.values() if isinstance(layer, KeyedDropout)]
        self._now = _Now()
        self._objective: Objective | None = None  # in place of the goal's loss
        self._part: tuple[Tensor, Tensor] | None = None  # the only neurons that are trained, and their numbers
        self._kept: dict[str, Kept] | None = None
        self._sizes: Sizes | None = None  # that a sub-model's calls are told
        self._graph = graph
        stacked = {str(n): layer if self._runs_as_is(str(n), layer) else _Layer(layer, str(n), self._now)
                   for n, layer in layers.items()}  # fmt: skip
        self._network = fx.GraphModule(stacked, graph)  # the graph as Python code: interpreting it takes longer

    def _runs_as_is(self, name: str, layer: nn.Module) -> bool:
        """Whether a layer treats all clients alike and every example by itself."""
        if type(layer) not in LAYERS:
            return True
        return type(layer) in ALONE and not any(f"{name}.{key}" in self._inside for key in tensors_of(layer))

    def _with_base(self, tensors: dict[str, Tensor], clients: int) -> dict[str, Tensor]:
        """The cohort's tensors by all their names, and for each client those frozen ones that a stacked layer needs."""
        tensors = self.layout.with_aliases(tensors)
        if not self._base:
            return tensors
        return tensors | {name: t.expand(clients, *t.shape).contiguous() for name, t in self._base.items()}

    @property
    def stacked(self) -> StackedGradient:
        """The gradient itself."""
        return self

    @cached_property
    def zeros_stay(self) -> bool:
        """Whether neurons whose weights are zero keep them, and change no other neuron."""
        return zeros_stay(self._graph, self.setting.module)

    def aimed(self, objective: Objective) -> StackedGradient:
        """A copy that differentiates this objective; only gradients by themselves, since no other way asks for it."""
        other = copy(self)
        other._objective = objective
        return other

    def lowered(self) -> StackedGradient:
        """A copy with products of bfloat16 numbers."""
        other = copy(self)
        other.low = True
        return other

    def of_shapes(self, layout: Layout, counts: Sequence[int]) -> StackedGradient:
        """A copy for sub-models; layers count their neurons by themselves, and other calls are told other sizes."""
        other, map = copy(self), self.setting.neurons
        other.layout, other._sizes = layout, sizes_of(map, counts)._replace(attributes=()) if map.told else None
        return other

    def keeping(self, counts: dict[tuple[str, int], Tensor]) -> StackedGradient:
        """A copy for clients that keep the first neurons of every group; all other numbers are zero.

        `counts`: neurons that each client keeps [C], by group and by the numbers of a neuron along an axis.
        """
        other, axes = copy(self), self.setting.neurons.axes
        other._kept = {}
        for name in self._fused:
            ends = axes[f"{name}.weight"][1::-1]
            kept = [counts.get((axis[0].group, axis[0].fan)) if axis else None for axis in ends]
            other._kept[name] = kept[0], kept[1]
        return other

    def freezing(self, keep: Tensor, mask: Tensor) -> StackedGradient:
        """A copy that trains only the kept neurons [C, K], whose numbers are the mask [C, P]."""
        other = copy(self)
        other._part = keep, mask
        other.__dict__.pop("_frozen", None)
        return other

    @cached_property
    def _frozen(self) -> Frozen | None:
        """The trained part where only some neurons are trained; None: everything. Not every way needs it."""
        if self._part is None:
            return None
        layers = [n for n in sorted(self._fused) if getattr(self.setting.module.get_submodule(n), "groups", 1) == 1]
        return freeze(self.setting.neurons, layers, *self._part)

    def _losses(self, tensors: dict[str, Tensor], batch: Batch, step: Step | None) -> Tensor:
        """The loss of every example [C * B], ready to be differentiated."""
        return self.setting.loss(self._answers(tensors, batch, step), batch.y.flatten(0, 1))

    def _answers(self, tensors: dict[str, Tensor], batch: Batch, step: Step | None) -> Tensor:
        """The network's answers to every example [C * B, ...]."""
        fused = self._fused
        parts = {} if self._frozen is None else self._frozen.parts
        if self._frozen is not None:
            fused = fused & parts.keys()  # a layer without a part, such as a depthwise one, is trained by the mask
        tensors = self._with_base(tensors, len(batch.y))
        self._now.run = Pass(
            tensors, len(batch.y), batch.weight, batch.keys, step, fused, parts, self.low, kept=self._kept
        )
        for layer in self._dropouts:
            layer.calls = 0  # a new pass
        x = batch.x.flatten(0, 1)
        with resized(self._network, self._sizes):
            output: Tensor = self._network.forward(x)  # called otherwise it prints what goes wrong in code of its own
        return output

    def __call__(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients [C, P] and losses [C]; running statistics move in place."""
        split, trained = self.layout.split(params), self.layout.trained
        # statistics get their own storage: a change of them would count as one of the weights that autograd saved
        tensors = {name: t.detach() if name in self._trained else t.clone() for name, t in split.items()}
        leaves = [tensors[name].requires_grad_() for name in self.layout.parameters]
        self._network.train()
        if (aim := self._objective) is None:
            losses = self._losses(tensors, batch, None)
            total, means = _total(losses, batch.weight), _means(losses, batch.weight)
        else:
            answers = self._answers(tensors, batch, None).unflatten(0, batch.y.shape[:2])
            each = vmap(aim.loss)(answers, batch.y, batch.weight, *aim.facts)
            total, means = each.sum(), each.detach()
        found = torch.autograd.grad(total, leaves, materialize_grads=True)
        grads = [g.flatten(1) for g in found]
        if trained < self.layout.total:
            moved = [tensors[name].flatten(1) for name in self.layout.names if name not in self._trained]
            params[:, trained:] = torch.cat(moved, 1)
            grads.append(torch.zeros_like(params[:, trained:]))
        return torch.cat(grads, 1), means

    def descent(self, first: Tensor, batches: Iterable[Batch], rate: float, shrink: float) -> tuple[Tensor, Tensor]:
        """All steps of SGD, fused; every tensor has its own storage, so that products can step in place."""
        split = self.layout.split(first)
        tensors = {name: t.clone(memory_format=torch.contiguous_format) for name, t in split.items()}
        total = first.new_zeros(len(first))
        step, now = Step(rate, shrink), 0
        self._network.train()
        for batch in batches:
            if now != len(batch.y):
                now = len(batch.y)
                views = {name: t[:now].detach() for name, t in tensors.items()}
                alone = now == 1 and self._frozen is None and not self.low
                if alone and first.device.type == "cpu":  # torch's own layers are quicker
                    views |= {n: t[0].detach() for n, t in tensors.items() if n.rpartition(".")[0] in self._fused}
                leaves = {name: (views[name].requires_grad_(), views[name].detach()) for name in self.layout.parameters}
                may = {} if self._frozen is None else self.layout.split(self._frozen.mask[:now])
            losses, weight = self._losses(views, batch, step), batch.weight
            del batch  # memory is highest in the backward pass, where layers keep what they need of the examples
            _total(losses, weight).backward()
            total[:now] += _means(losses, weight)
            for name, (leaf, own) in leaves.items():  # tensors that no layer fused
                if leaf.grad is not None or name.rpartition(".")[0] not in self._fused:
                    _move(own, leaf.grad, step, may.get(name))
                    leaf.grad = None
        last = self.layout.join(tensors, 1)
        if self._frozen is not None:  # running statistics outside the mask do not change either
            rest = slice(self.layout.trained, None)
            last[:, rest] = torch.where(self._frozen.mask[:, rest], last[:, rest], first[:, rest])
        return last, total

    def slopes(self, tensors: dict[str, Tensor], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses [C], and the gradients of the cohort's tensors [C, ...]; running statistics move in place."""
        self._network.train()
        own = {name: t.detach() for name, t in tensors.items()}
        leaves = [own[name].requires_grad_() for name in self.layout.parameters]
        losses = self._losses(own, batch, None)
        found = torch.autograd.grad(_total(losses, batch.weight), leaves, materialize_grads=True)
        return _means(losses, batch.weight), dict(zip(self.layout.parameters, found))

    def advance(self, tensors: dict[str, Tensor], batch: Batch, step: Step) -> Tensor:
        """One step of `descent`, which changes the cohort's tensors [C, ...] in place; losses [C]."""
        self._network.train()
        own = {name: t.detach() for name, t in tensors.items()}
        leaves = [own[name].requires_grad_() for name in self.layout.parameters]
        losses = self._losses(own, batch, step)
        found = torch.autograd.grad(_total(losses, batch.weight), leaves, allow_unused=True)
        grads: dict[str, Tensor | None] = dict(zip(self.layout.parameters, found))
        for name, grad in grads.items():  # tensors that no layer fused
            if grad is not None or name.rpartition(".")[0] not in self._fused:
                _move(tensors[name].detach(), grad, step, None)
        return _means(losses, batch.weight)

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """The outputs of every client's network for its own examples, in evaluation mode."""
        own = None if self.low else native_outputs(self.setting, self.layout, params, x)
        if own is not None:
            return own
        tensors = self._with_base(self.layout.split(params), len(x))
        self._now.run = Pass(tensors, len(x), None, None, None, frozenset(), {}, self.low)
        self._network.eval()
        with torch.no_grad():
            output: Tensor = self._network.forward(x.flatten(0, 1))
        return output.view(*x.shape[:2], *output.shape[1:])


def _total(losses: Tensor, weight: Tensor) -> Tensor:
    """The sum of all clients' mean losses []; torch would import many modules for gradients of more than a scalar."""
    return (losses * weight.flatten().to(losses)).sum()


def _means(losses: Tensor, weight: Tensor) -> Tensor:
    """The mean loss of every client [C], from the losses of all examples [C * B]."""
    return (losses.detach().view_as(weight) * weight).sum(1)


def _move(w: Tensor, g: Tensor | None, step: Step, may: Tensor | None) -> None:
    """Take the step of a tensor that is not fused, where `may` allows it; without a gradient it decays alone."""
    g = torch.zeros_like(w) if g is None else g
    if may is None:
        step.take(w, g)
    else:
        w.copy_(torch.where(may, w * step.shrink - g * step.rate, w))
