"""FedSelect: FedAvg without growth, local training where everything is personal, and passes that take turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.rule import Traits
from fedloom.core.types import Task
from fedloom.core.work import Work
from fedloom.engine.facts import facts_of
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedselect import GrowOwn, fedselect
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.select.everyone import Everyone
from worlds import assert_close, play, played, small, states_of, world

PASS = Work(epochs=1, batch=0)  # full batches: every pass has the same examples
TWO = Work(epochs=2, batch=0)


def test_without_growth_it_is_fedavg_with_half_of_the_passes() -> None:
    plain = small(Method(aggregate=CoverageMean("uniform")), work=PASS)
    never = small(fedselect(every=100), work=TWO)
    assert_close({"": played("mlp", never).model}, {"": played("mlp", plain).model}, 1e-6)


def test_masks_grow_by_a_share_of_what_is_global_up_to_the_bound() -> None:
    here, method = world("mlp"), small(fedselect(bound=0.5, every=1), select=Everyone(), work=TWO)
    engine = here.local(method)
    run = play(here, method, engine, 6)
    shares, last = [], torch.zeros(12, len(here.model), dtype=torch.bool)
    for reply in run.replies:
        assert reply.mask is not None
        personal = ~reply.mask
        assert (last <= personal).all()
        last = personal
        (span,) = here.setting.hidden_weights.spans
        shares.append(personal[:, span.place].float().mean(1).max().item())
        assert not personal[:, [s.start for layer in here.setting.layers for s in layer.biases]].any()
    assert shares == pytest.approx([0, 0, 0.25, 0.4375, 0.578, 0.578], abs=0.01)


def test_everything_personal_is_local_training() -> None:
    here = world("mlp")
    method = small(fedselect(grow=1.0, bound=1.0, every=1), select=Everyone(), work=TWO)
    engine = here.local(method)
    play(here, method, engine, 3)
    state = states_of(engine, [3], here.model)
    weights = torch.cat([torch.arange(len(here.model))[layer.weights[0].place] for layer in here.setting.layers])
    assert state["personal"][0, weights].all()
    before = state["own"][0]
    _, state = method.local.narrow(here.setting, torch.tensor([3]), _task(here.model), state, [], Chance(1, 4))
    first = method.local.start(_task(here.model + 1), state, here.model[None] + 1)
    assert torch.equal(first[0, weights], before[weights])


def _task(model: torch.Tensor) -> Task:
    none = torch.ones(1)
    return Task(model, None, None, none, none.bool(), {}, 4, 0.1, 0.1, len(model))


def test_a_gpu_captures_no_steps_of_rules_that_take_turns() -> None:
    here, method = world("mlp"), small(fedselect(), work=TWO)
    facts = facts_of(here.clients(method), here.local(method).gradient, captured=True)
    assert not facts.captured
    assert "every pass" in facts.no_graph
    assert facts_of(here.clients(small(Method())), here.local(method).gradient, captured=True).captured


def test_passes_need_corrections_and_uploads_need_masks() -> None:
    with pytest.raises(BadExperiment, match="turns=True but corrects=False"):
        Traits(turns=True)
    with pytest.raises(BadExperiment, match=r"put AsTrained\(\) into upload"):
        replace(Method(), local=GrowOwn())
    with pytest.raises(BadExperiment, match="set epochs to at least 2"):
        replace(fedselect(), work=PASS)
    for wrong in ({"grow": 0.0}, {"grow": 1.5}, {"every": 0}):
        with pytest.raises(BadExperiment):
            GrowOwn(**wrong)  # type: ignore[arg-type]
