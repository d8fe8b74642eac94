"""OwnScores: neurons chosen once by each client's first reply."""

from __future__ import annotations

import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.types import Reply
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.own_scores import OwnScores
from pieces import Forced
from worlds import Run, changed, play, small, world

COHORTS = ((1, 3, 4, 6), (1, 2, 3, 8), (1, 2, 6, 8), (1, 3, 4, 6))
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)


def method_of(by: str, cohorts: tuple[tuple[int, ...], ...] = COHORTS) -> Method:
    """Own neurons for given cohorts."""
    return small(Method(select=Forced(cohorts), allocate=Tiers(SHARES), mask=OwnScores(by), local=SubModel()))


def run(by: str, network: str = "cnn") -> Run:
    """Four rounds in which clients come and go."""
    here, method = world(network), method_of(by)
    return play(here, method, here.local(method), rounds=4)


@pytest.mark.parametrize("by", ["l1", "l2", "change"])
@pytest.mark.parametrize("network", ["cnn", "normed"])
def test_the_first_reply_decides_and_nothing_after_it(by: str, network: str) -> None:
    neurons, played = world(network).setting.neurons, run(by, network)
    models = [world(network).model, *played.models]
    chosen: dict[int, torch.Tensor] = {}
    for number, (task, reply) in enumerate(zip(played.tasks, played.replies)):
        for row, client in enumerate(reply.ids.tolist()):
            whole = torch.ones(neurons.size, dtype=torch.bool)
            if task.keep is None:
                assert client not in chosen
            else:
                assert torch.equal(task.keep[row], chosen.get(client, whole))
                assert torch.equal(task.mask[row], neurons.expand(task.keep[row]))  # type: ignore[index]
            if client not in chosen:
                values = reply.params[row] - models[number] if by == "change" else reply.params[row]
                chosen[client] = neurons.cut(neurons.score(values, "l1" if by == "l1" else "l2"), SHARES[client % 5])
    assert torch.equal(played.memory["mask"]["known"].nonzero().flatten(), torch.tensor([1, 2, 3, 4, 6, 8]))
    for client, keep in chosen.items():
        assert torch.equal(played.memory["mask"]["keep"][client], keep)
        for _, span in neurons.spans(neurons.size):  # floor of the share, at least one
            assert int(keep[span].sum()) == max(1, int(SHARES[client % 5] * len(keep[span]) + 1e-6))


def test_the_warm_up_is_the_whole_model() -> None:
    played = run("l2")
    assert played.tasks[0].mask is None
    second = played.tasks[1].mask
    assert second is not None
    assert second.all(1).tolist() == [False, True, False, True]  # 2 and 8 are new


def test_who_is_not_heard_of_starts_anew() -> None:
    def lose(reply: Reply, chance: Chance) -> Reply:
        return reply._replace(arrived=(reply.ids != 1) | (chance.round > 1))

    here, method = world("cnn"), method_of("l2", ((1, 3), (1, 3), (1, 3)))
    played = play(here, method, changed(here.local(method), lose))
    masks = [task.mask for task in played.tasks]
    assert masks[1] is not None
    assert masks[2] is not None
    assert masks[1].all(1).tolist() == [True, False]
    assert masks[2].all(1).tolist() == [False, False]


def test_later_shares_change_nothing() -> None:
    here, first = world("cnn"), method_of("l2", ((1, 3),) * 3)
    played = play(here, first, here.local(first), rounds=1)
    mask, setting = OwnScores("l2"), here.setting
    ids, chance = torch.tensor([1, 3]), Chance(1, 2)
    small_, _ = mask(played.memory["mask"], setting, here.model, ids, torch.tensor([0.4, 0.8]), chance)
    large, memory = mask(played.memory["mask"], setting, here.model, ids, torch.tensor([0.9, 0.9]), chance)
    assert torch.equal(small_.keep, large.keep)  # type: ignore[arg-type]
    later = mask.observe(memory, setting, here.model, played.replies[0])
    assert torch.equal(later["keep"], memory["keep"])


def test_equal_neurons_of_unlike_methods_differ() -> None:
    keeps = [run(by).memory["mask"]["keep"] for by in ("l1", "l2", "change")]
    assert not torch.equal(keeps[0], keeps[2])
    assert not torch.equal(keeps[1], keeps[2])


def test_unknown_scores_are_refused() -> None:
    with pytest.raises(BadExperiment, match="unknown score of own neurons 'l3'"):
        OwnScores("l3")
