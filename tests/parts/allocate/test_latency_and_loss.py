"""LatencyAndLoss: Eq. 13 by hand, its memory, and refused settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, State
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.neurons.leading import LeadingNeurons
from fedloom.parts.allocate.budget import Fleet, by_linear_programme
from fedloom.parts.allocate.latency_and_loss import LatencyAndLoss
from world.made import FLEET, equipped, made, with_devices
from worlds import World, world

IDS = torch.arange(FLEET)
LOSS = 0.5 + torch.arange(FLEET, dtype=torch.float64) / FLEET


def reply(loss: Tensor, arrived: Tensor | None = None, ids: Tensor = IDS) -> Reply:
    """A reply with losses and nothing else."""
    none = torch.zeros(len(ids), 0)
    return Reply(ids, none, None, {}, {"loss": loss}, torch.ones(len(ids)).bool() if arrived is None else arrived)


def heard(part: LatencyAndLoss, here: World, loss: Tensor = LOSS) -> State:
    """The memory after a round in which all replies arrived."""
    return part.observe(part.init(here.setting, here.model), here.setting, here.model, reply(loss))


def test_equation_13_by_hand() -> None:
    here, models = world("mlp"), LeadingNeurons(((2,), (8,)))
    labels, examples = here.setting.fleet.labels.tolist(), here.setting.fleet.examples.tolist()
    for part, sizes in ((LatencyAndLoss(), (323, 323)), (LatencyAndLoss(models=models), (2 * 37 + 3 * 3, 323))):
        told, portion = part.importance(here.setting, IDS, LOSS)
        for client in range(FLEET):
            q = sum(min(3 * count / examples[client], 1) for count in labels[client])
            size = sizes[client % 2] / 323
            expected = examples[client] / sum(examples) * q * size * float(LOSS[client])
            assert float(told[client]) == pytest.approx(expected)
            assert float(portion[client]) == pytest.approx(size)
        plain, _ = replace(part, class_term=False).importance(here.setting, IDS, LOSS)
        expected = [n / sum(examples) * sizes[i % 2] / 323 * float(LOSS[i]) for i, n in enumerate(examples)]
        assert plain.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("models", [None, LeadingNeurons((0.3, 0.6, 1.0))])
@pytest.mark.parametrize(("delta", "relative"), [(0.0, True), (0.1, True), (1.0, True), (300.0, False)])
def test_solves_the_programme_of_this_round(delta: float, relative: bool, models: LeadingNeurons | None) -> None:
    here, work = equipped(made(fading=0.3)), Work(epochs=2, batch=6)
    part = LatencyAndLoss(delta=delta, relative=relative, work=work, models=models)
    share, memory = part(heard(part, here), here.setting, IDS, Chance(3, 2))
    told, size = part.importance(here.setting, IDS, LOSS)
    now = here.setting.fleet.devices.now(Chance(3, 2))  # type: ignore[union-attr]
    bits = 32 * 323 * size
    compute = now.cycles_per_example * 2 * here.setting.fleet.examples / now.cycles
    full = bits / now.up + bits / now.down
    unit = float((compute + full).max() / told.mean()) if relative else 1.0
    fleet = Fleet(bits, compute, full, delta * unit * told)
    best = fleet.objective(by_linear_programme(fleet, 0.6, 0.2))
    assert float(fleet.objective(share)) == pytest.approx(float(best), rel=1e-9)
    assert float((size * share).sum() / size.sum()) == pytest.approx(0.6)
    assert 0.2 - 1e-12 <= float(share.min()) < float(share.max()) <= 1
    record = part.record(memory)
    assert float(record["seconds"]) == pytest.approx(float((compute + full * share).max()))
    assert [float(record[f"{name}_share"]) for name in ("mean", "least", "largest")] == pytest.approx(
        [float(share.mean()), float(share.min()), float(share.max())]
    )


def test_everything_until_a_loss_is_known() -> None:
    here, part = world("mlp"), LatencyAndLoss()
    memory = part.init(here.setting, here.model)
    for number in (1, 2):
        share, memory = part(memory, here.setting, IDS, Chance(0, number))
        assert share.eq(1).all()
        memory = part.observe(memory, here.setting, here.model, reply(LOSS, torch.zeros(FLEET).bool()))
    one = part.observe(memory, here.setting, here.model, reply(LOSS, IDS == 3))
    share, _ = part(one, here.setting, IDS, Chance(0, 3))
    assert float(share.mean()) == pytest.approx(0.6)
    alike = heard(part, here, torch.full((FLEET,), float(LOSS[3])))  # strangers count with the mean
    assert torch.equal(share, part(alike, here.setting, IDS, Chance(0, 3))[0])


def test_remembers_the_last_that_arrived() -> None:
    here, part = world("mlp"), LatencyAndLoss()
    memory = heard(part, here)
    some = torch.tensor([5, 2, 9])
    loss = torch.tensor([7.0, torch.nan, torch.inf])
    later = part.observe(memory, here.setting, here.model, reply(loss, ids=some))
    expected = LOSS.clone()
    expected[5] = 7.0  # a diverged client tells nothing
    assert torch.equal(later["loss"], expected)
    gone = part.observe(memory, here.setting, here.model, reply(loss, torch.zeros(3).bool(), some))
    assert torch.equal(gone["loss"], LOSS)


def test_slow_links_send_less() -> None:
    here = equipped(made(up=[1e3 * (client + 1) for client in range(FLEET)], down=1e5, cycles=1e15))
    share, _ = LatencyAndLoss(delta=0.0)(heard(LatencyAndLoss(), here), here.setting, IDS, Chance(0, 2))
    assert (share.diff() >= 0).all()
    assert share[0] < 0.3 < 1 == share[-1]


def test_nothing_to_choose_is_said() -> None:
    here, forced = world("mlp"), LatencyAndLoss(budget=0.3, most=0.7)
    share, _ = forced(heard(forced, here), here.setting, IDS, Chance(0, 2))
    assert share.tolist() == pytest.approx([0.3] * FLEET)
    assert "nothing to choose" in str(forced.note(here.setting))
    assert LatencyAndLoss().note(here.setting) is None


def test_all_losses_zero() -> None:
    here, part = world("mlp"), LatencyAndLoss()
    share, _ = part(heard(part, here, torch.zeros(FLEET)), here.setting, IDS, Chance(0, 2))
    assert float(share.mean()) == pytest.approx(0.6)
    assert share.isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"budget": 0.1}, "0.1, but with most=0.8 everyone sends at least 0.2"),
        ({"budget": 1.1}, "1.1; it is at most 1"),
        ({"budget": float("nan")}, "nan"),
        ({"most": 1.0}, "1.0; it lies"),
        ({"most": -0.1}, "-0.1; it lies"),
        ({"delta": -1.0}, "-1.0; it is not negative"),
    ],
)
def test_refuses(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(BadExperiment, match=words):
        LatencyAndLoss(**wrong)  # type: ignore[arg-type]


def test_needs_devices() -> None:
    here = world("mlp")
    with pytest.raises(BadExperiment, match="LatencyAndLoss needs a fleet with devices"):
        LatencyAndLoss().init(with_devices(here.setting, None), here.model)
