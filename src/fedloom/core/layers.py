"""The layers of a run's network, which parts of several slots name."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

from fedloom.core.types import Setting
from fedloom.neurons.layers import Layers

_known: WeakKeyDictionary[nn.Module, Layers] = WeakKeyDictionary()


def layers_of(setting: Setting) -> Layers:
    """The layers of the setting's network, derived once."""
    if setting.module not in _known:
        _known[setting.module] = Layers(setting.module, setting.example, setting.layout)
    return _known[setting.module]
