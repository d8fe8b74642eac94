"""Derive a model's neurons: its own code runs on an example, and is listened to."""

from typing import Any

from torch import Tensor, nn

from fedloom.errors import BadModel
from fedloom.layout import Layout, base_of, copied, layout_of
from fedloom.neurons.assemble import assemble
from fedloom.neurons.listen import listen
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.wiring import Wiring


def neuron_map(
    model: nn.Module, example: Tensor | tuple[Any, ...], layout: Layout | None = None, width: bool = False
) -> NeuronMap:
    """Derive the neurons of a model from its code and one example input.

    Neurons with frozen numbers are never cut.

    Args:
        model: any module; it is left as it is.
        example: a batch of inputs (several inputs as a tuple).
        layout: the layout of the flat vector, if it is not `layout_of(model)`.
        width: also cut residual streams that norms over neurons read, which masking and slicing treat differently.
    """
    layout = layout_of(model) if layout is None else layout
    inputs = example if isinstance(example, tuple) else (example,)
    twin = copied(model).eval()  # it runs, and its statistics must not change
    wiring = Wiring()
    _, outputs = listen(twin, inputs, wiring)
    if not outputs or any(ids.dim() < 2 or not len(ids) for ids in outputs):
        shapes = [tuple(ids.shape) for ids in outputs]
        raise BadModel(f"the model must give tensors [batch, classes, ...] for the example; got shapes {shapes}.")
    return assemble(layout, wiring, outputs, base_of(model, layout), width)
