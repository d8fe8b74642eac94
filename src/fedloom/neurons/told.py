"""Calls that are told sizes: what a network's code writes as numbers, and a cut network must be told otherwise.

Code such as `x.view(batch, tokens, heads, size)` names the number of heads. A cut network runs the same code, and these
calls are told the sizes of what was kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

# names of the functions and methods that count; sizes that follow from other tensors (flatten, view_as) do not
TOLD_SIZES = frozenset(
    ("view", "reshape", "expand", "broadcast_to", "unflatten", "split", "split_with_sizes", "chunk", "tensor_split")
)
WITHOUT = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


class Told(NamedTuple):
    """One call that is told sizes and whose answer has neurons.

    `number` counts, from 0 and in the order of one forward pass, all calls for which `told_name` gives a name, with
    neurons or not. They are counted as a `TorchFunctionMode` meets them that is entered around the module's call: calls
    inside a function of torch (`multi_head_attention_forward`) are not met and do not count.
    """

    number: int
    function: str  # its name; a run that meets another at this number takes another way than the one listened to
    axes: tuple[
        tuple[tuple[int, int], ...], ...
    ]  # for each tensor of the answer: (axis >= 0, number of the map's list)

    # A list has one entry for each entry of the whole network's axis, also where a reshape has merged heads and their
    # size or laid q, k and v behind one another. So the size of a cut axis is the kept entries of its list, as in
    # `counts[list]` of `slices`. All other sizes are as the code asks: batch and length are the run's own, -1 stays -1.


def told_name(function: Callable[..., Any], args: tuple[Any, ...]) -> str | None:
    """The name under which a function or method counts; None if it is not told sizes.

    Calls on whole numbers and bools do not count: they have no neurons, and code that builds a mask only where there is
    padding calls them or not.
    """
    name = getattr(function, "__name__", "")
    if name not in TOLD_SIZES or (args and isinstance(args[0], Tensor) and args[0].dtype in WITHOUT):
        return None
    return name
