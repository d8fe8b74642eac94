"""The weights of hidden layers, for methods that choose single numbers: no neurons are looked for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedloom.layout import Layout


class Span(NamedTuple):
    """A tensor of a layer in the flat vector."""

    name: str
    start: int
    stop: int

    @property
    def place(self) -> slice:
        """Where it lies."""
        return slice(self.start, self.stop)


class HiddenWeights(NamedTuple):
    """The weights of a network's hidden layers; numbers of no span are biases, norms, or of the layer that answers."""

    total: int  # P: numbers in the flat vector
    spans: tuple[Span, ...]


class Layer(NamedTuple):
    """A layer with weights, and its trained tensors in the flat vector."""

    name: str
    weights: tuple[Span, ...]
    biases: tuple[Span, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        """All its tensors."""
        return (*self.weights, *self.biases)


def layers_of(module: nn.Module, layout: Layout) -> tuple[Layer, ...]:
    """All layers that own trained weights of two axes or more, in the order of the vector; no norm layers."""
    places, start = {}, 0
    for name, size in zip(layout.names, layout.sizes):
        if name in layout.parameters:
            places[name] = Span(name, start, start + size)
        start += size
    found = []
    for owner, part in module.named_modules():
        weights = set(_weights_of(part))
        own = {name: f"{owner}.{name}".lstrip(".") for name, _ in part.named_parameters(recurse=False)}
        spans = {name: places[full] for name, full in own.items() if full in places}  # frozen and tied ones are not
        if weights & spans.keys():
            first = tuple(span for name, span in spans.items() if name in weights)
            found.append(Layer(owner, first, tuple(span for name, span in spans.items() if name not in weights)))
    return tuple(sorted(found, key=lambda layer: layer.weights[0].start))


def hidden_weights(module: nn.Module, example: Tensor, layout: Layout) -> HiddenWeights:
    """The trained weights, of two axes or more, of all layers but the one that answers; none are biases or norms.

    The answering layer is the one with weights that runs last on the example.
    """
    owners = {name: part for name, part in module.named_modules() if _weights_of(part)}
    ran: list[str] = []
    hooks = [
        part.register_forward_hook(lambda *_, name=name: ran.append(name))
        for name, part in owners.items()
        if name  # the network itself ends last, whatever it owns
    ]
    training = module.training
    try:
        with torch.no_grad():
            module.eval()(example)
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    answers = ran[-1] if ran else ""
    last = {f"{answers}.{name}".lstrip(".") for name in _weights_of(owners.get(answers))}
    last |= {first for second, first in layout.aliases if second in last}
    inside = {f"{owner}.{name}".lstrip(".") for owner, part in owners.items() for name in _weights_of(part)} - last
    found, start = [], 0
    for name, size in zip(layout.names, layout.sizes):
        if name in inside and name in layout.parameters:
            found.append(Span(name, start, start + size))
        start += size
    return HiddenWeights(layout.total, tuple(found))


def _weights_of(part: nn.Module | None) -> list[str]:
    """The names of a layer's own weights."""
    if part is None or isinstance(part, nn.LayerNorm | nn.RMSNorm):
        return []
    return [name for name, value in part.named_parameters(recurse=False) if value.dim() > 1 and "weight" in name]
