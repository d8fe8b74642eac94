"""Adapters by name: small trained layers next to the frozen ones of a network."""

from collections.abc import Callable

from torch import nn

from fedloom.adapters.lora import lora

ADAPTERS: dict[str, Callable[..., nn.Module]] = {"lora": lora}

__all__ = ["ADAPTERS", "lora"]
