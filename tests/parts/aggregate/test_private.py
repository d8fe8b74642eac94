"""PrivateMean: the influence of one client, the noise, refused methods, and epsilon."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Select
from fedloom.core.types import Cohort, Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods import METHODS
from fedloom.methods.fedavg import fedavg
from fedloom.methods.scaffold import ControlVariates
from fedloom.parts.aggregate.epsilon import spent
from fedloom.parts.aggregate.private_mean import PrivateMean, private
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.prox import Prox
from fedloom.parts.select.bernoulli import Bernoulli
from fedloom.parts.select.everyone import Everyone, SomeSend
from fedloom.parts.select.uniform import Uniform
from fedloom.runs.experiment import Experiment
from worlds import world

HERE = world("mlp")
MODEL = torch.linspace(-1, 1, 7)
ALLOWED = {
    *("fedavg", "fedprox", "federated-dropout", "fjord", "fedrolex", "heterofl", "splitfl", "ra-fed"),
    *("fedspu", "fedumf", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fiarse", "depthfl"),
    *("local-training", "fedavg-ft", "fedper", "lg-fedavg", "fedrep", "fedbabu", "fedbn", "ditto", "apfl", "pfedme"),
    "fedit",
}


def reply(params: Tensor, arrived: list[bool], mask: Tensor | None = None, number: int = 1) -> Reply:
    """The reply as the server reads it."""
    come = torch.tensor(arrived)
    sent = come[:, None].expand_as(params) if mask is None else mask & come[:, None]
    params = torch.where(sent, params, MODEL)
    report = {"examples": torch.arange(len(params)) + 1}
    return Reply(torch.arange(len(params)), params, mask, {}, report, come, chance=Chance(3, number))


def call(part: PrivateMean, what: Reply) -> Tensor:
    """The new model."""
    return part({}, HERE.setting, MODEL, what)[0]


# ---- the mechanism


@pytest.mark.parametrize("masked", [False, True])
def test_as_by_hand_but_for_the_noise(masked: bool) -> None:
    part, params = PrivateMean(clip=0.5, noise=1e-9, cohort=4), MODEL + torch.arange(21.0).view(3, 7) / 10
    mask = torch.arange(21).view(3, 7) % 2 == 0 if masked else None
    arrived = [True, False, True]
    total = [0.0] * 7
    for row in (0, 2):
        change = [float(params[row, p] - MODEL[p]) if mask is None or mask[row, p] else 0.0 for p in range(7)]
        length = math.sqrt(sum(x * x for x in change))
        total = [t + x * min(1, 0.5 / length) for t, x in zip(total, change)]
    expected = MODEL + torch.tensor(total) / 4  # by the cohort drawn, not by the two who came
    torch.testing.assert_close(call(part, reply(params, arrived, mask)), expected, rtol=1e-6, atol=1e-6)


def test_one_client_moves_the_sum_by_no_more_than_the_clip() -> None:
    part, params = PrivateMean(clip=0.7, cohort=5), MODEL + torch.arange(21.0).view(3, 7)
    for size in (0.0, 1.0, 1e30):
        other = params.clone()
        other[1] = MODEL - size
        with_it, without = call(part, reply(other, [True] * 3)), call(part, reply(other, [True, False, True]))
        assert float((with_it - without).norm()) <= 0.7 / 5 + 1e-6


def test_every_number_gets_the_noise_that_is_said() -> None:
    part, size = PrivateMean(clip=0.5, noise=2.0, cohort=4), 20_000
    model = torch.zeros(size)
    nobody = Reply(
        torch.arange(2), model.repeat(2, 1), torch.zeros(2, size, dtype=torch.bool), {}, {}, torch.zeros(2) > 0
    )
    draws = [part({}, HERE.setting, model, nobody._replace(chance=Chance(0, n)))[0] for n in (1, 2, 1)]
    assert torch.equal(draws[0], draws[2])
    assert draws[0].ne(0).all()  # although nobody sent anything
    assert float(draws[0].std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.03)
    assert abs(float(draws[0].mean())) < 0.01
    assert abs(float(torch.corrcoef(torch.stack(draws[:2]))[0, 1])) < 0.05


def test_normal_numbers_are_normal() -> None:
    found = Chance(1, 1).normal("test", torch.arange(200_000))
    assert found.dtype == torch.float64
    for below in (-2.0, -0.5, 0.0, 1.0, 2.5):
        assert float((found < below).double().mean()) == pytest.approx(float(norm.cdf(below)), abs=0.004)


# ---- company


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_leak_refuse_it(name: str) -> None:
    method = METHODS[name]()
    if name in ALLOWED:
        assert isinstance(private(method).aggregate.unstepped, PrivateMean)
    else:
        with pytest.raises(BadExperiment, match=r"PrivateMean does not fit this method|can become private"):
            private(method)


@dataclass(frozen=True)
class Curious(Uniform):
    """A selection that observes replies."""

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Remember a sum."""
        return {"seen": reply.params.sum()}


@dataclass(frozen=True)
class First(Select):
    """Always selects client 0."""

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        return Cohort(torch.tensor([0]), torch.tensor([True])), memory


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"select": First()}, "First chooses who takes part by more than chance"),
        ({"select": Curious()}, "Curious decides by single replies"),
        ({"local": Chain((Prox(0.1), ControlVariates()))}, "ControlVariates brings single replies"),
    ],
)
def test_why_it_refuses(parts: dict[str, Any], why: str) -> None:
    with pytest.raises(BadExperiment, match=why):
        private(replace(fedavg(), **parts))


@pytest.mark.parametrize(
    ("select", "cohort", "probability"),
    [(Uniform(7), 7, None), (Bernoulli(0.3), None, 0.3), (Everyone(), None, 1.0), (SomeSend(3), 3, None)],
)
def test_the_denominator_is_what_select_draws(select: Select, cohort: int | None, probability: float | None) -> None:
    part = private(Method(select=select)).aggregate
    assert isinstance(part, PrivateMean)
    assert (part.cohort, part.probability) == (cohort, probability)
    assert part.expected(HERE.setting) == (cohort or (probability or 0) * 12)
    with pytest.raises(BadExperiment, match="it must be told how many take part"):
        Method(select=select, aggregate=PrivateMean(cohort=99))


def test_settings_and_networks_that_cannot_be() -> None:
    for wrong in ({"clip": 0.0}, {"noise": 0.0}, {"delta": 0.0}, {"delta": 1.0}):
        with pytest.raises(BadExperiment):
            PrivateMean(**wrong)
    normed = world("normed")
    with pytest.raises(BadExperiment, match="running statistics"):
        private(fedavg()).init(normed.setting, normed.model)
    for name in ("first", "server_up", "server_down"):
        with pytest.raises(BadExperiment, match="let one client decide"):
            Experiment(aggregate="private", fleet="equal", world={name: 5})


# ---- what it costs


def by_formula(noise: float, delta: float) -> float:
    """The Gaussian mechanism's epsilon, as Balle and Wang give delta for it (arXiv:1805.06530, theorem 8)."""

    def excess(epsilon: float) -> float:
        over = norm.cdf(0.5 / noise - epsilon * noise)
        return float(over - math.exp(epsilon) * norm.cdf(-0.5 / noise - epsilon * noise) - delta)

    return float(brentq(excess, 0, 600))


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 100), (10.0, 50)])
def test_epsilon_is_that_of_the_gaussian_mechanism(noise: float, rounds: int) -> None:
    pytest.importorskip("dp_accounting")
    found = spent(noise, 1e-5, rounds)
    assert found["epsilon"] == pytest.approx(by_formula(noise / math.sqrt(rounds), 1e-5), rel=1e-3)
    assert "epsilon_amplified" not in found


def test_amplification_is_a_second_figure_and_only_for_coin_tosses() -> None:
    pytest.importorskip("dp_accounting")
    tossed = spent(2.0, 1e-5, 20, 0.1, clients=1000)
    assert tossed["epsilon_amplified"] < tossed["epsilon"] == spent(2.0, 1e-5, 20)["epsilon"]
    assert "epsilon_amplified" not in spent(2.0, 1e-5, 20, 0.1, clients=60)  # an empty cohort is too likely
    assert "epsilon_amplified" not in spent(2.0, 1e-5, 20, 1.0, clients=1000)
    assert spent(2.0, 1e-5, 0)["epsilon"] == 0


def test_a_run_says_what_it_spent() -> None:
    pytest.importorskip("dp_accounting")
    from fedloom.runs.play import run

    chosen = {"name": "private", "settings": {"clip": 0.5, "noise": 1.0}}
    result = run(Experiment(aggregate=chosen, partition="iid", clients=8, per_round=8, rounds=3))
    assert result.outcome["epsilon"] == pytest.approx(by_formula(1 / math.sqrt(3), 1e-5), rel=1e-3)
    assert result.summary()["delta"] == 1e-5


def test_without_the_package_a_run_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(BadExperiment, match=r"pip install 'fedloom\[privacy\]'"):
        private(fedavg()).init(HERE.setting, HERE.model)
