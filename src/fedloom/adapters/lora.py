"""LoRA (Hu et al., arXiv:2106.09685): frozen layers, each with a trained product of two small ones added.

A layer answers `base(x) + alpha / rank * B(A(x))`. A is drawn from the seed, uniform in +-1/sqrt(inputs); B is zero, so
that nothing changes before training. Rows of A and columns of B are the rank's components.
"""

from __future__ import annotations

import re
from copy import deepcopy
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.adapters.small import DENSE, Small, kind_of
from fedloom.chance import Chance
from fedloom.errors import BadExperiment, BadModel
from fedloom.layout import tensors_of

# how networks call the layers of queries and values, or one layer that is both
ATTENTION = (
    "q", "v", "query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "to_q", "to_v",
    "qkv", "qkv_proj", "Wqkv", "c_attn", "query_key_value",
)  # fmt: skip
READ = (nn.MultiheadAttention, nn.TransformerEncoderLayer)  # read the weights of layers inside them


class Lora(nn.Module):
    """A frozen layer and what is added to its answer."""

    a: Any
    b: Any

    def __init__(self, base: nn.Module, small: Small, scaling: float, dropout: float) -> None:
        super().__init__()
        self.base, self.a, self.b = base, small.a, small.b
        self.scaling = scaling
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        kinds = {p.dtype for p in base.parameters()}
        self.casts = not kinds.isdisjoint((torch.float16, torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        answer: Tensor = self.base(x)
        if self.casts and x.is_floating_point():
            x = x.to(self.b.weight.dtype)
        added: Tensor = self.b(self.a(self.dropout(x))) * self.scaling
        return answer + (added.to(answer.dtype) if self.casts else added)


def lora(
    module: nn.Module,
    rank: int = 8,
    alpha: float = 16.0,
    targets: str = "attention",
    dropout: float = 0.0,
    freeze_a: bool = False,
    also: tuple[str, ...] | None = None,
    seed: int = 0,
) -> nn.Module:
    """A copy of a network for fine-tuning, which shares the memory of what is frozen in it.

    Args:
        module: the network; it stays as it is.
        rank: components of every product.
        alpha: what is added is multiplied by `alpha / rank`.
        targets: `attention` (queries and values by their usual names), `linear` (dense layers), `all` (convolutions
            and embeddings too), or a regular expression of layers' names.
        dropout: of what the small layers read.
        freeze_a: train B alone, as FFA-LoRA does.
        also: layers or parameters to train besides; None: the last dense layer that is not adapted by name.
        seed: A is drawn from it.
    """
    if rank < 1:
        raise BadExperiment(f"rank (of an adapter) is {rank}; it must be 1 or more.")
    if not 0 <= dropout < 1:
        raise BadExperiment(f"dropout (of an adapter) is {dropout}; it must be at least 0 and below 1.")
    besides = _besides(module, targets, also)
    chosen = _chosen(module, targets, besides)
    trained = {id(p) for name, p in module.named_parameters() if _within(name, besides)}
    frozen = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters() if id(p) not in trained}
    twin = deepcopy(module, {**frozen})  # takes what it finds in the memo as it is
    for name, parameter in twin.named_parameters():
        parameter.requires_grad_(_within(name, besides))
    made: dict[int, Lora] = {}  # a layer of two names stays one
    for number, name in enumerate(chosen):
        layer = twin.get_submodule(name)
        if id(layer) not in made:
            made[id(layer)] = _adapted(name, layer, rank, alpha / rank, dropout, freeze_a, Chance(seed, 0), number)
    if chosen == [""]:  # the network is one layer
        return made[id(twin)]
    replaced = {name: made[id(twin.get_submodule(name))] for name in chosen}
    for name, layer in replaced.items():
        twin.set_submodule(name, layer)
    return twin


def _adapted(
    name: str, layer: nn.Module, rank: int, scaling: float, dropout: float, freeze_a: bool, chance: Chance, number: int
) -> Lora:
    """The layer with its adapter, drawn by the number of the layer."""
    make = kind_of(layer)
    assert make is not None
    base = tensors_of(layer)["weight"]
    with torch.random.fork_rng(devices=[]):  # torch draws numbers that are overwritten below
        small = make(name, layer, rank)
    kind = torch.float64 if base.dtype == torch.float64 else torch.float32
    for part in (small.a, small.b):
        part.to(base.device, kind)
    a, b = small.a.get_parameter("weight"), small.b.get_parameter("weight")
    drawn = chance.uniform("adapter", number, torch.arange(a.numel())).view(a.shape)
    with torch.no_grad():
        a.copy_((2 * drawn - 1) / sqrt(small.fan))
        b.zero_()
        if small.padding is not None:
            a[small.padding] = 0
    a.requires_grad_(not freeze_a)
    layer.requires_grad_(False)
    return Lora(layer, small, scaling, dropout)


def _layers(module: nn.Module) -> dict[str, nn.Module]:
    """All layers with numbers of their own, by all their names."""
    every = module.named_modules(remove_duplicate=False)
    return {name: layer for name, layer in every if next(layer.parameters(recurse=False), None) is not None}


def _besides(module: nn.Module, targets: str, also: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of what is trained besides the adapters."""
    if also is None:
        dense = [name for name, layer in _layers(module).items() if name and kind_of(layer) in DENSE]
        named = targets in ("attention", "linear", "all") or not (dense and re.search(targets, dense[-1]))
        return (dense[-1],) if dense and named else ()
    known = {name for name, _ in module.named_modules()} | {name for name, _ in module.named_parameters()}
    for name in also:
        if name not in known:
            raise BadModel(f"also names '{name}' to be trained, which the network lacks; {_has(module)}")
    return tuple(also)


def _within(name: str, names: tuple[str, ...]) -> bool:
    """Whether a parameter belongs to a named layer, or is named itself."""
    return any(name == one or name.startswith(f"{one}.") for one in names)


def _chosen(module: nn.Module, targets: str, besides: tuple[str, ...]) -> list[str]:
    """The names of the layers that get an adapter; `BadModel` if there are none, or if one cannot have any."""
    layers = {name: layer for name, layer in _layers(module).items() if not _within(name, besides)}
    inside = [name for name, layer in module.named_modules() if isinstance(layer, READ)]
    if targets == "attention":
        found = [name for name, layer in layers.items() if name.rpartition(".")[2] in ATTENTION and kind_of(layer)]
    elif targets in ("linear", "all"):
        wanted = {name: kind_of(layer) for name, layer in layers.items()}
        found = [name for name, kind in wanted.items() if (kind if targets == "all" else kind in DENSE)]
        found = [name for name in found if getattr(layers[name], "groups", 1) == 1]
        found = [name for name in found if not _within(name, tuple(inside))]
    else:
        try:
            found = [name for name in layers if re.search(targets, name)]
        except re.error as problem:
            raise BadExperiment(f"targets is '{targets}', which is no regular expression: {problem}.") from problem
    for name in found:
        if kind_of(layers[name]) is None:
            raise BadModel(
                f"layer '{name}' ({type(layers[name]).__name__}) has no adapter; adapters are for dense layers, "
                "convolutions and embeddings. Name others in adapter.targets."
            )
        if _within(name, tuple(inside)):
            raise BadModel(
                f"layer '{name}' is inside a layer of torch that reads its weight by itself, past any adapter; name "
                "others in adapter.targets."
            )
    if not found:
        raise BadModel(f"adapter.targets is '{targets}', which stands for no layer of the network; {_has(module)}")
    return found


def _has(module: nn.Module) -> str:
    """The network's layers in words, the first and last of many."""
    names = [f"{name or 'the network itself'} ({type(layer).__name__})" for name, layer in _layers(module).items()]
    shown = names if len(names) <= 12 else [*names[:8], "...", *names[-3:]]
    return f"its layers: {', '.join(shown)}."
