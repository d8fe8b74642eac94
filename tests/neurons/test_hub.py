"""Networks of `transformers`, with random weights: neurons are found, and half of them cut is half of them masked."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from fedloom.layout import copied, flatten, layout_of, load
from fedloom.neurons.extract import extract
from fedloom.neurons.trace import neuron_map

TEXTS = torch.randint(2, 99, (2, 10), generator=torch.Generator().manual_seed(0))
TEXTS[1, 7:] = 0
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS = {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 1}


def padded(net: nn.Module, tokens: Tensor) -> Any:
    return net(tokens, attention_mask=(tokens != 0).long())


def decoded(net: nn.Module, tokens: Tensor) -> Tensor:
    return net(tokens, use_cache=False).logits.transpose(1, 2)


KINDS: dict[str, tuple[dict[str, Any], Callable[..., Any], int]] = {
    "DistilBertForSequenceClassification": (
        {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, **WORDS}, lambda net, x: padded(net, x).logits, 5
    ),
    "AlbertForSequenceClassification": (
        {**SMALL, **WORDS, "embedding_size": 16}, lambda net, x: padded(net, x).logits, 3
    ),
    "T5EncoderModel": (
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99},
        lambda net, x: padded(net, x).last_hidden_state.mean(1), 3,
    ),
    "GPT2LMHeadModel": ({"n_embd": 32, "n_layer": 2, "n_head": 4, **WORDS}, decoded, 4),
    "LlamaForCausalLM": ({**SMALL, **WORDS, "num_key_value_heads": 2, "tie_word_embeddings": True}, decoded, 4),
    "ViTForImageClassification": (
        {**SMALL, "image_size": 32, "patch_size": 8, "num_labels": 4}, lambda net, x: net(x).logits, 4
    ),
    "SwinForImageClassification": (
        {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32, "patch_size": 2},
        lambda net, x: net(x).logits, 8,
    ),
    "ConvNextForImageClassification": (
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 32}, lambda net, x: net(x).logits, 4
    ),
}  # fmt: skip


class Net(nn.Module):
    """A network of `transformers` with one input and one answer."""

    def __init__(self, body: nn.Module, ask: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.ask = body, ask

    def forward(self, x: Tensor) -> Tensor:
        return self.ask(self.body, x)


@pytest.mark.parametrize("name", KINDS)
def test_half_of_it(name: str) -> None:
    settings, ask, groups = KINDS[name]
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    net = Net(kind(kind.config_class(**settings)), ask).double().eval()
    x = IMAGES.double() if "Image" in name else TEXTS
    map, layout = neuron_map(net, x), layout_of(net)
    assert map.note is None
    assert map.across == ()
    assert len(map.groups) == groups
    keep = map.cut(torch.rand(map.size), 0.5)
    small = extract(net, keep, map=map, example=x)
    masked = load(copied(net), layout, flatten(net, layout) * map.expand(keep))
    for some in (x, x[:1]):  # without padding too
        torch.testing.assert_close(small(some), masked(some), rtol=1e-9, atol=1e-9)
    assert sum(p.numel() for p in small.parameters()) == int(map.parameters(keep)) < 0.8 * layout.trained
