"""`lora` on the layers that have an adapter, and its refusal of all others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedloom import BadExperiment, BadModel, lora
from fedloom.layout import layout_of
from fedloom.models import build

LAYERS = {
    "dense": (lambda: nn.Linear(6, 4), torch.randn(3, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 5, 3, stride=2, padding=1), torch.randn(2, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 5, 3, stride=2, dilation=2, padding=2), torch.randn(2, 3, 9, 9)),
    "embedding": (lambda: nn.Embedding(11, 6, padding_idx=0), torch.arange(8).view(2, 4)),
}


def with_b(module: nn.Module) -> nn.Module:
    """The network with other numbers than zero in every B."""
    for name, value in module.named_parameters():
        if name.endswith("b.weight"):
            nn.init.normal_(value)
    return module


def delta(kind: str, a: Tensor, b: Tensor) -> Tensor:
    """The change of a layer's weight that its adapter stands for, written out by kind."""
    if kind == "embedding":
        return a @ b.T  # [words, width]
    if kind == "dense":
        return b @ a
    return torch.einsum("or,r...->o...", b.flatten(1), a)


@pytest.mark.parametrize("kind", LAYERS)
def test_an_adapter_is_a_change_of_the_weight_of_low_rank(kind: str) -> None:
    make, x = LAYERS[kind]
    torch.manual_seed(0)
    layer = make()
    found = lora(layer, rank=3, alpha=6.0, targets=".*|", also=())
    torch.testing.assert_close(found(x), layer(x), rtol=0, atol=0)  # B is zero
    with_b(found)
    merged = make()
    merged.load_state_dict(layer.state_dict())
    with torch.no_grad():
        merged.weight += 2.0 * delta(kind, found.a.weight, found.b.weight)
    torch.testing.assert_close(found(x), merged(x), rtol=1e-5, atol=1e-5)
    assert layout_of(found).parameters == ("a.weight", "b.weight")


def test_the_base_is_not_copied_and_the_users_network_stays_as_it_is() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    before = {name: value.data_ptr() for name, value in network.named_parameters()}
    found = lora(network, rank=2, targets="linear")
    assert found[0].base.weight.data_ptr() == before["0.weight"]
    assert found[2].weight.data_ptr() != before["2.weight"]  # the head is trained, and is the copy's own
    assert all(value.requires_grad for value in network.parameters())
    assert [type(layer).__name__ for layer in network] == ["Linear", "ReLU", "Linear"]
    assert layout_of(found).parameters == ("0.a.weight", "0.b.weight", "2.weight", "2.bias")


def test_a_is_drawn_from_the_seed_within_its_bound() -> None:
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
    one, again, other = (lora(network, targets="linear", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one[0].a.weight, again[0].a.weight)
    assert not torch.equal(one[0].a.weight, other[0].a.weight)
    assert 0.9 / 8 < float(one[0].a.weight.detach().abs().max()) <= 1 / 8
    assert not one[0].b.weight.any()


def test_attention_adapts_queries_and_values_alone() -> None:
    found = lora(build("vit", (1, 8, 8), 4, depth=1), rank=2)
    names = [name for name in layout_of(found).parameters if not name.startswith("output")]
    assert {name.split(".")[3] for name in names} == {"query", "value"}
    assert len(names) == 4


def test_a_layer_of_two_names_keeps_one_adapter() -> None:
    layer = nn.Linear(5, 5)
    network = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(5, 2))
    found = lora(network, rank=2, targets="linear")
    assert found[0] is found[2]
    assert len(layout_of(found).parameters) == 4


def test_only_b_is_trained_where_a_is_frozen() -> None:
    found = lora(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), rank=2, targets="linear", freeze_a=True)
    assert layout_of(found).parameters == ("0.b.weight", "1.weight", "1.bias")


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_base_of_half_precision_keeps_its_type(kind: torch.dtype) -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).to(kind)
    found = with_b(lora(network, rank=2, targets="linear", also=()))
    assert found[0].base.weight.dtype == kind
    assert found[0].a.weight.dtype == torch.float32
    answer = found(torch.randn(2, 6, dtype=kind))
    assert answer.dtype == kind
    answer.float().sum().backward()
    assert found[0].a.weight.grad is not None


@pytest.mark.parametrize(
    ("name", "shape", "words", "settings", "message"),
    [
        ("lstm", (12,), 30, {"targets": ".*"}, r"\(LSTM\) has no adapter"),
        ("mobilenet", (3, 16, 16), 0, {"targets": ".*"}, "has no adapter|groups"),
        ("transformer", (12,), 30, {"targets": "linear1"}, "reads its weight by itself"),
        ("mlp", (8,), 0, {}, "stands for no layer of the network; its layers: dense1"),
        ("mlp", (8,), 0, {"targets": "linear", "also": ("dense9",)}, "also names 'dense9'"),
    ],
)
def test_what_cannot_be_adapted_is_named(
    name: str, shape: tuple[int, ...], words: int, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(BadModel, match=message):
        lora(build(name, shape, 4, words), rank=2, **settings)


@pytest.mark.parametrize(("name", "value"), [("rank", 0), ("dropout", 1.0), ("targets", "(")])
def test_settings_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(BadExperiment, match=name):
        lora(nn.Linear(3, 3), **{name: value})


@pytest.mark.parametrize(
    ("name", "shape", "words", "targets"),
    [("cnn1", (1, 28, 28), 0, "all"), ("fasttext", (12,), 30, "all"), ("vit", (1, 8, 8), 0, "attention")],
)
def test_networks_by_name_take_adapters(name: str, shape: tuple[int, ...], words: int, targets: str) -> None:
    network = build(name, shape, 4, words)
    found = lora(network, rank=2, targets=targets)
    x = torch.randint(1, 30, (3, *shape)) if words else torch.randn(3, *shape)
    torch.testing.assert_close(found.eval()(x), network.eval()(x), rtol=0, atol=0)
    assert layout_of(found).total < layout_of(network).total
