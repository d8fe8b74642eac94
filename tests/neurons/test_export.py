"""Halves of networks that people bring stand on their own: they train, save, load, export and run elsewhere."""

import io
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from fedloom.layout import copied, flatten, layout_of, load
from fedloom.models.attention import transformer, vit
from fedloom.models.recurrent import lstm
from fedloom.neurons.cut import Cut
from fedloom.neurons.extract import extract
from fedloom.neurons.trace import neuron_map
from neurons.sequences import Packed

WORDS = torch.randint(1, 50, (3, 8), generator=torch.Generator().manual_seed(0))
WORDS[1, 5:] = 0
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Texts(nn.Module):
    """BERT in the widths of MiniLM, with two layers and few words, and an output layer over the mean."""

    def __init__(self) -> None:
        super().__init__()
        sizes = BertConfig(
            hidden_size=384, num_attention_heads=12, intermediate_size=1536, num_hidden_layers=2, vocab_size=50
        )
        self.bert, self.head = BertModel(sizes, add_pooling_layer=False), nn.Linear(384, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.bert(input_ids=tokens, attention_mask=(tokens != 0).long()).last_hidden_state
        return self.head(seen.mean(1))


class Strict(nn.Module):
    """A vision transformer's block that writes down how many heads it has."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.attention = nn.Conv2d(3, 24, 4, 4), Packed(24, 4, "literal")
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head((x + self.attention(self.norm(x))).mean(1))


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "bert": (Texts, WORDS),
    "vit": (lambda: vit((3, 16, 16), 4, depth=2), IMAGES),
    "strict": (Strict, IMAGES),
    "transformer": (lambda: transformer((8,), 4, 50), WORDS),
    "lstm": (lambda: lstm((8,), 4, 50, layers=2), WORDS),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", NETS)
def test_a_half(name: str, tmp_path: Path) -> None:
    make, x = NETS[name]
    torch.manual_seed(0)
    net = make().eval()
    map, layout = neuron_map(net, x), layout_of(net)
    keep = map.cut(torch.rand(map.size), 0.5)
    small = extract(net, keep, map=map, example=x).eval()
    assert isinstance(small, Cut) == (name in ("strict", "transformer"))
    assert sum(p.numel() for p in small.parameters()) == int(map.parameters(keep)) < 0.8 * layout.trained
    masked = load(copied(net), layout, flatten(net, layout) * map.expand(keep)).eval()
    for some in (x, x[:1]):
        torch.testing.assert_close(small(some), masked(some), rtol=1e-5, atol=1e-5)

    targets, optimiser = torch.tensor([0, 1, 2]), torch.optim.SGD(small.parameters(), 0.005)
    before = F.cross_entropy(small(x), targets)
    F.cross_entropy(small.train()(x), targets).backward()
    optimiser.step()
    assert F.cross_entropy(small.eval()(x), targets) < before
    torch.save(small, file := io.BytesIO())
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), small(x))
    again = extract(net, keep, map=map, example=x).eval()
    again.load_state_dict(small.state_dict())
    assert torch.equal(again(x), small(x))

    program = torch.export.export(small, (x,))
    torch.testing.assert_close(program.module()(x), small(x))
    torch.onnx.export(small, (x,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), small(x).detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NETS)
def test_the_whole_is_the_network_to_the_bit_and_a_quarter_is_the_masked_one(name: str) -> None:
    make, x = NETS[name]
    torch.manual_seed(0)
    net = make().eval()
    map, layout = neuron_map(net, x), layout_of(net)
    whole = extract(net, torch.ones(map.size, dtype=torch.bool), map=map)
    ours, theirs = whole(x), net(x)  # with gradients, since torch has kernels of its own without
    assert torch.equal(ours, theirs)
    grads = [torch.autograd.grad(y.square().sum(), list(m.parameters())) for y, m in ((ours, whole), (theirs, net))]
    assert all(torch.equal(a, b) for a, b in zip(*grads))
    keep = map.cut(torch.rand(map.size), 0.25)
    masked = load(copied(net), layout, flatten(net, layout) * map.expand(keep)).eval()
    torch.testing.assert_close(extract(net, keep, map=map)(x), masked(x), rtol=1e-5, atol=1e-5)


def test_what_was_cut_can_be_cut_again() -> None:
    torch.manual_seed(0)
    net = Strict().eval()
    half = extract(net, {"attention.qkv": [0, 2]}, IMAGES)
    map = neuron_map(half, IMAGES)
    assert map.widths["network.attention.qkv"] == 2
    last = extract(half, {"network.attention.qkv": [1]}, IMAGES, map)
    torch.testing.assert_close(last(IMAGES), extract(net, {"attention.qkv": [2]}, IMAGES)(IMAGES))
