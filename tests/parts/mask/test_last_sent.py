"""LastSent sends the rows that each client sent last."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, State
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.feddd import feddd
from fedloom.neurons.leading import LeadingNeurons
from fedloom.neurons.rows import rows_of
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own_part import KeepOwnPart
from fedloom.parts.local.prox import Prox
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.last_sent import LastSent
from worlds import World, world

IDS, SHARE = torch.arange(12), torch.ones(12)


def drawn(here: World, count: int, number: int = 0) -> Tensor:
    """Random neurons [C, K + O]."""
    places = torch.arange(count)[:, None], torch.arange(here.setting.neurons.full_size)
    return Chance(5, number).uniform("rows", *places) < 0.5


def told(part: LastSent, here: World, memory: State, rows: Tensor, arrived: Tensor) -> State:
    """The memory after replies of these rows."""
    mask = here.setting.neurons.expand(rows, rows=True) & arrived[:, None]
    params = here.model.expand(len(rows), -1)
    return part.observe(memory, here.setting, here.model, Reply(IDS[: len(rows)], params, mask, {}, {}, arrived))


@pytest.mark.parametrize("network", ["mlp", "cnn", "normed", "text"])
def test_rows_are_found_again(network: str) -> None:
    here = world(network)
    rows = drawn(here, 6)
    assert torch.equal(rows_of(here.setting.neurons, here.setting.neurons.expand(rows, rows=True)), rows)


def test_a_row_of_which_a_piece_arrived_is_known() -> None:
    here = world("mlp")
    mask = torch.zeros(1, len(here.model), dtype=torch.bool)
    mask[0, 36 * 3 + 17] = True
    assert rows_of(here.setting.neurons, mask)[0].nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("network", ["mlp", "normed"])
def test_the_last_that_arrived_comes_down(network: str) -> None:
    here, part = world(network), LastSent(every=4)
    memory, first, second = part.init(here.setting, here.model), drawn(here, 12, 1), drawn(here, 12, 2)
    memory = told(part, here, memory, first, IDS > 2)
    memory = told(part, here, memory, second, (IDS > 5) | (IDS < 2))
    expected = torch.where((IDS > 5)[:, None] | (IDS < 2)[:, None], second, first)
    expected[2] = True  # never heard of
    for number in range(1, 11):
        portion, _ = part(memory, here.setting, here.model, IDS, SHARE, Chance(0, number))
        assert portion.keep is None
        if number in (1, 5, 9):
            assert portion.mask is None
        else:
            assert portion.mask is not None
            assert torch.equal(portion.mask, here.setting.neurons.expand(expected, rows=True))


def test_everything_sent_needs_no_mask() -> None:
    here, part = world("mlp"), LastSent()
    reply = Reply(IDS, here.model.expand(12, -1), None, {}, {}, IDS > 3)
    memory = part.observe(part.init(here.setting, here.model), here.setting, here.model, reply)
    assert part(memory, here.setting, here.model, IDS, SHARE, Chance(0, 2))[0] == (None, None)


def test_memory_is_a_bit_a_neuron() -> None:
    here = world("normed")
    (rows,) = LastSent().init(here.setting, here.model).values()
    assert (rows.dtype, rows.shape) == (torch.bool, (12, 6))


def test_within_what_each_owns() -> None:
    here, models = world("mlp"), LeadingNeurons(((2,), (5,), (8,)))
    part, neurons = LastSent(models=models), here.setting.neurons
    memory, rows = part.init(here.setting, here.model), drawn(here, 12)
    memory = told(part, here, memory, rows, IDS >= 0)
    keep = torch.arange(8) < torch.tensor([2, 5, 8])[IDS % 3, None]
    for number in (1, 2):
        portion, _ = part(memory, here.setting, here.model, IDS, SHARE, Chance(0, number))
        mask = neurons.expand(keep) & (neurons.expand(rows, rows=True) if number == 2 else torch.tensor(True))
        assert portion.mask is not None
        assert torch.equal(portion.mask, mask)
        assert torch.equal(torch.as_tensor(portion.keep), keep)


def test_refuses_company() -> None:
    with pytest.raises(BadExperiment, match="every"):
        LastSent(every=0)
    small = feddd(models=(0.5, 1.0))
    with pytest.raises(BadExperiment, match="LatencyAndLoss"):
        replace(small, mask=LastSent())
    with pytest.raises(BadExperiment, match="put KeepOwnPart"):
        replace(small, local=SubModel())
    with pytest.raises(BadExperiment, match="works alone"):
        Method(local=Chain((KeepOwnPart(), Prox(0.1))))
