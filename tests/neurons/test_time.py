"""Networks of the size that people bring are mapped in the time that it takes to run them a few times."""

import time

import pytest
import torch
from torch import Tensor, nn

from fedloom.models import build, example
from fedloom.neurons.extract import extract
from fedloom.neurons.trace import neuron_map


def test_a_vision_transformer() -> None:
    net = build("vit", (3, 32, 32), 10)
    begin = time.perf_counter()
    found = neuron_map(net, example((3, 32, 32)))
    assert time.perf_counter() - begin < 10  # 0.3 s here
    assert len(found.groups) == 12


class Encoder(nn.Module):
    """A sentence encoder of 22.7 million parameters, as MiniLM is, and an output layer on the mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        self.body = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)
        self.output = nn.Linear(384, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.body(tokens, attention_mask=(tokens != 0).long()).last_hidden_state.mean(1))


def test_a_sentence_encoder_of_22_million_parameters() -> None:
    torch.manual_seed(0)
    net, tokens = Encoder().eval(), torch.randint(1, 1000, (2, 32))
    begin = time.perf_counter()
    found = neuron_map(net, tokens)
    assert time.perf_counter() - begin < 25  # 1.9 s here
    assert (len(found.groups), found.note, found.across) == (12, None, ())
    assert [found.widths[group] for group in found.groups] == [12, 1536] * 6
    assert {word for group, word in found.words.items() if "self" in group} == {"heads"}
    keep = found.cut(torch.rand(found.size), 0.5)
    small = extract(net, keep, map=found)
    assert int(found.parameters(keep)) == sum(p.numel() for p in small.parameters())
    assert 0.7 < sum(p.numel() for p in small.parameters()) / found.total < 0.8  # embeddings are half of it
    assert small(tokens[:1, :7]).shape == (1, 4)  # batch and length are the run's own
