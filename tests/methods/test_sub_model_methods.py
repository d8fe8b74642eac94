"""Hermes, FedMP, PruneFL, FedSelect, IST, OAP and SplitFL: FedAvg in their limits, and what is special in each."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedmp import fedmp
from fedloom.methods.fedselect_neurons import fedselect_neurons
from fedloom.methods.hermes import hermes
from fedloom.methods.ist import ist
from fedloom.methods.oap_largest import Erasing, oap_largest
from fedloom.methods.prunefl_fixed import prunefl_fixed
from fedloom.methods.splitfl import splitfl
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.regions import Regions
from fedloom.parts.select.uniform import Uniform
from pieces import Forced
from worlds import Run, changed, play, played, small, states_of, world

PLAIN = small(fedavg())
EQUAL = small(Method(aggregate=CoverageMean("uniform")))
ALONE = small(fedavg(), select=Uniform(1))


@pytest.mark.parametrize(
    ("method", "limit"),
    [
        pytest.param(small(hermes((1.0,))), PLAIN, id="hermes"),
        pytest.param(small(fedmp((1.0,))), PLAIN, id="fedmp"),
        pytest.param(small(prunefl_fixed((1.0,))), PLAIN, id="prunefl"),
        pytest.param(small(fedselect_neurons(0, 0)), PLAIN, id="fedselect, nothing personal"),
        pytest.param(small(ist(), select=Uniform(1)), ALONE, id="ist, one client a round"),
        pytest.param(small(oap_largest((1.0,))), EQUAL, id="oap, plain means"),
        pytest.param(small(oap_largest((1.0,), keep_untrained=True)), EQUAL, id="oap, untrained kept"),
        pytest.param(small(splitfl(1.0)), PLAIN, id="splitfl"),
        pytest.param(small(Method(mask=Regions(), local=SubModel())), PLAIN, id="regions"),
    ],
)
@pytest.mark.parametrize("network", ["cnn", "normed"])
def test_is_fedavg_exactly(method: Method, limit: Method, network: str) -> None:
    assert torch.equal(played(network, method).model, played(network, limit).model)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(small(hermes()), id="hermes"),
        pytest.param(small(fedselect_neurons()), id="fedselect"),
        pytest.param(small(Method(allocate=Tiers((0.5,)), mask=Regions(), local=SubModel())), id="regions"),
    ],
)
def test_begins_as_fedavg(method: Method) -> None:
    assert torch.equal(played("cnn", method, 2).models[0], played("cnn", PLAIN, 2).models[0])
    assert not torch.equal(played("cnn", method, 2).model, played("cnn", PLAIN, 2).model)


# ---- IST


def test_what_one_client_holds_is_copied_back_from_it() -> None:
    run = played("cnn", small(ist(parts=None), select=Uniform(3)), 1)
    mask, params = run.tasks[0].mask, run.replies[0].params
    assert mask is not None
    assert torch.allclose(run.tasks[0].share, torch.tensor(1 / 3))
    holders = mask.sum(0)
    alone = holders == 1
    assert alone[:-3].any()
    torch.testing.assert_close(run.model[alone], (params * mask).sum(0)[alone], rtol=1e-6, atol=1e-7)
    assert torch.equal(run.model[holders == 0], world("cnn").model[holders == 0])


# ---- OAP


def test_what_nobody_holds_is_erased_or_kept() -> None:
    erased, kept = (played("cnn", small(oap_largest((0.5, 0.25), keep)), 1) for keep in (False, True))
    mask = erased.tasks[0].mask
    assert mask is not None
    held = mask.any(0)
    assert 0 < int((~held).sum()) < len(held)
    assert not erased.model[~held].any()
    assert torch.equal(kept.model[~held], world("cnn").model[~held])
    assert torch.equal(erased.model[held], kept.model[held])
    for place in held.nonzero().flatten()[:40].tolist():
        mean = erased.replies[0].params[mask[:, place], place].mean()
        torch.testing.assert_close(erased.model[place], mean, rtol=0, atol=1e-6)


def test_nothing_is_erased_when_nothing_arrives() -> None:
    model = torch.tensor([1.0, 2.0])
    reply = Reply(torch.tensor([0]), model[None], torch.tensor([[True, False]]), {}, {}, torch.tensor([True]))
    setting = world("cnn").setting
    assert Erasing()({}, setting, model, reply)[0].tolist() == [1, 0]
    lost = reply._replace(mask=torch.zeros(1, 2, dtype=torch.bool), arrived=torch.tensor([False]))
    assert Erasing()({}, setting, model, lost)[0].tolist() == [1, 2]


def test_erased_weights_stay_out() -> None:
    run = played("cnn", small(oap_largest((0.5,))), 3)
    masks = [task.mask for task in run.tasks]
    for mask in masks[1:]:
        assert mask is not None
        assert torch.equal(mask, masks[0])  # zeros rank last, so the support never changes again


# ---- SplitFL


def test_the_same_part_is_trained_by_all_and_the_rest_never_moves() -> None:
    here = world("normed")
    method = small(splitfl(0.5, count=3))
    engine = here.local(method)
    run = play(here, method, engine)
    first = run.tasks[0].mask
    assert first is not None
    assert (first == first[0]).all()
    assert all(torch.equal(task.mask[:1], first[:1]) for task in run.tasks)  # type: ignore[index]
    assert torch.equal(run.model[~first[0]], here.model[~first[0]])
    assert not torch.equal(run.model[first[0]], here.model[first[0]])
    own = states_of(engine, engine.clients.states.known().tolist(), here.model)["own"]
    assert torch.equal(own[:, ~first[0]], here.model[~first[0]].expand(len(own), -1))


def test_the_frozen_part_takes_part_in_the_forward_pass() -> None:
    frozen = small(splitfl(0.5))
    assert not torch.equal(played("cnn", frozen).model, played("cnn", replace(frozen, local=SubModel())).model)


# ---- FedSelect

COHORTS = ((0, 1, 3), (1, 3, 6), (1, 2, 3), (1, 3, 8), (1, 3, 8))


def selected(**settings: float) -> Run:
    """Five rounds in which clients 1 and 3 take part always."""
    here, method = world("mlp"), small(fedselect_neurons(**settings), select=Forced(COHORTS))
    return play(here, method, here.local(method), rounds=5)


def personal_rows(run: Run, client: int) -> list[Tensor]:
    """Which numbers a client was not sent, in every round it took part in."""
    found = []
    for task, reply in zip(run.tasks, run.replies):
        for row in (reply.ids == client).nonzero().flatten().tolist():
            whole = torch.zeros(len(run.model), dtype=torch.bool)
            found.append(whole if task.mask is None else ~task.mask[row])
    return found


def test_the_personal_part_grows_to_its_bound_and_stays() -> None:
    neurons = world("mlp").setting.neurons  # 8 neurons
    run = selected(first=0.25, last=0.5, grow=0.125)
    parts = personal_rows(run, 1)
    for before, after in pairwise(parts):
        assert (before <= after).all()
    weights = [int(part[: 36 * 8].sum()) // 36 for part in parts]
    assert weights == [0, 2, 3, 4, 4]
    rest = neurons.expand(torch.zeros(neurons.size, dtype=torch.bool), rows=True)
    assert not any(part[rest].any() for part in parts)  # the output layer is everybody's
    assert run.memory["mask"]["heard"].tolist() == [1, 5, 1, 5, 0, 0, 1, 0, 2, 0, 0, 0]


def test_those_who_changed_most_become_personal() -> None:
    neurons, run = world("mlp").setting.neurons, selected()
    change = neurons.score(run.replies[0].params - world("mlp").model)
    row = run.replies[0].ids.tolist().index(3)
    first = neurons.cut(change[row], 0.25)
    assert torch.equal(personal_rows(run, 3)[1], ~neurons.expand(~first, rows=True))


def test_the_personal_part_stays_with_the_client_and_trains() -> None:
    here = world("mlp")
    method = small(fedselect_neurons(), select=Forced(COHORTS[:1] * 3))
    engine = here.local(method)
    run = play(here, method, engine, rounds=2)
    mask = run.tasks[1].mask
    assert mask is not None
    own = states_of(engine, [0, 1, 3], here.model)["own"]
    before = run.replies[0].params  # everything was sent in the first round
    assert not torch.equal(own[~mask], before[~mask])  # personal numbers moved on from the client's own values
    unsent = ~mask.any(0)
    assert torch.equal(run.model[unsent], run.models[0][unsent])


def test_lost_replies_choose_nothing() -> None:
    def lose(reply: Reply, chance: Chance) -> Reply:
        return reply._replace(arrived=reply.ids != 1)

    here, method = world("mlp"), small(fedselect_neurons(), select=Forced(COHORTS))
    run = play(here, method, changed(here.local(method), lose), rounds=3)
    assert not personal_rows(run, 1)[2].any()
    assert personal_rows(run, 3)[2].any()


@pytest.mark.parametrize("shares", [(0.5, 0.25), (0, 0.5), (0.5, 1.1), (-0.1, 0.5)])
def test_impossible_shares_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(BadExperiment, match="expected 0 < first <= last <= 1"):
        fedselect_neurons(*shares)
    with pytest.raises(BadExperiment, match=r"grow .* is -1"):
        fedselect_neurons(grow=-1)
