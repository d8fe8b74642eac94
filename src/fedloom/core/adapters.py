"""What parts for adapters compute with the rank components of a network."""

from __future__ import annotations

from torch import Tensor

from fedloom.core.types import Setting
from fedloom.errors import BadExperiment
from fedloom.neurons.pairs import Pair


def adapters_of(setting: Setting, part: str) -> tuple[Pair, ...]:
    """The network's adapters, refused where there are none or where they differ in rank."""
    pairs = setting.neurons.pairs
    if not pairs:
        raise BadExperiment(
            f"{part} works on the rank components of adapters, and the network has none in which A and B are trained; "
            "give it some, as in --adapter lora."
        )
    if len({pair.rank for pair in pairs}) > 1:
        ranks = ", ".join(map(str, sorted({pair.rank for pair in pairs})))
        raise BadExperiment(f"{part} needs adapters of one rank; the network's have ranks {ranks}.")
    return pairs


def product_norm(a: Tensor, b: Tensor) -> Tensor:
    """The Frobenius norm of `B A` [...], from rows of components a [..., r, n] and b [..., r, m]."""
    squares = (a @ a.mT) * (b @ b.mT)
    return squares.sum((-2, -1)).clamp(min=0).sqrt()
