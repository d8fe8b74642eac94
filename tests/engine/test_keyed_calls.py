"""Random numbers of a network's own code: the same in every run, engine and order, and after a resume."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedloom.chance import Chance
from fedloom.core.types import Setting
from fedloom.engine.gradient.dropout import keyed
from fedloom.engine.gradient.keyed_calls import KeyedCalls, draws_of
from fedloom.engine.gradient.run_network import train_network
from fedloom.engine.local import local_engine
from fedloom.errors import BadModel
from fedloom.layout import flatten
from fedloom.runs.build import UNREPEATABLE, prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import resume, run
from worlds import World, play

KEY = Chance(1, 1).key("network", torch.arange(3))


class Net(nn.Module):
    """Digits as 8 steps of 8 numbers, through `body`, to scores."""

    def __init__(self, body: Callable[..., Tensor], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 10)
        self.body, self.layer = body, layer

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, 10]."""
        x = self.first(x.flatten(1).unflatten(1, (8, 8)))
        scores: Tensor = self.last(self.body(self, x).mean(1))
        return scores


def _attend(net: Any, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3 if net.training else 0.0, is_causal=True)


def _layer(net: Any, x: Tensor) -> Tensor:
    found = net.layer(x)
    return found[0] if isinstance(found, tuple) else found  # which torch.fx takes for no tuple


def _long(net: Any, x: Tensor) -> Tensor:
    """A layer that has places before examples."""
    return net.layer(x.transpose(0, 1))[0].transpose(0, 1)  # type: ignore[no-any-return]


def _mixed(net: Any, x: Tensor) -> Tensor:
    return x + 0.2 * x[torch.randperm(len(x))] if net.training else x


def _skipped(net: Any, x: Tensor) -> Tensor:
    """A layer that is left out at random."""
    return x if net.training and torch.rand(()) < 0.5 else net.layer(x)


def _checkpointed(net: Any, x: Tensor) -> Tensor:
    return checkpoint(net.layer, x, use_reentrant=False)  # type: ignore[no-any-return]


NETS: dict[str, Callable[[], nn.Module]] = {
    "F.dropout": lambda: Net(lambda net, x: F.dropout(x, 0.3, net.training)),
    "in place": lambda: Net(lambda net, x: F.dropout(x + 0, 0.3, net.training, inplace=True)),
    "torch.dropout": lambda: Net(lambda net, x: torch.dropout(x, 0.3, net.training)),
    "alpha": lambda: Net(_layer, nn.AlphaDropout(0.3)),
    "features": lambda: Net(_layer, nn.FeatureAlphaDropout(0.3)),
    "channels": lambda: Net(_layer, nn.Dropout1d(0.3)),
    "rrelu": lambda: Net(_layer, nn.RReLU()),
    "attention": lambda: Net(_attend),
    "MultiheadAttention": lambda: Net(
        lambda net, x: net.layer(x, x, x)[0], nn.MultiheadAttention(12, 2, dropout=0.3, batch_first=True)
    ),
    "TransformerEncoder": lambda: Net(
        _layer, nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 16, 0.3, batch_first=True), 2)
    ),
    "places first": lambda: Net(
        lambda net, x: net.layer(x.transpose(0, 1)).transpose(0, 1), nn.TransformerEncoderLayer(12, 2, 16, 0.3)
    ),
    "LSTM": lambda: Net(_layer, nn.LSTM(12, 12, 2, dropout=0.3, batch_first=True)),
    "GRU both ways": lambda: Net(_layer, nn.GRU(12, 6, 3, dropout=0.3, batch_first=True, bidirectional=True)),
    "RNN, places first": lambda: Net(_long, nn.RNN(12, 12, 2, dropout=0.3)),
    "noise": lambda: Net(lambda net, x: x + 0.1 * torch.randn_like(x) if net.training else x),
    "noise in place": lambda: Net(lambda net, x: x * torch.empty_like(x).uniform_(0.5, 1.5) if net.training else x),
    "mask": lambda: Net(lambda net, x: x * torch.bernoulli(torch.full(x.shape, 0.7)) if net.training else x),
    "order": lambda: Net(_mixed),
    "depth": lambda: Net(_skipped, nn.Linear(12, 12)),
    "checkpointed": lambda: Net(_checkpointed, nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.3), nn.Tanh())),
}


def _experiment(**changes: Any) -> Experiment:
    """A few clients whose last batches are short."""
    training = {"epochs": 1, "batch": 16, "rate": 0.1}
    return Experiment(**{"clients": 8, "per_round": 3, "rounds": 2, "training": training, **changes})


def _net(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]()


def _end(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.state_dict())


@pytest.mark.parametrize("name", NETS)
def test_two_runs_resume_chunks_and_the_loop_agree(name, tmp_path):
    net = _net(name)
    once = _end(run(_experiment(), model=net).model)
    torch.manual_seed(7)  # nothing is drawn from torch's own generator
    run(_experiment(rounds=1), model=net, out=tmp_path / "half")
    resumed = _end(resume(tmp_path / "half", model=net, rounds=2).model)
    loop = _end(run(_experiment(engine="loop"), model=net).model)
    alone = _end(run(_experiment(chunk=1), model=net).model)
    for key, value in once.items():
        assert torch.equal(value, resumed[key]), key
        assert torch.allclose(value, loop[key], atol=1e-5), key
        assert torch.allclose(value, alone[key], atol=1e-5), key


@pytest.mark.parametrize("name", ["F.dropout", "attention", "MultiheadAttention", "noise"])
def test_gradients_of_cohorts_draw_what_plain_ones_do(name):
    kind = "vmapped" if name == "MultiheadAttention" else "swapped"
    assert prepare(_experiment(), model=_net(name)).trainer.gradient.kind == kind


@pytest.mark.parametrize("name", ["F.dropout", "TransformerEncoder", "GRU both ways", "order", "channels"])
def test_clients_on_several_cores_draw_the_same(name):
    prepared = prepare(_experiment(), model=_net(name))
    inputs, before = prepared.inputs, torch.get_num_threads()
    here = World(inputs.setting, inputs.train, inputs.shards, inputs.model)
    ends = []
    try:
        for cores in (1, 3):
            torch.set_num_threads(cores)
            engine = local_engine(here.clients(inputs.method), way="per-core")
            ends.append(play(here, inputs.method, engine, 2).model)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*ends)
    assert torch.allclose(ends[0], play(here, inputs.method, here.loop(inputs.method), 2).model, atol=1e-5)


def test_code_that_is_traced_wrongly_prints_nothing(capfd):
    run(_experiment(rounds=1), model=_net("LSTM"))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", NETS)
def test_another_seed_draws_other_numbers(name):
    net = _net(name)
    setting = prepare(_experiment(), model=net).inputs.setting
    assert setting.draws == (name not in ("channels", "checkpointed"))
    one, same, other = (_answer(setting, key) for key in (KEY[0], KEY[0], KEY[1]))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def _answer(setting: Setting, key: Tensor) -> Tensor:
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    tensors = setting.layout.split(flatten(setting.module, setting.layout))
    return train_network(setting, tensors, x, key, lambda answer: answer)


def test_no_other_generator_moves_and_short_batches_draw_what_padded_ones_do():
    x = torch.randn(6, 8, 12)
    for name in NETS:
        net = _net(name)
        with torch.random.fork_rng():
            found = draws_of(keyed(net).double(), torch.randn(6, 1, 8, 8, dtype=torch.float64))
        assert not found.unkeyed, name
    draws = (
        lambda x: F.dropout(x, 0.5),
        torch.rand_like,
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    )
    for draw in draws:
        with KeyedCalls(KEY[0]):
            whole = draw(x)
        with KeyedCalls(KEY[0]):
            short = draw(x[:4])
        assert torch.allclose(whole[:4], short, atol=1e-6)


@pytest.mark.parametrize("form", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers_one_by_one_are_torchs_own(form, both, packed):
    layer = form(5, 4, 3, dropout=1e-12, bidirectional=both, **({"proj_size": 2} if form is nn.LSTM else {})).double()
    x = torch.randn(7, 3, 5, dtype=torch.float64)
    x = nn.utils.rnn.pack_padded_sequence(x, [7, 4, 2]) if packed else x
    with KeyedCalls(KEY[0]) as calls:
        found = _tensors(layer(x))
    assert calls.calls == 2
    for one, other in zip(found, _tensors(layer.eval()(x)), strict=True):
        assert torch.allclose(one, other, atol=1e-9)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of an answer."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    return [tensor for part in value or () for tensor in _tensors(part)]


@pytest.mark.parametrize("mask", [None, "causal", "bool", "float"])
def test_attention_written_out_is_torchs_own(mask):
    q, k, v = torch.randn(3, 2, 4, 6, 8, dtype=torch.float64).unbind()
    options: dict[str, Any] = {"is_causal": mask == "causal", "scale": 0.3}
    if mask in ("bool", "float"):
        seen = torch.rand(6, 6) < 0.5
        seen[2] = False  # one place sees nothing
        options["attn_mask"] = seen if mask == "bool" else torch.zeros(6, 6).double().masked_fill(~seen, -torch.inf)
    with KeyedCalls(KEY[0]) as calls:
        found = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], dropout_p=1e-12, enable_gqa=True, **options)
    assert calls.calls == 1
    expected = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True, **options)
    assert torch.allclose(found, expected.nan_to_num(), atol=1e-9)


MANY = (20_000,)
DRAWS: dict[str, tuple[Callable[[], Tensor], float, float]] = {  # mean and variance
    "rand": (lambda: torch.rand(MANY), 1 / 2, 1 / 12),
    "randn": (lambda: torch.randn(*MANY), 0, 1),
    "randint": (lambda: torch.randint(2, 6, MANY), 3.5, 1.25),
    "randint_like": (lambda: torch.randint_like(torch.zeros(MANY), 4), 1.5, 1.25),
    "bernoulli": (lambda: torch.bernoulli(torch.full(MANY, 0.3)), 0.3, 0.21),
    "bernoulli_": (lambda: torch.empty(MANY).bernoulli_(0.3), 0.3, 0.21),
    "normal": (lambda: torch.normal(1.0, 2.0, MANY), 1, 4),
    "normal of tensors": (lambda: torch.normal(torch.ones(MANY), 2.0), 1, 4),
    "normal_": (lambda: torch.empty(MANY).normal_(1, 2), 1, 4),
    "uniform_": (lambda: torch.empty(MANY).uniform_(-1, 1), 0, 1 / 3),
    "exponential_": (lambda: torch.empty(MANY).exponential_(2), 1 / 2, 1 / 4),
    "multinomial": (lambda: torch.multinomial(torch.tensor([1.0, 3.0]), MANY[0], True), 0.75, 0.1875),
    "distributions": (lambda: torch.distributions.Normal(1.0, 2.0).sample(MANY), 1, 4),
    "dropout": (lambda: F.dropout(torch.ones(MANY), 0.2), 1, 0.25),
    "alpha dropout": (lambda: F.alpha_dropout(torch.randn(MANY), 0.2, True), 0, 1),
    "rrelu": (lambda: F.rrelu(-torch.ones(MANY), 0.1, 0.3, True), -0.2, 0.04 / 12),
}


@pytest.mark.parametrize("name", DRAWS)
def test_means_and_variances(name):
    draw, mean, variance = DRAWS[name]
    torch.manual_seed(0)
    with KeyedCalls(KEY[0]):
        first, second = draw().double(), draw().double()
    assert not torch.equal(first, second)
    assert abs(float(first.mean()) - mean) < 5 * (variance / MANY[0]) ** 0.5
    assert float(first.var()) == pytest.approx(variance, rel=0.06)


def test_orders_and_samples_without_repetition():
    with KeyedCalls(KEY[0]):
        order, some = torch.randperm(100), torch.multinomial(torch.ones(50, 10), 4)
    assert order.sort().values.tolist() == list(range(100))
    assert order.tolist() != list(range(100))
    assert all(len(set(row)) == 4 for row in some.tolist())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda net, x: x + torch.poisson(x.abs()) if net.training else x, "torch.poisson"),
        (lambda net, x: x + torch.rand(12, generator=net.own) if net.training else x, "generator of its own"),
        (lambda net, x: checkpoint(F.dropout, x, use_reentrant=False) if net.training else x, "checkpoint"),
    ],
)
def test_what_no_key_can_stand_for_is_refused(body, words):
    net = Net(body)
    net.own = None if words != "generator of its own" else torch.Generator()  # type: ignore[assignment]
    x = torch.randn(4, 1, 8, 8)
    if words == "generator of its own":
        with pytest.raises(BadModel, match=words), KeyedCalls(KEY[0]):
            net(x)
        return
    with pytest.raises(BadModel, match=words):
        prepare(_experiment(), model=net)


def test_a_run_that_cannot_be_repeated_says_so():
    net = Net(lambda net, x: x * random.random() if net.training else x)
    assert UNREPEATABLE in prepare(_experiment(), model=net).notes
    assert UNREPEATABLE not in prepare(_experiment(), model=_net("noise")).notes
