"""Transforms of texts: tokens [n, places] with padding 0."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.data.augment.draws import uniforms
from fedloom.errors import BadExperiment

_DROP = 7  # purpose of random numbers


@dataclass(frozen=True)
class DropTokens:
    """Replace each token with chance `p` by padding (0); one token of every example always stays."""

    p: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise BadExperiment(f"p of drop-tokens is {self.p}; expected a number from 0 to 1, such as 0.1.")

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Drop tokens."""
        if x.is_floating_point() or x.dim() != 2:
            found = f"{x.dtype} of shape {tuple(x.shape[1:])}"
            raise BadExperiment(f"drop-tokens needs tokens, whole numbers [places]; examples are {found}.")
        if not x.numel():
            return x, y
        drawn = uniforms(keys, _DROP, x.shape[1]).masked_fill(x == 0, -1)
        stays = drawn == drawn.amax(1, keepdim=True)  # the token that would be dropped last
        return x.masked_fill((drawn < self.p) & ~stays, 0), y
