"""Gradients by the network's own code with layers that hold weights for each client."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom import lora
from fedloom.core.types import Batch, Setting
from fedloom.engine.gradient.fastest import Chosen, fastest_gradient
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.swapped import SwappedGradient
from fedloom.engine.local import local_engine
from fedloom.methods.fedit import fedit
from fedloom.methods.flexlora import flexlora
from fedloom.methods.hetlora import hetlora
from pieces import CLASSES, WORDS
from worlds import World, assert_close, everything, play, small, world, world_of


class Reads(nn.Module):
    """A text network whose code looks at values and at a layer's attributes, and draws: nothing traces it."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.query, self.value, self.wide = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 12)
        self.narrow, self.norm, self.out = nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)
        self.drop = nn.Dropout(drop)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores."""
        there = ids > 0
        x = self.words(ids).to(self.out.bias.dtype)
        mask = None if bool(there.all()) else there[:, None, None]
        q, v = (layer(x).unflatten(2, (2, 4)).transpose(1, 2) for layer in (self.query, self.value))
        rate = self.drop.p if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, q, v, attn_mask=mask, dropout_p=rate)
        x = self.norm(x + F.dropout(seen.transpose(1, 2).flatten(2), rate, self.training))
        x = x + self.drop(self.narrow(torch.relu(self.wide(x))))
        return self.out(x.mean(1))


def here(drop: float = 0.0, dtype: torch.dtype = torch.float32, targets: str = "query|value|wide|narrow") -> World:
    """The network with adapters on texts some of which have padding."""
    place = world_of(lora(Reads(drop), 4, alpha=2.0, targets=targets), world("text").data, world_clients(), dtype)
    x = place.data.x.clone()
    x[::3, 4:] = 0
    draws = drop > 0
    setting = Setting(
        place.setting.fleet, place.setting.module, place.setting.layout, place.setting.goal, x[:2], None, draws
    )
    return place._replace(setting=setting, data=place.data._replace(x=x))


def world_clients() -> tuple[Tensor, ...]:
    """Who has which examples."""
    data = world("text")
    return data.shards.examples.split(data.shards.sizes)


def test_code_that_nothing_traces_is_swapped() -> None:
    found = fastest_gradient(here().setting, here().data)
    assert found.gradient.kind == "swapped"
    assert [way for way, _ in found.slower] == ["stacked"]


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_it_is_plain_pytorch_on_short_batches_too(drop: float) -> None:
    place = here(drop, torch.float64)
    params = torch.stack([place.model, 1.1 * place.model, place.model + 0.05])
    index = torch.arange(12).view(3, 4)
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]).double()
    batch = Batch(place.data.x[index], place.data.y[index], real / real.sum(1, keepdim=True), torch.tensor([5, 6, 7]))
    swapped, plain = SwappedGradient(place.setting), PlainGradient(place.setting)
    ours, theirs = (dict(zip(("grads", "losses"), way(params, batch))) for way in (swapped, plain))
    assert_close(ours, theirs, 1e-10)
    assert_close({"y": swapped.outputs(params, batch.x)}, {"y": plain.outputs(params, batch.x)}, 1e-10)


@pytest.mark.parametrize("method", [fedit(), hetlora(gamma=0.6, penalty=0.05), flexlora()])
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_runs_are_those_of_the_loop(method, drop: float) -> None:  # type: ignore[no-untyped-def]
    place, method = here(drop), small(method)
    chosen = Chosen(SwappedGradient(place.setting))
    loop = everything(play(place, method, place.loop(method), rounds=2))
    for sliced, chunk in ((True, None), (True, 3), (False, None)):
        engine = local_engine(place.clients(method), chunk, sliced=sliced, chosen=chosen)
        assert_close(everything(play(place, method, engine, rounds=2)), loop, 2e-5)


def test_the_setting_keeps_its_own_layers_and_the_base_is_shared() -> None:
    place = here()
    before = [type(part) for part in place.setting.module.modules()]
    gradient = SwappedGradient(place.setting)
    assert [type(part) for part in place.setting.module.modules()] == before
    mine = {value.data_ptr() for value in place.setting.module.parameters()}
    assert {value.data_ptr() for value in gradient._network.parameters()} <= mine


def test_a_layer_without_a_stacked_form_is_named() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.PReLU(), nn.Linear(6, CLASSES))
    place = world_of(network, world("mlp").data, [torch.arange(10)])
    with pytest.raises(NotImplementedError, match=r"layer '2' \(PReLU\) has no stacked form"):
        SwappedGradient(place.setting)
