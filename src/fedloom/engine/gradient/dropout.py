"""Dropout that is drawn from a key, so that every engine drops the same units."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedloom.chance import absorb, uniform
from fedloom.engine.gradient.recompute import recomputing
from fedloom.errors import BadModel
from fedloom.layout import copied


class KeyedDropout(nn.Module):
    """Drops each number with probability `p` by hashing (key, place in the network, call, place in the batch).

    With `channels` whole channels of an example are dropped.
    """

    key: Tensor

    def __init__(self, p: float, place: int, channels: bool = False) -> None:
        super().__init__()
        self.p, self.place, self.channels = p, place, channels
        self.calls = 0  # in this pass through the network: a layer used twice drops other units each time
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Dropout for one client: `key` is a number, `x` [B, ...]."""
        if not self.training or self.p == 0:
            return x
        with torch._C.DisableTorchFunction():  # its own calls are not the network's
            return x * self.scale(self.key, x.shape, x)

    def scale(self, key: Tensor, shape: torch.Size, like: Tensor) -> Tensor:
        """0 for dropped units, else 1 / (1 - p); `key` [...] gives [..., *shape], which broadcasts over channels."""
        if recomputing():  # torch.utils.checkpoint runs a part of the network again
            if self.calls > 1:
                raise BadModel(
                    "a dropout layer that the network uses more than once lies in a part that torch.utils.checkpoint "
                    "runs again, so that its place is unknown; give each use a layer of its own."
                )
        else:
            self.calls += 1
        if self.channels:
            shape = torch.Size((*shape[:2], *(1,) * (len(shape) - 2)))
        index = torch.arange(shape.numel(), device=like.device).view(shape)
        keys = absorb(absorb(absorb(key, self.place), self.calls).view(*key.shape, *(1,) * len(shape)), index)
        kept = (uniform(keys) >= self.p).to(like.dtype)
        return kept / (1 - self.p) if self.p < 1 else kept


CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def keyed(module: nn.Module) -> nn.Module:
    """A copy of a network in which every dropout layer is keyed."""
    module = copied(module)
    device = next((value.device for value in module.parameters()), None)
    for place, (name, part) in enumerate(list(module.named_modules(remove_duplicate=False))):
        if type(part) is nn.Dropout or type(part) in CHANNELS:
            layer = KeyedDropout(part.p, place, type(part) in CHANNELS)
            parent, _, last = name.rpartition(".")
            if not name:
                return layer
            setattr(module.get_submodule(parent), last, layer.to(device))
    return module


def keys_of(module: nn.Module, key: Tensor) -> dict[str, Tensor]:
    """The key of every keyed layer for one new pass, as `functional_call` takes it."""
    layers = {name: part for name, part in module.named_modules() if isinstance(part, KeyedDropout)}
    for layer in layers.values():
        layer.calls = 0
    return {f"{name}.key": key for name in layers}
