"""Dropout by key: the right rate, and chance that depends on nothing but the key."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedloom.chance import Chance
from fedloom.engine.gradient.dropout import KeyedDropout, keyed, keys_of
from fedloom.errors import BadModel

KEYS = Chance(1, 1).key("network", torch.arange(200))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rate_and_scale(p: float) -> None:
    scale = KeyedDropout(p, 3).scale(KEYS, torch.Size((5, 40)), torch.zeros(1))
    assert scale.shape == (200, 5, 40)
    values = scale.unique()
    assert torch.allclose(values, torch.tensor([0.0, 1 / (1 - p)]))
    spread = (p * (1 - p) / scale.numel()) ** 0.5
    assert abs(float((scale == 0).float().mean()) - p) < 4 * spread
    assert abs(float(scale.mean()) - 1) < 4 * spread / (1 - p)  # what is kept makes up for what is dropped


def test_places_keys_and_positions_are_independent() -> None:
    shape = torch.Size((2, 50))
    one, two = (KeyedDropout(0.5, place).scale(KEYS, shape, torch.zeros(1)) > 0 for place in (1, 2))
    for a, b in ((one, two), (one[:-1], one[1:]), (one[:, 0], one[:, 1]), (one[..., :-1], one[..., 1:])):
        assert abs(float((a == b).float().mean()) - 0.5) < 4 * 0.5 / a.numel() ** 0.5


def test_a_short_batch_drops_what_the_padded_one_does() -> None:
    whole, short = (KeyedDropout(0.5, 1).scale(KEYS[:3], torch.Size((rows, 7)), torch.zeros(1)) for rows in (6, 4))
    assert torch.equal(whole[:, :4], short)


def test_one_key_is_a_row_of_many() -> None:
    x = torch.ones(4, 7)
    many = KeyedDropout(0.5, 1).scale(KEYS[:3], x.shape, x)
    for row in range(3):
        layer = KeyedDropout(0.5, 1)
        layer.key = KEYS[row]
        assert torch.equal(layer(x), many[row])


def test_a_layer_used_twice_drops_other_units_each_time() -> None:
    layer, x = KeyedDropout(0.5, 1), torch.ones(20, 20)
    passes = []
    for _ in range(2):
        layer.key = keys_of(nn.Sequential(layer), KEYS[0])["0.key"]  # a new pass through the network
        passes.append((layer(x), layer(x)))
    (first, second), again = passes
    assert abs(float((first == second).float().mean()) - 0.5) < 0.1
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])


def test_off_in_evaluation_and_at_zero() -> None:
    x = torch.ones(3, 4)
    assert torch.equal(KeyedDropout(0.5, 1).eval()(x), x)
    assert torch.equal(KeyedDropout(0.0, 1).train()(x), x)


class Twice(nn.Module):
    """The same dropout under two names, as often written."""

    def __init__(self) -> None:
        super().__init__()
        drop = nn.Dropout(0.5)
        self.body = nn.Sequential(nn.Linear(4, 4), drop, nn.Linear(4, 4), drop)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.body(x)
        return result


@pytest.mark.parametrize(
    "network",
    [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Sequential(nn.Dropout(0.7))), nn.Dropout(0.2), Twice()],
    ids=["nested", "alone", "shared"],
)
def test_every_dropout_is_keyed_in_a_copy(network: nn.Module) -> None:
    before = [(name, part.p) for name, part in _named(network) if isinstance(part, nn.Dropout)]
    copy = keyed(network)
    assert [(name, part.p) for name, part in _named(copy) if isinstance(part, KeyedDropout)] == before
    assert not any(isinstance(part, nn.Dropout) for part in copy.modules())
    assert not any(isinstance(part, KeyedDropout) for part in network.modules())
    places = [part.place for _, part in _named(copy) if isinstance(part, KeyedDropout)]
    assert len(set(places)) == len(places)


def test_keys_reach_every_layer_and_are_not_saved() -> None:
    network = keyed(nn.Sequential(nn.Dropout(0.3), nn.Sequential(nn.Dropout(0.7))))
    assert set(keys_of(network, KEYS[0])) == {"0.key", "1.0.key"}
    assert not network.state_dict()


def _named(network: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(network.named_modules(remove_duplicate=False))


@pytest.mark.parametrize(("layer", "shape"), [(nn.Dropout1d, (5, 40, 3)), (nn.Dropout2d, (5, 40, 3, 2))])
def test_layers_that_drop_channels_drop_them_whole(layer: type[nn.Module], shape: tuple[int, ...]) -> None:
    network, x = keyed(nn.Sequential(layer(0.5))), torch.ones(shape)
    network.get_submodule("0").key = KEYS[0]
    found = network(x).flatten(2)
    assert torch.equal(found, found[:, :, :1].expand_as(found))
    assert abs(float((found == 0).float().mean()) - 0.5) < 4 * 0.5 / 200**0.5
    many = KeyedDropout(0.5, 1, channels=True).scale(KEYS[:3], torch.Size(shape), x)
    assert torch.equal(
        many[0].expand(shape), KeyedDropout(0.5, 1, True).scale(KEYS[0], torch.Size(shape), x).expand(shape)
    )


def test_a_block_that_is_run_again_in_the_backward_pass_drops_the_same() -> None:
    layer, shared = KeyedDropout(0.5, 1), KeyedDropout(0.5, 2)
    layer.key = shared.key = KEYS[0]
    x = torch.ones(20, 20, requires_grad=True)
    answer = checkpoint(layer, x, use_reentrant=False)
    (grad,) = torch.autograd.grad(answer.pow(2).sum() / 2, x)
    assert torch.equal(grad, answer * (answer > 0) * 2)  # y = 2x where kept
    answer = checkpoint(lambda x: shared(shared(x) ** 2) ** 2, x, use_reentrant=False)
    with pytest.raises(BadModel, match="more than once"):
        torch.autograd.grad(answer.sum(), x)
