"""Server optimisers: what nobody sent does not move, and neutral settings are the aggregate itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedloom.core.types import Reply
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedavgm import fedavgm
from fedloom.methods.feddyn import feddyn
from fedloom.methods.fedexp import Extrapolated, fedexp
from fedloom.methods.fednova import fednova
from fedloom.methods.fedprox import fedprox
from fedloom.methods.mifa import mifa
from fedloom.methods.safa import safa
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.krum import Krum
from fedloom.parts.aggregate.plain_mean import PlainMean
from fedloom.parts.aggregate.server_optimiser import ServerAdagrad, ServerAdam, ServerSgd, ServerYogi
from fedloom.parts.aggregate.stepped import Stepped
from fedloom.runs.experiment import Experiment
from fedloom.runs.set_values import with_settings
from worlds import assert_identical, everything, play, played, small, world

OPTIMISERS = [
    ServerSgd(0.7, 0.9),
    ServerSgd(0.7, 0.9, nesterov=True),
    ServerAdagrad(),
    ServerAdam(correct="keras"),
    ServerYogi(start=1e-4),
]
every_optimiser = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=str)
HERE = world("mlp")


def reply_of(params: Tensor, mask: Tensor | None = None, weight: int = 1) -> Reply:
    """Rows that all arrived."""
    ids = torch.arange(len(params))
    return Reply(ids, params, mask, {}, {"examples": torch.full_like(ids, weight)}, torch.ones_like(ids).bool())


def rounds_of(part: Stepped, masks: list[Tensor | None], garbage: float = 0.0) -> tuple[Tensor, dict[str, Tensor]]:
    """The model and memory after rounds in which two clients send these masks [2, P]."""
    model = HERE.model
    memory = part.init(HERE.setting, model)
    for number, mask in enumerate(masks):
        drawn = torch.linspace(-1, 1, 2 * len(model)).view(2, -1).roll(number * 7) * 0.1
        rows = model + drawn if mask is None else torch.where(mask, model + drawn, model)
        model, memory = part(memory, HERE.setting, model, reply_of(rows, mask))
    return model, memory


@every_optimiser
def test_what_nobody_sent_stays_with_its_moments(optimiser: ServerSgd) -> None:
    part, half = Stepped(optimiser=optimiser), torch.arange(len(HERE.model)) < len(HERE.model) // 2
    first, memory = rounds_of(part, [None, None])
    again, later = rounds_of(part, [None, None, half.expand(2, -1)])
    assert torch.equal(again[~half], first[~half])
    assert not torch.equal(again[half], first[half])
    for name, value in later.items():
        assert torch.equal(value[~half], memory[name][~half]), name


@every_optimiser
def test_halves_of_the_fleet_with_halves_of_the_model_are_two_runs(optimiser: ServerSgd) -> None:
    part, half = Stepped(optimiser=optimiser), torch.arange(len(HERE.model)) % 2 == 0
    both, _ = rounds_of(part, [torch.stack((half, ~half))] * 4)
    one, _ = rounds_of(part, [torch.stack((half, torch.zeros_like(half)))] * 4)
    other, _ = rounds_of(part, [torch.stack((torch.zeros_like(half), ~half))] * 4)
    assert torch.equal(both, torch.where(half, one, other))


@every_optimiser
def test_dense_is_the_same_for_whole_models_and_lets_moments_move_others(optimiser: ServerSgd) -> None:
    sparse, dense = Stepped(optimiser=optimiser), Stepped(optimiser=optimiser, dense=True)
    assert torch.equal(rounds_of(sparse, [None] * 3)[0], rounds_of(dense, [None] * 3)[0])
    masks = [None, torch.zeros(2, len(HERE.model), dtype=torch.bool)]
    moved = not torch.equal(rounds_of(dense, masks)[0], rounds_of(sparse, masks)[0])
    assert moved == (not isinstance(optimiser, ServerAdagrad))  # whose step is 0 where D is


@every_optimiser
def test_nobody_arrived(optimiser: ServerSgd) -> None:
    for dense in (False, True):
        part = Stepped(optimiser=optimiser, dense=dense)
        model, memory = rounds_of(part, [None])
        none = reply_of(model.repeat(2, 1))._replace(arrived=torch.zeros(2, dtype=torch.bool))
        after, later = part(memory, HERE.setting, model, none)
        assert torch.equal(after, model)
        assert_identical(later, memory)


def test_adam_without_memory_goes_by_the_sign_of_the_change() -> None:
    part = Stepped(optimiser=ServerAdam(0.25, 0.0, 0.0, 0.0))
    change = torch.linspace(-1, 1, len(HERE.model))
    new, _ = part(part.init(HERE.setting, HERE.model), HERE.setting, HERE.model, reply_of((HERE.model + change)[None]))
    torch.testing.assert_close(new - HERE.model, 0.25 * change.sign(), rtol=0, atol=1e-5)


def test_statistics_and_numbers_that_krum_left_out_have_no_moments() -> None:
    here = world("normed")
    part, trained = Stepped(optimiser=ServerAdam()), here.setting.layout.trained
    method = small(Method(aggregate=part))
    ours, plain = play(here, method, here.local(method), 1), played("normed", small(fedavg()), 1)
    assert torch.equal(ours.model[trained:], plain.model[trained:])
    assert all(len(value) == trained for value in ours.memory["aggregate"].values())
    mask = torch.zeros(3, len(HERE.model), dtype=torch.bool)
    mask[:2, :5], mask[2] = True, True
    rows = torch.where(mask, HERE.model + torch.tensor([[0.1], [0.1], [9.0]]), HERE.model)
    krum = Stepped(Krum(0.3, keep=1, overlap=0.0), ServerSgd(momentum=0.5))
    new, memory = krum(krum.init(HERE.setting, HERE.model), HERE.setting, HERE.model, reply_of(rows, mask))
    assert torch.equal((new != HERE.model).nonzero().flatten(), torch.arange(5))
    assert torch.equal(memory["step.velocity"].nonzero().flatten(), torch.arange(5))


@pytest.mark.parametrize("aggregate", [PlainMean(), mifa().aggregate, safa().aggregate], ids=str)
def test_aggregates_that_move_every_number_cover_every_number(aggregate: PlainMean) -> None:
    mask = torch.zeros(2, len(HERE.model), dtype=torch.bool)
    assert bool(aggregate.covered(HERE.model, reply_of(HERE.model.repeat(2, 1), mask)).all())
    assert not bool(CoverageMean().covered(HERE.model, reply_of(HERE.model.repeat(2, 1), mask)).any())


@pytest.mark.parametrize(
    "method",
    [
        small(fedavgm(1.0, 0.0)),
        small(fednova(), work=Work(steps=3, batch=6)),
        small(fedexp(1e6)),
    ],
    ids=["fedavgm without momentum", "fednova with equal steps", "fedexp with a large eps"],
)
def test_is_fedavg_exactly(method: Method) -> None:
    plain = small(fedavg(), work=method.work)
    assert torch.equal(played("normed", method).model, played("normed", plain).model)


def test_fedexp_by_hand() -> None:
    part, n = Extrapolated(0.0), 4
    change = torch.zeros(n, len(HERE.model))
    change[torch.arange(n), torch.arange(n)] = 0.5  # orthogonal, of equal lengths: n / 2
    for rows, length in ((change, n / 2), (change[:1].repeat(n, 1), 1.0), (change * 8, n / 2)):
        new, memory = part(part.init(HERE.setting, HERE.model), HERE.setting, HERE.model, reply_of(HERE.model + rows))
        assert float(memory["length"]) == pytest.approx(length)
        torch.testing.assert_close(new, HERE.model + length * rows.mean(0), rtol=0, atol=1e-5)


def test_rules_that_move_the_model_are_refused() -> None:
    with pytest.raises(BadExperiment, match="DynamicRegulariser moves the model"):
        replace(feddyn(), aggregate=Stepped(CoverageMean("uniform"), ServerSgd(0.5)))
    assert replace(feddyn(), aggregate=Stepped(CoverageMean("uniform")))


def test_fednova_refuses_steps_that_it_does_not_know() -> None:
    with pytest.raises(BadExperiment, match=r"momentum is 0\.9 and mu 0\.1"):
        fednova(0.9, 0.1)
    with pytest.raises(BadExperiment, match=r"method\.momentum"):
        Experiment(method={"name": "fednova", "settings": {"momentum": 0.9}}, training={"momentum": 0.5})
    with pytest.raises(BadExperiment, match=r"training\.optimiser=sgd"):
        Experiment(method="fednova", training={"optimiser": "adam"})


def test_any_method_takes_a_server_optimiser() -> None:
    def aggregate(method: str, **settings: object) -> object:
        return Experiment(**with_settings({"method": method}, settings)).build_method().aggregate

    assert aggregate("fedavg") == CoverageMean()
    assert aggregate("fedprox", **{"server.rate": 0.5}) == Stepped(CoverageMean(), ServerSgd(0.5))
    adam = {"server.optimiser": "adam", "server.rate": 0.02, "server.dense": True, "server.correct": "keras"}
    assert aggregate("fjord", **adam) == Stepped(CoverageMean(), ServerAdam(0.02, correct="keras"), True)
    assert aggregate("fedadam", **{"server.optimiser": "yogi"}) == Stepped(CoverageMean(), ServerYogi())
    assert aggregate("fedavgm", aggregate="krum") == Stepped(Krum(), ServerSgd(1.0, 0.9))
    assert Experiment(**with_settings({"method": "fedavg"}, {"rate": 0.3})).training.rate == 0.3
    with pytest.raises(BadExperiment, match=r"setting of server\.optimiser 'adam'"):
        aggregate("fedavg", **{"server.optimiser": "adam", "server.momentum": 0.5})
    with pytest.raises(BadExperiment, match=r"momentum \(of the server\) is 1"):
        ServerSgd(momentum=1.0)
    assert small(fedprox()).aggregate.unstepped == CoverageMean()


def test_memory_is_named_and_resumed() -> None:
    method = small(mifa(), aggregate=Stepped(mifa().aggregate, ServerAdam()))
    run = play(HERE, method, HERE.local(method))
    memory = run.memory["aggregate"]
    assert {"step.first", "step.second", "updates", "mean", "heard"} == memory.keys()
    assert_identical(method.aggregate.resume(HERE.setting, HERE.model, memory), memory)
    assert everything(run)["aggregate.step.second"].abs().sum() > 0
