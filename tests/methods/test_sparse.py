"""FedTiny, FedMef, FedRTS and FedDST: FedAvg where nothing is sparse, budgets that hold, zeros, offers and votes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.sparsity import Sparsity, exchanged, offered, prunable
from fedloom.core.types import Batch
from fedloom.core.work import Work
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddst import feddst
from fedloom.methods.fedmef import fedmef
from fedloom.methods.fedrts import fedrts
from fedloom.methods.fedtiny import fedtiny
from fedloom.parts.local.candidates import Candidates
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.prox import Prox
from fedloom.parts.mask import posterior
from fedloom.parts.mask.posterior import gamma_draw
from fedloom.parts.select.uniform import Uniform
from worlds import Run, played, small, world

EVERY = {"alpha": 0.5, "every": 1}
METHODS = {
    "fedtiny": fedtiny(0.5, **EVERY),  # type: ignore[arg-type]
    "fedmef": fedmef(0.5, 0.1, **EVERY),  # type: ignore[arg-type]
    "fedrts": fedrts(0.5, **EVERY),  # type: ignore[arg-type]
    "feddst": feddst(0.5, **EVERY),  # type: ignore[arg-type]
}
each = pytest.mark.parametrize("method", [pytest.param(small(one), id=name) for name, one in METHODS.items()])


def masks(run: Run) -> list[Tensor]:
    """The mask that every round was sent."""
    return [task.mask[0] for task in run.tasks if task.mask is not None]


@pytest.mark.parametrize("make", [fedtiny, fedmef, fedrts, feddst])
def test_a_density_of_1_is_fedavg(make: type[Method]) -> None:
    method = small(make(density=1.0, **EVERY))  # type: ignore[call-arg]
    assert torch.equal(played("normed", method).model, played("normed", small(fedavg())).model)


@each
def test_budgets_hold_and_masks_change(method: Method) -> None:
    here, run = world("normed"), played("normed", method, 4)
    sent = [*masks(run), run.memory["mask"]["mask"]]
    counts = method.mask.sparsity.counts(here.setting)  # type: ignore[attr-defined]
    for mask in sent:
        assert [int(mask[span.place].sum()) for span in prunable(here.setting)] == counts
    assert torch.equal(sent[0], sent[1]), "round 1 exchanges nothing"
    if method.local != small(METHODS["feddst"]).local:  # what not all clients drop outlives what they take in
        assert not torch.equal(sent[1], sent[2])
    rest = torch.ones_like(sent[0])
    for span in prunable(here.setting):
        rest[span.place] = False
    assert all(mask[rest].all() for mask in sent)


@each
def test_what_is_not_in_use_is_zero_and_begins_at_zero(method: Method) -> None:
    run = played("normed", method, 4)
    sent = [*masks(run), run.memory["mask"]["mask"]]
    for before, after, model in zip(sent, sent[1:], run.models):
        assert not model[~after].any()
        assert not model[after & ~before].any()
        assert model[after & before].any()


@pytest.mark.parametrize("name", METHODS)
def test_alpha_0_never_changes_the_mask(name: str) -> None:
    make = {"fedtiny": fedtiny, "fedmef": fedmef, "feddst": feddst}.get(name)
    if make is None:
        return  # FedRTS draws whole masks
    run = played("mlp", small(make(0.5, alpha=0.0, every=1)))  # type: ignore[operator]
    assert torch.equal(run.memory["mask"]["mask"], masks(run)[0])


def test_rounds_without_an_exchange_offer_nothing() -> None:
    run = played("mlp", small(fedtiny(0.5, alpha=0.5, every=2)), 4)
    assert [sorted(reply.extras) for reply in run.replies] == [[], [], ["places", "values"], []]
    assert Sparsity(until=20).adjusts(21)
    assert not Sparsity(until=20).adjusts(31)
    assert not Sparsity().adjusts(1)


def test_offers_are_the_highest_dense_gradients_of_what_is_not_in_use() -> None:
    here, method = world("mlp"), small(fedtiny(0.5, **EVERY), work=Work(steps=1, batch=0))  # type: ignore[arg-type]
    run = played("mlp", method, 2)
    task, reply = run.tasks[1], run.replies[1]
    assert task.mask is not None
    (first, second), part = prunable(here.setting), method.mask.sparsity.part(2)  # type: ignore[attr-defined]
    for row, client in enumerate(reply.ids.tolist()):
        examples = here.shards.examples[sum(here.shards.sizes[:client]) :][: here.shards.sizes[client]]
        weight = torch.full((1, len(examples)), 1 / len(examples))
        batch = Batch(here.data.x[examples][None], here.data.y[examples][None], weight, torch.zeros(1).long())
        seen = torch.where(task.mask[0], reply.params[row], 0)[None].clone()
        grads = PlainGradient(here.setting)(seen, batch)[0][0]
        places, values = reply.extras["places"][row], reply.extras["values"][row]
        known = places >= 0
        assert not task.mask[0][places[known]].any()
        torch.testing.assert_close(values[known], grads[places[known]], rtol=1e-4, atol=1e-6)
        for span in (first, second):
            inactive = torch.where(task.mask[0, span.place], -1, grads[span.place].abs())
            count = int(part * int(task.mask[0, span.place].sum()))
            mine = places[known & (places >= span.start) & (places < span.stop)]
            assert len(mine) == min(count, int((inactive >= 0).sum()))
            if len(mine):
                assert inactive[mine - span.start].min() >= inactive.sort(descending=True).values[count - 1] - 1e-6
        assert known.any()


def test_random_growth_is_another_choice() -> None:
    chosen, drawn = (played("mlp", small(fedtiny(0.5, growth=how, **EVERY))) for how in ("gradient", "random"))  # type: ignore[arg-type]
    assert not torch.equal(chosen.memory["mask"]["mask"], drawn.memory["mask"]["mask"])


def test_blocks_take_turns() -> None:
    places = [torch.tensor([number]) for number in range(5)]
    turns = [[int(one) for one in Sparsity(every=2, blocks=2).turn(number, places)] for number in (3, 5, 7)]
    assert turns == [[1, 3], [0, 2, 4], [1, 3]]


def test_extrusion_shrinks_what_is_dropped() -> None:
    here, run = world("mlp"), played("mlp", small(fedtiny(0.5, **EVERY)), 2)  # type: ignore[arg-type]
    task, rule = run.tasks[1], Candidates(Sparsity(0.5, **EVERY), extrude=0.1)  # type: ignore[arg-type]
    assert task.mask is not None
    params, grads = torch.where(task.mask, run.replies[1].params, 0), torch.zeros_like(run.replies[1].params)
    found = rule.correct(task, {}, params, params, grads)
    low = found != 0
    torch.testing.assert_close(found[low], 0.2 * params[low])
    for span in prunable(here.setting):
        count = int(rule.sparsity.part(2) * int(task.mask[0, span.place].sum()))
        assert low[:, span.place].sum(1).tolist() == [count] * len(low)
        assert (low[:, span.place] <= task.mask[:, span.place]).all()
    assert torch.equal(rule.correct(task._replace(round=1), {}, params, params, grads), grads)


# ---- FedDST


def test_clients_change_masks_within_their_budget() -> None:
    here, run = world("normed"), played("normed", small(METHODS["feddst"]), 2)
    sent, own = masks(run)[1], run.replies[1].mask
    assert own is not None
    assert (own != sent).any(1).all()
    for span, count in zip(prunable(here.setting), Sparsity(0.5).counts(here.setting)):
        assert own[:, span.place].sum(1).tolist() == [count] * len(own)
    assert not run.replies[1].params[own & ~sent].any()
    assert torch.equal(run.replies[0].mask[0], masks(run)[0])  # type: ignore[index]


def test_equal_masks_merge_to_the_mean_by_examples() -> None:
    run = played("mlp", small(feddst(0.5, alpha=0.0, every=1)), 2)
    reply, mask = run.replies[1], masks(run)[1]
    weight = reply.report["examples"].float()
    mean = (weight @ reply.params) / weight.sum()
    torch.testing.assert_close(run.model[mask], mean[mask], rtol=1e-5, atol=1e-6)
    assert torch.equal(run.memory["mask"]["mask"], mask)


def test_a_client_alone_decides() -> None:
    method = small(METHODS["feddst"], select=Uniform(1))
    run = played("normed", method, 2)
    assert torch.equal(run.replies[1].mask[0], run.memory["mask"]["mask"])  # type: ignore[index]
    assert not torch.equal(run.memory["mask"]["mask"], masks(run)[1])


# ---- FedRTS


def test_posteriors_grow_by_the_strength_on_what_is_in_use() -> None:
    run = played("mlp", small(fedrts(0.5, strength=3.0, every=100)), 3)
    memory, mask = run.memory["mask"], masks(run)[0]
    total = memory["alpha"] + memory["beta"] - 2
    torch.testing.assert_close(total, torch.where(mask, 9.0, 0.0).double())
    assert torch.equal(memory["mask"], mask)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_votes(gamma: float) -> None:
    here, run = world("mlp"), played("mlp", small(fedrts(0.5, gamma, strength=1.0, every=100)), 1)
    memory, mask, reply = run.memory["mask"], masks(run)[0], run.replies[0]
    weight = reply.report["examples"].double() / reply.report["examples"].sum()
    for span in prunable(here.setting):
        active = mask[span.place].nonzero().flatten() + span.start
        kappa = len(active) - int(0.2 * len(active))
        votes = torch.zeros(len(reply.ids) + 1, len(active)).double()
        for row, values in enumerate((*reply.params, run.model)):
            votes[row, values[active].abs().argsort(descending=True, stable=True)[:kappa]] = 1
        wanted = weight @ votes[:-1] if gamma else votes[-1]
        torch.testing.assert_close(memory["alpha"][active] - 1, wanted)


def test_the_mean_posterior_decides_where_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posterior, "gamma_draw", lambda shape, chance, which: shape)
    here, method = world("mlp"), small(fedrts(0.4, **EVERY))  # type: ignore[arg-type]
    run = played.__wrapped__("mlp", method, 2)
    memory = run.memory["mask"]
    mean = memory["alpha"] / (memory["alpha"] + memory["beta"])
    for span in prunable(here.setting):
        inside, outside = mean[span.place][memory["mask"][span.place]], mean[span.place][~memory["mask"][span.place]]
        assert inside.min() >= outside.max()


def test_gamma_draws_have_their_moments() -> None:
    for shape in (1.0, 2.5, 40.0):
        found = gamma_draw(torch.full((100_000,), shape).double(), Chance(3, 1), 0)
        assert float(found.mean()) == pytest.approx(shape, rel=0.02)
        assert float(found.var()) == pytest.approx(shape, rel=0.05)
    one = gamma_draw(torch.ones(100_000).double(), Chance(3, 1), 1)
    assert float((one > 1).double().mean()) == pytest.approx(0.3679, abs=0.006)


# ---- company


def test_offers_need_their_place() -> None:
    with pytest.raises(BadExperiment, match="stands alone"):
        replace(METHODS["fedtiny"], local=Chain((Candidates(), Prox(0.1))))
    with pytest.raises(BadExperiment, match="put OwnMask"):
        replace(METHODS["feddst"], upload=Method().upload)
    for wrong in ({"density": 0.0}, {"alpha": 2.0}, {"every": 0}, {"blocks": 0}, {"spread": "wide"}):
        with pytest.raises(BadExperiment):
            Sparsity(**wrong)  # type: ignore[arg-type]


def test_exchange_and_offer_by_hand() -> None:
    model = torch.tensor([[5.0, -1.0, 2.0, 0.0, 0.0, 0.0, 9.0]])
    mask = torch.tensor([[True, True, True, False, False, False, True]])
    scores = torch.tensor([[9.0, -7.0, 9.0, 1.0, -8.0, 2.0, 0.0]])
    place = torch.arange(6)
    new = exchanged(model, mask, scores, [place], 0.34)
    assert new.int().tolist() == [[1, 0, 1, 0, 1, 0, 1]]  # -1 gives way to -8
    back = exchanged(model, mask, scores.abs() * torch.tensor([1, 2, 1, 1, 1, 1, 1]), [place], 0.34)
    assert back.int().tolist() == mask.int().tolist()  # what was just dropped may return
    assert [one.tolist() for one in offered(mask, scores, place, 0.67, 3)] == [[[4, 5, -1]], [[-8.0, 2.0, 0.0]]]
