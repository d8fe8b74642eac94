"""The tensors that lead into hidden neurons."""

from fedloom.neurons.axes import Axes
from fedloom.neurons.map import NeuronMap


def into_hidden(neurons: NeuronMap) -> list[Axes]:
    """Weights and biases of every layer but the output layer; norm layers and statistics are not among them."""
    found = []
    for tensor in neurons.tensors:
        segments = None if tensor.output is None else neurons.axes[tensor.name][tensor.output]
        if tensor.weight and segments and all(segment.group in neurons.groups for segment in segments):
            found.append(tensor)
    return found
