"""Layers of any network by words, as numbers of its flat vector: `head`, `last:2`, `norms+head`, `fc2`, `layer4.*`.

A layer is a module that owns tensors itself, and its name is the module's path. Their order is that of their first use,
and the head is what the network's output comes from, by the graph that autograd makes of a forward pass.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.errors import BadExperiment
from fedloom.layout import Layout, tensors_of

log = logging.getLogger("fedloom")

SIGNS = re.compile(r"([+-])(?![^\[]*\])")  # not within the brackets of a pattern
TURNS = frozenset(("T", "Transpose", "View", "Permute", "ToCopy", "Expand", "UnsafeView", "Clone", "Unsqueeze"))
BATCH = (nn.modules.batchnorm._BatchNorm,)
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def complement(words: str) -> str:
    """The words for all other layers."""
    if words in ("all", "none"):
        return "none" if words == "all" else "all"
    return "all-" + SIGNS.sub(lambda sign: "+" if sign[1] == "-" else "-", words)


class Layers:
    """The layers of a network, in the order of their first use."""

    def __init__(self, module: nn.Module, example: Tensor, layout: Layout) -> None:
        self._module, self._layout, self._device = module, layout, example.device
        self._names = {name: {_owner(name)} for name in layout.names}  # tensors, and the layers that own them
        for alias, name in layout.aliases:
            self._names[name].add(_owner(alias))
        uses, heads = _uses(module, example, self._names)
        own = list(dict.fromkeys(layer for owners in self._names.values() for layer in sorted(owners)))
        used = [layer for layer in uses if layer in own]
        unused = [layer for layer in own if layer not in used]
        if unused and used:
            self._after(used, unused)
        self.order, self.heads = unused + used, [layer for layer in used if layer in heads]
        self._found: dict[str, Tensor] = {}

    def _after(self, used: list[str], unused: list[str]) -> None:
        """Say which layers no use is known of, but for norms without weights."""
        modules = dict(self._module.named_modules())
        odd = [layer for layer in unused if not isinstance(modules.get(layer), NORMS)]
        if odd:
            log.warning("layers %s: no use of them was seen, so they count as the first ones.", ", ".join(odd))

    def numbers(self, words: str) -> Tensor:
        """Which numbers belong to the layers that the words name [P] (bool)."""
        if words not in self._found:
            chosen: set[str] = set()
            for sign, word in _terms(words):
                named = self._named(word)
                chosen = chosen - named if sign == "-" else chosen | named
            parts = [torch.full((size,), n in chosen) for n, size in zip(self._layout.names, self._layout.sizes)]
            self._found[words] = torch.cat(parts).to(self._device)
        return self._found[words]

    def some(self, words: str, what: str) -> Tensor:
        """As `numbers`, but neither none nor all of the numbers that are trained."""
        found = self.numbers(words)[: self._layout.trained]
        if found.all() or not found.any():
            none = "every" if found.all() else "no"
            raise BadExperiment(f"{what} is '{words}', which is {none} layer of this network; {self._known()}")
        return self.numbers(words)

    def _named(self, word: str) -> set[str]:
        """The tensors that one word names."""
        kind, _, count = word.partition(":")
        if kind in ("last", "first"):
            return self._edge(kind, count, word)
        if word in WORDS:
            found = self._of_layers(WORDS[word](self))
            if word in ("head", "body") and (not found or found >= set(self._layout.parameters)):
                raise BadExperiment(f"the head is every layer of this network that is trained; {self._known()}")
            if word.startswith("norms") and not found:
                log.warning("'%s' is no layer of this network: there is nothing for it to choose.", word)
            return found
        if word == "biases":
            return {name for name in self._layout.names if "bias" in name.rpartition(".")[2]}
        found = {
            name
            for name, owners in self._names.items()
            if any(fnmatchcase(one, word) for one in (name, *self._aliases(name), *owners))
            or any(layer.startswith(f"{word}.") for layer in owners)
        }
        if not found:
            raise BadExperiment(f"'{word}' names no layer or tensor of this network; {self._known()}")
        return found

    def _edge(self, kind: str, count: str, word: str) -> set[str]:
        """The last or first layers with weights of two or more axes, each with what follows until the next of them."""
        shapes = dict(zip(self._layout.names, self._layout.shapes))
        heavy = {layer for name, owners in self._names.items() for layer in owners if len(shapes[name]) > 1}
        groups: list[list[str]] = []
        for layer in self.order:
            if layer in heavy and (not groups or any(one in heavy for one in groups[-1])):
                groups.append([])
            groups = groups or [[]]
            groups[-1].append(layer)
        if not count.isdigit() or not 0 < int(count) < len(groups):
            raise BadExperiment(f"'{word}' takes a number of layers from 1 to {len(groups) - 1}; {self._known()}")
        some = groups[-int(count) :] if kind == "last" else groups[: int(count)]
        return self._of_layers(layer for group in some for layer in group)

    def of_kind(self, kinds: tuple[type, ...]) -> list[str]:
        """The layers that are modules of these kinds."""
        return [layer for layer, module in self._module.named_modules() if isinstance(module, kinds)]

    def _of_layers(self, layers: Iterable[str]) -> set[str]:
        """The tensors of these layers; one that several layers share belongs to each of them."""
        chosen = set(layers)
        return {name for name, owners in self._names.items() if owners & chosen}

    def _aliases(self, name: str) -> list[str]:
        """Other names of a tied tensor."""
        return [alias for alias, first in self._layout.aliases if first == name]

    def _known(self) -> str:
        """What may be named instead."""
        return f"its layers are: {', '.join(layer or 'the network itself' for layer in self.order)}."


WORDS: dict[str, Callable[[Layers], Iterable[str]]] = {
    "head": lambda layers: layers.heads,
    "body": lambda layers: [one for one in layers.order if one not in layers.heads],
    "norms": lambda layers: layers.of_kind(BATCH),
    "norms:all": lambda layers: layers.of_kind(NORMS),
    "all": lambda layers: layers.order,
    "none": lambda layers: (),
}


def _terms(words: str) -> list[tuple[str, str]]:
    """Signs and words, in order."""
    first, *rest = (piece.strip() for piece in SIGNS.split(words))
    pairs = [("+", first), *zip(rest[::2], rest[1::2])]
    if not all(word for _, word in pairs):
        raise BadExperiment(f"layers are '{words}'; expected words joined by + and -, such as head+norms.")
    return pairs


def _owner(name: str) -> str:
    """The path of the module that owns a tensor."""
    return name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]


def _uses(module: nn.Module, example: Tensor, owners: Mapping[str, set[str]]) -> tuple[list[str], set[str]]:
    """Layers in the order of their first use, and those whose output is the network's through no other layer."""
    tensors = {name: value.detach().clone() for name, value in tensors_of(module).items()}
    for name, _ in module.named_parameters():
        tensors[name].requires_grad_(tensors[name].is_floating_point())
    names = {id(value): sorted(owners.get(name, {_owner(name)})) for name, value in tensors.items()}
    with torch.enable_grad():
        output = functional_call(module.eval(), tensors, (example,))
    used, heads = list[str](), set[str]()
    seen, waiting = set[Any](), [(output.grad_fn, False, True)]
    while waiting:
        node, done, last = waiting.pop()
        if done:
            used += (
                [] if _turns(node) else [layer for layer in dict.fromkeys(_weights(node, names)) if layer not in used]
            )
            continue
        if node is None or (node, last) in seen:
            continue
        first = not ({(node, True), (node, False)} & seen)
        seen.add((node, last))
        here = _weights(node, names)
        heads |= set(here) if last else set()
        waiting += [(node, True, last)] if first else []
        waiting += [(child, False, last and not here) for child, _ in node.next_functions]
    return used, heads


def _weights(node: Any, names: Mapping[int, list[str]]) -> list[str]:
    """The layers whose tensors an operation takes, as they are or turned."""
    found = []
    for child, _ in node.next_functions:
        while child is not None and len(child.next_functions) == 1 and _turns(child):
            child = child.next_functions[0][0]
        if child is not None and child.name() == "torch::autograd::AccumulateGrad":
            found += names[id(child.variable)]
    return found


def _turns(node: Any) -> bool:
    """Whether an operation leaves numbers as they are."""
    return node.name().removesuffix("Backward0") in TURNS
