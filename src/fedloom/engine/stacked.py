"""A cohort at once, without vmap: the network's fx graph runs with every parameter stacked over the clients.

Nodes without parameters run as they are on the cohort's examples laid end to end; layers with parameters have a
function in `layers.py`. Whether that reads the network rightly is checked by `engine.gradient` against plain PyTorch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy

import torch
from torch import Tensor, fx, nn

from fedloom.client import Batch
from fedloom.engine.dropout import KeyedDropout
from fedloom.engine.layers import FUSED, LAYERS, Pass
from fedloom.engine.products import Step
from fedloom.layout import Layout
from fedloom.types import Setting


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Keyed dropout is a layer of ours, not code to look into."""
        return isinstance(m, KeyedDropout) or super().is_leaf_module(m, module_qualified_name)


class _Interpreter(fx.Interpreter):
    """Runs the graph, handing layers with parameters to their stacked functions."""

    run_now: Pass

    def call_module(self, target: str, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        """A layer: stacked if it has a function, as it is if it has no parameters."""
        layer = self.fetch_attr(target)
        if (stacked := LAYERS.get(type(layer))) is not None:
            return stacked(layer, target, self.run_now, *args, **kwargs)
        return layer(*args, **kwargs)  # type: ignore[no-any-return]


class StackedGradient:
    """Gradients of a cohort from one interpretation of the network's graph."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.layout = setting, setting.layout
        graph = _Tracer().trace(setting.module)
        layers = {node.target: setting.module.get_submodule(str(node.target)) for node in graph.nodes
                  if node.op == "call_module"}  # fmt: skip
        for name, layer in layers.items():
            if type(layer) not in LAYERS and any(True for _ in layer.parameters()):
                raise NotImplementedError(f"layer '{name}' ({type(layer).__name__}) has no stacked form")
        if any(node.op == "get_attr" for node in graph.nodes):
            raise NotImplementedError("the network uses a parameter outside any layer")
        uses = Counter(node.target for node in graph.nodes if node.op == "call_module")
        self._fused = frozenset(str(n) for n, layer in layers.items() if type(layer) in FUSED and uses[n] == 1)
        self._interpreter = _Interpreter(fx.GraphModule(setting.module, graph), garbage_collect_values=True)

    def of_shapes(self, layout: Layout) -> StackedGradient:
        """The same network with tensors of other sizes, such as a sub-model's."""
        other = copy(self)
        other.layout = layout
        return other

    def _loss(self, tensors: dict[str, Tensor], batch: Batch, step: Step | None) -> Tensor:
        """The losses [C], ready to be differentiated."""
        fused = self._fused if batch.x.device.type == "cpu" else frozenset()
        self._interpreter.run_now = Pass(tensors, len(batch.y), batch.weight, batch.keys, step, fused)
        self._interpreter.module.train()
        output = self._interpreter.run(batch.x.flatten(0, 1))
        return (self.setting.loss(output, batch.y.flatten(0, 1)).view_as(batch.weight) * batch.weight).sum(1)

    def __call__(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients [C, P] and losses [C]; running statistics move in place."""
        tensors = {name: t.detach() for name, t in self.layout.split(params).items()}
        leaves = [tensors[name].requires_grad_() for name in self.layout.parameters]
        losses = self._loss(tensors, batch, None)
        found = torch.autograd.grad(losses.sum(), leaves)
        grads = [g.flatten(1) for g in found]
        if (rest := self.layout.total - self.layout.trained) > 0:
            grads.append(params.new_zeros(len(params), rest))
        return torch.cat(grads, 1), losses.detach()

    def descend(
        self, first: Tensor, batches: Iterator[Batch], rate: float, shrink: float
    ) -> tuple[Tensor, Tensor] | None:
        """Every tensor of the cohort contiguous by itself, so that products can take the step in place."""
        split = self.layout.split(first)
        tensors = {name: t.clone(memory_format=torch.contiguous_format) for name, t in split.items()}
        total = first.new_zeros(len(first))
        for batch in batches:
            now = len(batch.y)
            views = {name: t[:now].detach() for name, t in tensors.items()}
            leaves = [views[name].requires_grad_() for name in self.layout.parameters]
            losses = self._loss(views, batch, Step(rate, shrink))
            losses.sum().backward()
            total[:now] += losses.detach()
            for leaf in leaves:  # what no layer fused
                if leaf.grad is not None:
                    leaf.detach().mul_(shrink).sub_(leaf.grad, alpha=rate)
        return self.layout.join(tensors, 1), total

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """Every client's network on its own examples, in evaluation mode."""
        self._interpreter.run_now = Pass(self.layout.split(params), len(x), None, None, None, frozenset())
        self._interpreter.module.eval()
        with torch.no_grad():
            output: Tensor = self._interpreter.run(x.flatten(0, 1))
        return output.view(*x.shape[:2], *output.shape[1:])
