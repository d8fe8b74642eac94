"""Methods that give clients a part of the network, on attention and recurrent layers: masked = sliced = loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from fedloom.engine.local import local_engine
from fedloom.models.attention import transformer, vit
from fedloom.models.recurrent import gru, lstm
from pieces import CLASSES, WORDS
from worlds import METHODS, SIZES, World, assert_close, everything, play, world, world_of


class Stacked(nn.Module):
    """Attention whose layers all have stacked forms, and whose code writes down how many heads there are."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(1, 8, 3, stride=3), nn.LayerNorm(8)
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).view(x.shape[0], 4, 3, 4, 2).permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], 4, 8)
        return self.head((x + self.out(seen)).mean(1))


class Bert(nn.Module):
    """A BERT, whose code builds a mask only for batches with padding, and the mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        sizes = BertConfig(
            hidden_size=8, num_attention_heads=4, intermediate_size=12, num_hidden_layers=1, vocab_size=WORDS,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.bert, self.head = BertModel(sizes, add_pooling_layer=False), nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.bert(input_ids=tokens, attention_mask=(tokens != 0).long()).last_hidden_state
        return self.head(seen.mean(1))


NETS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: vit((1, 6, 6), CLASSES, width=8, depth=1, heads=4, patch=3),
    "transformer": lambda: transformer((7,), CLASSES, WORDS, width=8, depth=1, heads=4),
    "lstm": lambda: lstm((7,), CLASSES, WORDS, width=6, layers=2),
    "stacked": Stacked,
    "bert": Bert,
    "gru": lambda: gru((7,), CLASSES, WORDS, width=6, layers=1),
}
SUB_MODELS = ("fedrolex", "heterofl", "fedspu", "feddd", "safari")
PAIRS = [(name, network) for name in SUB_MODELS for network in ("vit", "lstm")]
PAIRS += [("fedrolex", "transformer"), ("fedrolex", "stacked"), ("fedrolex", "bert"), ("fjord", "gru")]
KINDS = {"vit": "vmapped", "stacked": "stacked", "bert": "one by one"}


@cache
def here(network: str) -> World:
    """The network on the tiny world's images or texts."""
    torch.manual_seed(0)
    data = world("mlp" if network in ("vit", "stacked") else "text").data
    return world_of(NETS[network](), data, torch.arange(sum(SIZES)).split(list(SIZES)))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap runs some calls client by client on a CPU
@pytest.mark.parametrize(("name", "network"), PAIRS)
def test_masked_and_sliced_are_the_loop(name: str, network: str) -> None:
    place, method = here(network), dict(METHODS)[name]()
    assert place.setting.neurons.size > 0
    slow = play(place, method, place.loop(method), rounds=2)
    assert not torch.equal(slow.model, place.model)
    for sliced in (False, True):
        engine = place.local(method, sliced=sliced)
        assert engine.plan.gradient == KINDS.get(network, engine.plan.gradient)
        assert engine.plan.parts == ("sliced" if sliced and method.local.traits.cuts else "masked")
        assert_close(everything(play(place, method, engine, rounds=2)), everything(slow), 1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("network", ["transformer", "lstm"])
def test_threads_that_cut_do_not_meet(network: str) -> None:
    place, method = here(network), dict(METHODS)["fedrolex"]()
    engine = local_engine(place.clients(method), way="per-core")
    assert engine.plan.parts == "sliced"
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        threaded = play(place, method, engine, rounds=2)
    finally:
        torch.set_num_threads(before)
    assert_close(everything(threaded), everything(play(place, method, place.loop(method), rounds=2)), 1e-5)
