"""A module as one vector, and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from fedloom.errors import BadModel
from fedloom.layout import Layout, flatten, layout_of, load


class Odd(nn.Module):
    """A scalar, a tied matrix, a float buffer, a whole-number buffer and one that is not saved."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.tensor(5))
        self.register_buffer("mean", torch.tensor([1.5, 2.5]), persistent=False)


MODULES = {
    "linear": nn.Linear(3, 2),
    "odd": Odd(),
    "norms": nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.GroupNorm(1, 3)),
    "double": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double(),
}


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Everything a layout should find."""
    floats = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    return {**dict(module.named_parameters()), **floats}


@pytest.mark.parametrize("name", MODULES)
def test_names_shapes_and_order(name: str) -> None:
    module = MODULES[name]
    layout = layout_of(module)
    assert layout.names == tuple(tensors(module))
    assert layout.names[: len(layout.parameters)] == layout.parameters == tuple(dict(module.named_parameters()))
    assert layout.total == sum(layout.sizes) == sum(t.numel() for t in tensors(module).values())
    assert layout.trained == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", MODULES)
def test_flatten_load_and_back(name: str) -> None:
    module = MODULES[name]
    layout, before = layout_of(module), {n: t.clone() for n, t in tensors(module).items()}
    flat = flatten(module, layout)
    assert flat.shape == (layout.total,)
    assert flat.dtype == next(module.parameters()).dtype
    assert not flat.requires_grad
    assert load(module, layout, flat + 1) is module
    for key, value in tensors(module).items():
        assert torch.equal(value, before[key] + 1)
    assert torch.equal(flatten(module, layout), flat + 1)
    load(module, layout, flat)


def test_a_flat_vector_is_a_copy() -> None:
    module = nn.Linear(2, 2)
    layout = layout_of(module)
    flatten(module, layout).zero_()
    assert flatten(module, layout).any()


def test_tied_parameters_stand_once() -> None:
    layout = layout_of(Odd())
    assert "one.weight" in layout.names
    assert "two.weight" not in layout.names
    assert layout.aliases == (("two.weight", "one.weight"),)
    assert layout.with_aliases({"one.weight": 7, "gain": 1}) == {"one.weight": 7, "gain": 1, "two.weight": 7}
    module = load(Odd(), layout, torch.zeros(layout.total))
    assert module.two.weight is module.one.weight


def test_whole_numbers_stay_out() -> None:
    module = Odd(3.0)
    layout = layout_of(module)
    assert "calls" not in layout.names
    assert "norm.num_batches_tracked" not in layout.names
    load(module, layout, torch.full((layout.total,), 9.0))
    assert int(module.calls) == 5
    assert float(module.gain.detach()) == 9.0


def test_split_gives_views() -> None:
    layout = layout_of(Odd())
    flat = torch.zeros(layout.total)
    layout.split(flat)["mean"].fill_(7.0)
    layout.split(flat)["gain"].fill_(3.0)
    assert flat.sum() == 2 * 7 + 3


@given(
    st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=4),
    st.lists(st.integers(1, 3), max_size=2),
)
def test_join_is_the_opposite_of_split(shapes: list[tuple[int, ...]], lead: list[int]) -> None:
    names = tuple(f"t{place}" for place in range(len(shapes)))
    layout = Layout(names, tuple(shapes), names)
    flat = torch.arange(float(torch.Size(lead).numel() * layout.total)).view(*lead, layout.total)
    pieces = layout.split(flat)
    assert [tuple(piece.shape) for piece in pieces.values()] == [(*lead, *shape) for shape in shapes]
    assert torch.equal(layout.join(pieces, len(lead)), flat)


def test_refused_networks_are_named() -> None:
    half = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())
    with pytest.raises(BadModel, match=r"'1\.weight' is torch\.float16"):
        layout_of(half)
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(BadModel, match=r"'1\.weight' is torch\.float64"):
        layout_of(mixed)
    with pytest.raises(BadModel, match="ReLU has no parameters"):
        layout_of(nn.ReLU())
