"""Modules of kept heads stand on their own: they train, save and export; and a wrong map is found by its trial."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.errors import BadModel
from fedloom.layout import flatten, layout_of, load
from fedloom.neurons.axes import Axes
from fedloom.neurons.cut import Cut
from fedloom.neurons.extract import extract, scatter
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.told import Told
from fedloom.neurons.tried import tried

HEADS, SIZE, WIDTH = 4, 3, 12
X = torch.randn(5, 7, WIDTH, generator=torch.Generator().manual_seed(0))


class Attends(nn.Module):
    """Attention that writes down how many heads it has."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


class Careful(Attends):
    """The same, written so that it needs no telling."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, -1, SIZE)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Attends()


MERGE = Told(1, "reshape", (((2, 1),),))


def map_of(first: str = "view", second: Told | None = MERGE) -> NeuronMap:
    """The heads, written by hand: packed rows, columns, and heads."""
    heads = torch.arange(HEADS)
    columns = heads.repeat_interleave(SIZE)
    return NeuronMap(
        groups=("qkv",), outputs=(), widths={"qkv": HEADS}, across=(), attributes=(), divided=(),
        steps={"qkv": 1}, lists=(columns.repeat(3), columns, heads),
        tensors=(
            Axes("qkv.weight", (3 * WIDTH, WIDTH), 0, (0, None), 0, True, True, 7),
            Axes("qkv.bias", (3 * WIDTH,), 432, (0,), 0, True, True, 0),
            Axes("out.weight", (WIDTH, WIDTH), 468, (None, 1), 0, True, True, 7),
            Axes("out.bias", (WIDTH,), 612, (None,), 0, True, True, 0),
        ),
        told=(Told(0, first, (((3, 2),),)), *(() if second is None else (second,))),
    )  # fmt: skip


KEEP = {"qkv": [0, 3]}


def test_it_is_the_masked_network_and_goes_back(net: nn.Module) -> None:
    small, map, layout = extract(net, KEEP, map=map_of()), map_of(), layout_of(net)
    assert isinstance(small, Cut)
    flat = flatten(net, layout)
    masked = flat * map.expand(map.flat(KEEP))
    back = scatter(net, small, KEEP, map=map)
    assert torch.equal(flatten(back, layout), flat)
    torch.testing.assert_close(small(X), load(back, layout, masked)(X))
    for value in small.parameters():
        value.detach().fill_(7)
    after = flatten(scatter(net, small, KEEP, map=map), layout)
    assert torch.equal(after, torch.where(map.expand(map.flat(KEEP)), 7.0, flat))


def test_what_needs_no_telling_comes_back_plain(net: nn.Module) -> None:
    careful = Careful()
    map = map_of("unflatten", None)
    assert type(extract(careful, KEEP, map=map, example=X)) is Careful
    torch.testing.assert_close(extract(careful, KEEP, map=map, example=X)(X), extract(careful, KEEP, map=map)(X))
    assert isinstance(extract(net, KEEP, map=map_of(), example=X), Cut)


def test_it_trains_and_saves(net: nn.Module, tmp_path: Path) -> None:
    small = extract(net, KEEP, map=map_of())
    optimiser, before = torch.optim.Adam(small.parameters(), 0.05), small(X).detach()
    for _ in range(20):
        loss = (small(X) - X).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < (before - X).square().mean() / 2
    torch.save(small, file := io.BytesIO())
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(X), small(X))
    other = extract(net, KEEP, map=map_of())
    other.load_state_dict(small.state_dict())
    assert torch.equal(other(X), small(X))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # torch's exporter of itself
def test_it_exports(net: nn.Module, tmp_path: Path) -> None:
    import onnxruntime

    small = extract(net, KEEP, map=map_of()).eval()
    program = torch.export.export(small, (X,))
    torch.testing.assert_close(program.module()(X), small(X))
    torch.onnx.export(small, (X,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), small(X).detach(), rtol=1e-4, atol=1e-5)


def test_the_trial_passes_a_right_map_and_names_where_a_wrong_one_fails(net: nn.Module) -> None:
    tried(map_of(), net, X)
    tried(map_of(), net.double(), X.double())
    model = nn.Sequential(nn.Identity(), net.float())
    inside = replace(map_of(second=None), tensors=tuple(t._replace(name=f"1.{t.name}") for t in map_of().tensors))
    with pytest.raises(BadModel, match=r"half of its neurons fails in layer '1': shape"):
        tried(inside, model, X)
    with pytest.raises(BadModel, match=r"call number 0 .* is 'view', and was 'unflatten'"):
        tried(map_of("unflatten"), net, X)
    wrong = list(map_of().lists)
    wrong[1] = wrong[1].roll(SIZE)
    with pytest.raises(BadModel, match="not that with the half masked: the answer of layer 'out' differs"):
        tried(replace(map_of(), lists=tuple(wrong)), net, X)


def test_groups_of_one_layer_keep_equally_many() -> None:
    map = replace(map_of(), groups=("qkv", "other"), widths={"qkv": HEADS, "other": 4}, alike=(("qkv", "other"),))
    with pytest.raises(BadModel, match=r"groups 'qkv' and 'other' belong to one layer.* got 2 and 3"):
        extract(Attends(), {"qkv": [0, 1], "other": [0, 1, 2]}, map=map)
