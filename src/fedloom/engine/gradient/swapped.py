"""Gradients of a cohort at once from one run of the network's own code, without a graph and without vmap.

Layers with a number in the vector are replaced by their stacked functions (`layers.py`); all else, frozen layers among
it, runs as it is on the cohort's examples, one client's after another's. Code that looks at values works, which
torch.fx and vmap refuse. `fastest.py` compares the gradients with those of plain PyTorch, which finds code that mixes
examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.rule import Objective
from fedloom.core.types import Batch, Setting
from fedloom.engine.gradient.dropout import KeyedDropout
from fedloom.engine.gradient.keyed_calls import KeyedCalls
from fedloom.engine.gradient.layers import LAYERS, Pass
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.protocol import GradientKind
from fedloom.layout import Layout, tensors_of
from fedloom.neurons.resized import Sizes, resized, sizes_of


class _Swapped(nn.Module):
    """A layer that runs as its stacked function, and answers as the layer when code reads its attributes."""

    def __init__(self, layer: nn.Module, name: str, passes: list[Pass]) -> None:
        super().__init__()
        self.layer, self.name, self.passes = layer, name, passes

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The cohort's activations after the layer, in the pass that is run now."""
        with torch._C.DisableTorchFunction():  # its own calls are not the network's
            return LAYERS[type(self.layer)](self.layer, self.name, self.passes[-1], *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """An attribute of its own, or else the layer's."""
        layer = self.__dict__["_modules"]["layer"]
        return layer if name == "layer" else getattr(layer, name)


class SwappedGradient:
    """Gradients of a cohort from one run of the network's own code."""

    kind: GradientKind = "swapped"
    low = False
    stacked = None
    descent = None

    def __init__(self, setting: Setting) -> None:
        self.setting, self.layout = setting, setting.layout
        self._passes: list[Pass] = []  # at most one, that all layers run
        self._sizes: Sizes | None = None  # that a sub-model's calls are told
        self._base: dict[str, Tensor] = {}  # frozen tensors of layers that are swapped
        self._network = self._swapped()
        self._dropouts = [layer for layer in self._network.modules() if isinstance(layer, KeyedDropout)]

    def _swapped(self) -> nn.Module:
        """The network with the same tensors and other layers."""
        module, names = self.setting.module, {*self.layout.names, *(name for name, _ in self.layout.aliases)}
        twin: nn.Module = deepcopy(module, {id(value): value for value in tensors_of(module).values()})
        for name, layer in list(module.named_modules(remove_duplicate=False)):
            own = {f"{name}.{key}".lstrip("."): value for key, value in layer.named_parameters(recurse=False)}
            own |= {f"{name}.{key}".lstrip("."): value for key, value in layer.named_buffers(recurse=False)}
            if names.isdisjoint(own) and not isinstance(layer, KeyedDropout):
                continue
            if type(layer) not in LAYERS:
                raise NotImplementedError(f"layer '{name}' ({type(layer).__name__}) has no stacked form")
            self._base |= {key: v.detach() for key, v in own.items() if key not in names and v.is_floating_point()}
            if isinstance(twin.get_submodule(name), _Swapped):  # inside a block of two names
                continue
            swapped = _Swapped(twin.get_submodule(name), name, self._passes)
            if not name:
                return swapped
            twin.set_submodule(name, swapped)
        return twin

    def of_shapes(self, layout: Layout, counts: Sequence[int]) -> SwappedGradient:
        """A copy for sub-models; layers count their neurons by themselves, and other calls are told other sizes."""
        other, map = copy(self), self.setting.neurons
        other.layout, other._sizes = layout, sizes_of(map, counts)._replace(attributes=()) if map.told else None
        return other

    def aimed(self, objective: Objective) -> PlainGradient:
        """Gradients of this objective, of one client after another."""
        other = PlainGradient(self.setting).aimed(objective)
        other.layout, other._sizes = self.layout, self._sizes
        return other

    def _run(self, tensors: dict[str, Tensor], x: Tensor, weight: Tensor | None, keys: Tensor | None) -> Tensor:
        """The answers for the cohort's examples [C * B, ...]."""
        clients = len(x)
        tensors = self.layout.with_aliases(tensors)
        tensors |= {name: t.expand(clients, *t.shape) for name, t in self._base.items()}
        self._passes[:] = [Pass(tensors, clients, weight, keys, None, frozenset(), {})]
        calls = torch.zeros(clients, dtype=torch.int64, device=x.device) if keys is None else keys
        for layer in self._dropouts:
            layer.calls = 0  # a new pass
        with KeyedCalls(calls) if self.setting.draws else nullcontext(), resized(self._network, self._sizes):
            answer: Tensor = self._network(x.flatten(0, 1))
        return answer

    def __call__(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients [C, P] and losses [C]; running statistics move in place."""
        self._network.train()
        leaf, trained = params.detach().requires_grad_(), self.layout.trained
        tensors = self.layout.split(leaf)
        moving = {name: tensors[name].detach().clone() for name in self.layout.names[len(self.layout.parameters) :]}
        answer = self._run(tensors | moving, batch.x, batch.weight, batch.keys)
        losses = self.setting.loss(answer, batch.y.flatten(0, 1)).view_as(batch.weight)
        each = (losses * batch.weight.to(losses)).sum(1)
        (grads,) = torch.autograd.grad(each.sum(), leaf, materialize_grads=True)
        if moving:
            params[:, trained:] = torch.cat([value.flatten(1) for value in moving.values()], 1)
        return grads, each.detach()

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """The outputs of every client's network for its own examples, in evaluation mode."""
        self._network.eval()
        with torch.no_grad():
            answer = self._run(self.layout.split(params), x, None, None)
        return answer.view(*x.shape[:2], *answer.shape[1:])
