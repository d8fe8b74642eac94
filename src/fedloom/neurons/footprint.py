"""Memory of training a share of a model: weights, gradients and activations, in bytes."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx, nn

from fedloom.errors import BadExperiment, unknown
from fedloom.layout import copied, tensors_of
from fedloom.neurons.extract import extract
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.trace import graph_of, neuron_map

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


class _Counted(fx.Interpreter):
    """Counts the numbers in the results of a network's steps; results that share memory count once."""

    def __init__(self, model: nn.Module) -> None:
        model = nn.Sequential(model)  # a model that is one layer has no name to be called by
        super().__init__(
            model, garbage_collect_values=False, graph=graph_of(model)
        )  # freed memory would be used again and count once
        self.seen: dict[int, int] = {}

    def of(self, x: Tensor) -> int:
        """Numbers for this input, without the input."""
        with torch.no_grad():
            self.run(x)
        self.seen.pop(x.untyped_storage().data_ptr(), None)
        return sum(self.seen.values())

    def run_node(self, n: fx.Node) -> Any:
        """Run one step and count its result."""
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.seen.setdefault(result.untyped_storage().data_ptr(), result.numel())
        return result
