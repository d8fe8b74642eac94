"""The maps of the built-in networks are those that were recorded in maps.json.

`python tests/neurons/test_golden_maps.py` records them anew, for a change that is meant.
"""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fedloom.errors import BadModel
from fedloom.models import MODELS, build, example
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.trace import neuron_map

RECORDED = Path(__file__).with_name("maps.json")
SHAPES = {"tokens": ((12,), 50), "sequences": ((12,), 50), "signals": ((9, 128), 0), "numbers": ((1, 28, 28), 0)}
SETTINGS = {
    "resnet20": ("batch", "group"),
    "resnet18": ("group",),
    "mobilenet": ("batch", "group"),
    "unet": ("instance", "none"),
}
NAMES = [f"{name} {norm}".strip() for name in MODELS for norm in SETTINGS.get(name, ("",))]


def network(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A built-in network and an example for it."""
    name, _, norm = name.partition(" ")
    shape, vocabulary = SHAPES.get(MODELS[name].takes, ((3, 32, 32), 0))
    torch.manual_seed(0)
    model = build(name, shape, 10, vocabulary, **({"norm": norm} if norm else {}))
    return model, example(shape, vocabulary)


def written(neurons: NeuronMap) -> str:
    """All that a map says, and what follows from it for some random keeps, as a hash."""
    chance = torch.Generator().manual_seed(1)
    digest = hashlib.sha256()

    def put(*values: object) -> None:
        for value in values:
            digest.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())

    put(neurons.groups, neurons.outputs, neurons.widths, neurons.across, neurons.steps, neurons.base_flops)
    for tensor in neurons.tensors:
        put(tensor._replace(along=()), *(-1 if which is None else neurons.lists[which] for which in tensor.along))
    for attribute, which in sorted(neurons.attributes):
        put(tuple(attribute), neurons.lists[which])
    for layer, parts, which in neurons.divided:
        put(layer, parts, neurons.lists[which])
    keep = torch.rand(2, neurons.full_size, generator=chance) < torch.tensor([[0.5], [0.8]])
    for rows in (False, True):
        put(neurons.expand(keep, rows), neurons.count(keep, rows))
    put(neurons.flops(keep), neurons.parameters(keep), neurons.bytes(keep))
    values = torch.rand(neurons.total, generator=chance, dtype=torch.float64)
    scores = neurons.score(values, "l1", output=True)
    put(scores.mul(1e3).round().long(), neurons.cut(-torch.arange(neurons.size).double(), 0.4))
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", json.loads(RECORDED.read_text()) if RECORDED.exists() else NAMES)
def test_the_map_of_a_built_in_network_is_as_recorded(name: str) -> None:
    recorded = json.loads(RECORDED.read_text())[name]
    assert written(neuron_map(*network(name))) == recorded


if __name__ == "__main__":
    hashes = {}
    for each in NAMES:
        try:
            hashes[each] = written(neuron_map(*network(each)))
        except BadModel as refused:
            print(each, refused)
    RECORDED.write_text(json.dumps(hashes, indent=1) + "\n")
