"""The one place where a network's own code is run for training and for its answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.types import Setting
from fedloom.engine.gradient.dropout import keys_of
from fedloom.engine.gradient.keyed_calls import KeyedCalls
from fedloom.engine.gradient.lone_norms import LoneNorms, has_norms
from fedloom.neurons.resized import Sizes, resized

Found = TypeVar("Found")


class _Then(nn.Module):
    """A network and what follows on its answer, while its tensors are in place: checkpointed blocks run again there."""

    def __init__(self, network: nn.Module, sizes: Sizes | None) -> None:
        super().__init__()
        self.network, self.sizes = network, sizes

    def forward(self, x: Tensor, then: Callable[[Tensor], Any]) -> Any:
        """What follows on the answer."""
        with resized(self.network, self.sizes):
            answer = self.network(x)
        return then(answer)


def train_network(
    setting: Setting,
    tensors: dict[str, Tensor],
    x: Tensor,
    key: Tensor,
    then: Callable[[Tensor], Found],
    sizes: Sizes | None = None,
) -> Found:
    """Run one client's network on a batch in training, and `then` on its answer, such as loss and gradients.

    `key`: of all its random numbers in this pass; `sizes`: of a sub-model's tensors.
    """
    module = setting.module.train()
    own = {f"network.{name}": value for name, value in (tensors | keys_of(module, key)).items()}
    lone = len(x) == 1 and has_norms(module)
    with KeyedCalls(key) if setting.draws else nullcontext(), LoneNorms() if lone else nullcontext():
        found: Found = functional_call(_Then(module, sizes), own, (x, then))
    return found


def ask_network(setting: Setting, tensors: dict[str, Tensor], x: Tensor, sizes: Sizes | None = None) -> Tensor:
    """Run a network in evaluation mode. One that draws even then draws the same numbers for every batch."""
    module = setting.module.eval()
    key = torch.zeros((), dtype=torch.int64, device=x.device)
    with KeyedCalls(key) if setting.draws else nullcontext(), resized(module, sizes):
        answer: Tensor = functional_call(module, tensors, (x,))
    return answer
