"""OAP: what each type has, that a cohort covers every weight, and FedAvg where everybody has everything."""

from __future__ import annotations

import pytest
import torch

from fedloom.chance import Chance
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.oap import QUARTERS, Quarters, oap
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.tiers import Tiers
from worlds import played, small, world


@pytest.mark.parametrize("network", ["mlp", "normed"])
def test_type_1_for_all_is_fedavg_with_equal_weights(network: str) -> None:
    plain = small(Method(aggregate=CoverageMean("uniform")))
    assert torch.equal(played(network, small(oap((1,)))).model, played(network, plain).model)


@pytest.mark.parametrize("each", QUARTERS)
def test_quarters_of_a_type(each: int) -> None:
    here, method = world("mlp"), oap((each,))
    share, _ = method.allocate({}, here.setting, torch.arange(3), Chance(1, 1))
    portion, _ = method.mask({}, here.setting, here.model, torch.arange(3), share, Chance(1, 1))
    mask = torch.ones(3, len(here.model), dtype=torch.bool) if portion.mask is None else portion.mask
    (span,) = here.setting.hidden_weights.spans
    by_size = mask[:, span.place][:, here.model[span.place].abs().argsort()]
    size = span.stop - span.start
    assert size % 4 == 0
    wanted = torch.tensor([str(quarter) in QUARTERS[each] for quarter in (1, 2, 3, 4)]).repeat_interleave(size // 4)
    assert torch.equal(by_size, wanted.expand(3, -1))
    rest = torch.ones(len(here.model), dtype=torch.bool)
    rest[span.place] = False
    assert mask[:, rest].all()


@pytest.mark.parametrize(("types", "fewest"), [((2, 3, 4), 4), ((5, 6, 7), 2), ((2, 3, 4, 1), 5)])
def test_a_cohort_covers_every_weight(types: tuple[int, ...], fewest: int) -> None:
    method = small(oap(types))
    run = played("mlp", method)
    assert int(run.memory["mask"]["fewest"]) >= fewest  # of eight clients
    for task in run.tasks:
        assert task.mask is not None
        largest = world("mlp").setting.hidden_weights.spans[0].place
        counts = task.mask[:, largest].sum(0)
        assert int(counts.min()) >= fewest
        order = task.model[largest].abs().argsort()
        assert (counts[order[-len(order) // 4 :]] == 8).all()  # everybody has the largest quarter


def test_turns_are_taken_among_clients_of_one_size() -> None:
    found = Quarters((5, 6, 1)).quarters(torch.tensor([0.5, 1.0, 0.5, 0.5, 1.0]), 1).int().tolist()
    assert found == [[0, 1, 0, 1], [1, 1, 1, 1], [1, 0, 0, 1], [0, 1, 0, 1], [1, 1, 1, 1]]
    assert Quarters((5, 6, 1)).depends_on_cohort
    assert not Quarters((5, 2, 1)).depends_on_cohort
    assert Tiers((0.5, 0.5, 1.0)) == oap((5, 6, 1)).allocate


def test_published_ranks_are_those_of_an_inverse() -> None:
    here, ids = world("mlp"), torch.arange(1)
    (span,) = here.setting.hidden_weights.spans
    mask = Quarters((7,), "published")({}, here.setting, here.model, ids, torch.tensor([0.5]), Chance(1, 1))[0].mask
    assert mask is not None
    assert torch.equal(mask[0, span.place], here.model[span.place].argsort() >= (span.stop - span.start) / 2)


def test_what_nobody_has_stays_or_is_erased() -> None:
    kept, erased = (played("mlp", small(oap((7,), erase=erase)), 1) for erase in (False, True))
    mask = kept.tasks[0].mask
    assert mask is not None
    assert torch.equal(kept.model[~mask[0]], kept.tasks[0].model[~mask[0]])
    assert not erased.model[~mask[0]].any()


@pytest.mark.parametrize("types", [(), (0,), (12, 1)])
def test_unknown_types_are_refused(types: tuple[int, ...]) -> None:
    with pytest.raises(BadExperiment, match="from 1 to 11"):
        oap(types)
