"""The engines of one machine: whose examples, in which order, and whose fault."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.types import Examples
from fedloom.core.work import Work
from fedloom.engine.local import local_engine
from fedloom.engine.storage.shards import Shards
from fedloom.errors import RunStopped
from fedloom.methods.fedavg import fedavg
from pieces import Forced
from worlds import SIZES, play, played, small, world, world_of


@pytest.mark.parametrize("few", [0, 2**14])
def test_shards_are_padded_with_their_own(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.engine.storage.shards.FEW", few)  # by torch and by NumPy
    shards = Shards([torch.tensor([5, 3]), torch.tensor([9]), torch.tensor([1, 2, 8])], torch.device("cpu"))
    assert shards.sizes == [2, 1, 3]
    rows = shards.rows(torch.tensor([2, 0, 1]), 4)
    assert rows.tolist() == [[1, 2, 8, 8], [5, 3, 3, 3], [9, 9, 9, 9]]


def test_replies_stand_in_the_order_of_the_cohort() -> None:
    order = ((11, 1, 0, 8, 4), (3, 2, 6), (5, 1))
    here, method = world("mlp"), small(fedavg(), select=Forced(order))
    for engine in (here.local(method), here.local(method, 2), here.loop(method)):
        run = play(here, method, engine)
        for ids, reply in zip(order, run.replies):
            assert reply.ids.tolist() == list(ids)
            assert reply.report["examples"].tolist() == [SIZES[client] for client in ids]
            assert reply.report["steps"].tolist() == [-(-SIZES[client] // 6) for client in ids]


def test_a_client_trains_the_same_in_any_company() -> None:
    here = world("normed")
    cohorts = [((1,),), ((1, 8),), ((0, 1, 4, 7),), (tuple(range(12)),)]
    ends = []
    for cohort in cohorts:
        method = small(fedavg(), select=Forced(cohort), work=Work(epochs=2, batch=6))
        reply = play(here, method, here.local(method), rounds=1).replies[0]
        ends.append(reply.params[reply.ids.tolist().index(1)])
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-6)


def test_a_run_repeats_bit_for_bit() -> None:
    here, method = world("dropout"), small(fedavg())
    again = play(here, method, here.local(method))
    assert torch.equal(again.model, played("dropout", method).model)
    assert not torch.equal(play(here, method, here.local(method), seed=8).model, again.model)


def test_training_leaves_the_world_as_it_was() -> None:
    here, method = world("normed"), small(fedavg())
    model, x = here.model.clone(), here.data.x.clone()
    state = {name: value.clone() for name, value in here.setting.module.state_dict().items()}
    play(here, method, here.local(method), rounds=1)
    assert torch.equal(here.model, model)
    assert torch.equal(here.data.x, x)
    for name, value in here.setting.module.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(value, state[name])


def test_chunks_fit_the_budget() -> None:
    here, method = world("mlp"), small(fedavg())
    assert local_engine(here.clients(method)).chunk > len(SIZES)
    assert here.local(method, 7).chunk == 7


class Fragile(nn.Module):
    """Fails when it meets a certain example."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 90).any()):
            raise ZeroDivisionError("more than it can bear")
        scores: Tensor = self.out(x)
        return scores


def test_the_loop_says_whose_fault_it_was() -> None:
    data = Examples(torch.arange(12.0).view(6, 2), torch.zeros(6, dtype=torch.int64))
    data.x[4] = 99
    here = world_of(Fragile(), data, torch.arange(6).split(2))
    method = small(fedavg())
    with pytest.raises(RunStopped, match=r"client 2 .*round 1.*more than it can bear") as caught:
        play(here, method, here.loop(method))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
