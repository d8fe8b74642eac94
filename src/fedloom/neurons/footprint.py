"""Memory of training a share of a model: weights, gradients and activations, in bytes."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedloom.errors import BadExperiment, unknown
from fedloom.layout import copied, tensors_of
from fedloom.neurons.calls import tensors_in
from fedloom.neurons.extract import extract
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.trace import neuron_map

Execution = Literal["sliced", "frozen", "active"]
EXECUTIONS: tuple[Execution, ...] = ("sliced", "frozen", "active")
BYTES = 4  # of a float32


class Footprint(NamedTuple):
    """Bytes that training holds at the same time."""

    weights: int  # with running statistics and frozen weights
    gradients: int  # of the numbers that are trained
    activations: int  # results of every step of the network, for a batch

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(self)


def footprint(
    model: nn.Module,
    example: Tensor,
    share: float,
    batch: int = 1,
    execution: Execution = "sliced",
    map: NeuronMap | None = None,
) -> Footprint:
    """Bytes that a client with this share of every layer's neurons holds.

    Args:
        model: any module that `neuron_map` understands.
        example: a batch of inputs, of which the first is run.
        share: the part of the neurons that is trained.
        batch: examples in a step.
        execution: `sliced` cuts the rest away. `frozen` runs the whole network and trains the share: whole weights and
            activations, gradients of the share. `active` counts as FedSPU's figure 5 does, with activations of the
            trained neurons only, which is less than a network holds that runs as a whole.
        map: the model's neurons, if they are known already.
    """
    if execution not in EXECUTIONS:
        raise BadExperiment(unknown("execution", execution, EXECUTIONS))
    if batch < 1:
        raise BadExperiment(f"batch is {batch}; a step has at least 1 example.")
    map = neuron_map(model, example) if map is None else map
    keep = map.cut(-torch.arange(map.size, dtype=torch.float64), share)  # any neurons: only their number matters
    whole = torch.ones_like(keep)
    inside = {axes.name for axes in map.tensors}
    base = sum(t.nbytes for name, t in tensors_of(model).items() if name not in inside and t.is_floating_point())
    runs = copied(model) if execution == "frozen" else extract(model, keep, map=map)
    return Footprint(
        weights=base + int(map.bytes(keep if execution == "sliced" else whole)),
        gradients=BYTES * int(map.parameters(keep)),
        activations=BYTES * batch * _Counted(runs.eval()).of(example[:1]),
    )


class _Counted(TorchFunctionMode):
    """Counts the numbers in the results of a network's calls; results that share memory count once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.seen: dict[int, Tensor] = {}  # held: freed memory would be used again and count once

    def of(self, x: Tensor) -> int:
        """Numbers for this input, without the input."""
        with torch.no_grad(), self:
            self.model(x)
        own = {tensor.untyped_storage().data_ptr() for tensor in (x, *tensors_of(self.model).values())}
        return sum(result.numel() for place, result in self.seen.items() if place not in own)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call and count its results."""
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            self.seen.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return result
