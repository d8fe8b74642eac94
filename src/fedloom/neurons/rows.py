"""Rows of a mask: the neurons of which it has any incoming number."""

import torch
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.neurons.map import NeuronMap


def rows_of(neurons: NeuronMap, mask: Tensor) -> Tensor:
    """Neurons [C, K + O] for which a mask [C, P] has any number that leads into them."""
    return _found((mask,), neurons)[0]


def _find(masks: tuple[Tensor, ...], neurons: NeuronMap) -> tuple[Tensor, ...]:
    mask = masks[0]
    found = torch.zeros(len(mask), neurons.full_size + 1, dtype=torch.int32, device=mask.device)
    for tensor in neurons.tensors:
        if tensor.weight and tensor.output is not None and (which := tensor.along[tensor.output]) is not None:
            part = mask[:, tensor.start : tensor.stop].view(-1, *tensor.shape).movedim(tensor.output + 1, 1)
            found.index_add_(1, neurons.lists[which], part.flatten(2).any(2).int() if part.dim() > 2 else part.int())
    return (found[:, : neurons.full_size] > 0,)


_found = Captured(_find)
