"""States of recurrent layers that the network's code makes itself, such as `torch.zeros(layers, batch, 64)`.

All units begin alike, so a smaller layer takes the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

LAYERS = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
CELLS = frozenset(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"))


def begun(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a recurrent function, with states as wide as its weights."""
    packed = name in LAYERS and isinstance(args[3], list | tuple)  # data, sizes of batches, states, weights
    place = 2 if packed else 1
    back = args[3] if name in CELLS else args[place + 1][1]
    states, width = args[place], back.shape[1]
    if isinstance(states, Tensor):
        states = states[..., :width]
    elif states is not None:
        states = type(states)(state[..., :width] for state in states)
    return (*args[:place], states, *args[place + 1 :])


@contextmanager
def unchecked(module: nn.Module, layers: Sequence[str]) -> Iterator[None]:
    """Let layers take states of other widths than their own, which they check in Python."""
    found = [module.get_submodule(layer) for layer in layers]
    several = [layer for layer in found if isinstance(layer, nn.RNNBase)]
    for layer in several:
        layer.__dict__["check_forward_args"] = lambda *_: None
    try:
        yield
    finally:
        for layer in several:
            layer.__dict__.pop("check_forward_args", None)
