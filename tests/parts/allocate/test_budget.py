"""FedDD's linear programme: our solution against a general solver, its constraints, and small cases by hand."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from fedloom.parts.allocate.budget import Fleet, by_filling, by_linear_programme


def drawn(low: float, high: float, count: int, dice: torch.Generator) -> Tensor:
    """Numbers between two, evenly."""
    return torch.rand(count, generator=dice, dtype=torch.float64) * (high - low) + low


def random_fleet(number: int) -> tuple[Fleet, float, float]:
    """One of many fleets with a budget and the least share; some with equal sizes, equal links, ties, or no choice."""
    dice = torch.Generator().manual_seed(number)
    count = int(torch.randint(1, 40, (1,), generator=dice))
    size = drawn(1e5, 5e6, count, dice) if number % 3 else torch.full((count,), 2.7e6, dtype=torch.float64)
    up, down, told = drawn(1e3, 5e3, count, dice), drawn(4e4, 2e5, count, dice), drawn(0, 1, count, dice)
    if number % 5 == 0:
        up, down = torch.full_like(up, 3e3), torch.full_like(down, 1e5)
    if number % 7 == 0:
        told = (told * 3).round() / 3
    if number % 11 == 0:
        told = torch.full_like(told, 0.5)
    full = size / up + size / down
    delta = (0.0, 1e-3, 0.1, 1.0, 10.0, 1e6)[number % 6]
    fleet = Fleet(size, drawn(0, 1000, count, dice), full, delta * told * full.max())
    least = 1 - float(drawn(0, 0.95, 1, dice))
    budget = (least, 1.0, least + (1 - least) * float(drawn(0, 1, 1, dice)))[number % 4 if number % 4 < 3 else 2]
    return fleet, budget, least


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_is_as_good_as_the_general_solver(start: int) -> None:
    for number in range(start, start + 40):
        fleet, budget, least = random_fleet(number)
        share = by_filling(fleet, budget, least)
        best = float(fleet.objective(by_linear_programme(fleet, budget, least)))
        assert float(fleet.objective(share)) == pytest.approx(best, rel=1e-9), number
        assert float((fleet.size * share).sum() / fleet.size.sum()) == pytest.approx(budget, rel=1e-11), number
        assert float(share.min()) >= least * (1 - 1e-12)
        assert float(share.max()) <= 1


def test_order_of_clients_is_irrelevant() -> None:
    for number in range(24):
        fleet, budget, least = random_fleet(number)
        mixed = torch.randperm(len(fleet.size), generator=torch.Generator().manual_seed(number))
        there = Fleet(*(column[mixed] for column in fleet))
        ours, theirs = (f.objective(by_filling(f, budget, least)) for f in (fleet, there))
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=0)


def of(size: list[float], fixed: list[float], full: list[float], worth: list[float]) -> Fleet:
    """A fleet by hand."""
    return Fleet(*(torch.tensor(column, dtype=torch.float64) for column in (size, fixed, full, worth)))


def test_by_hand() -> None:
    two = of([1, 1], [0, 0], [1, 3], [0, 0])  # seconds only: 3/4 s, in which the second sends 1/4
    assert by_filling(two, 0.5, 0.1).tolist() == pytest.approx([0.75, 0.25])
    assert by_filling(two._replace(worth=torch.tensor([0.0, 6.0])), 0.5, 0.1).tolist() == pytest.approx([0.1, 0.9])
    assert by_filling(two._replace(worth=torch.tensor([0.0, 2.9])), 0.5, 0.1).tolist() == pytest.approx([0.75, 0.25])
    late = of([1, 1], [0, 2], [1, 1], [0, 0])  # the second computes for so long that it sends the least
    assert by_filling(late, 0.5, 0.2).tolist() == pytest.approx([0.8, 0.2])
    large = of([3, 1], [0, 0], [3, 1], [0, 0])  # a large model sends less of itself in the same time
    assert by_filling(large, 0.5, 0.1).tolist() == pytest.approx([1 / 3, 1.0])


def test_without_freedom_everyone_sends_the_least_or_all() -> None:
    fleet, _, _ = random_fleet(1)
    assert by_filling(fleet, 1.0, 0.2).eq(1).all()  # to the bit: nothing is masked then
    torch.testing.assert_close(by_filling(fleet, 0.2, 0.2), torch.full_like(fleet.size, 0.2))


def test_slow_links_send_less() -> None:
    full = torch.tensor([1.0, 2.0, 3.0, 5.0, 8.0, 13.0], dtype=torch.float64)
    share = by_filling(Fleet(torch.ones_like(full), torch.zeros_like(full), full, torch.zeros_like(full)), 0.6, 0.2)
    assert (share.diff() <= 0).all()
    assert share[0] == 1
    assert share[-1] < 0.3


def test_those_with_more_to_tell_send_more() -> None:
    worth = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64) * 100
    one = torch.ones_like(worth)
    assert by_filling(Fleet(one, one, one, worth), 0.6, 0.2).tolist() == pytest.approx([1, 1, 0.6, 0.2, 0.2])


def test_ten_thousand_clients_take_no_time() -> None:
    dice = torch.Generator().manual_seed(0)
    full = drawn(500, 3000, 10_000, dice)
    fleet = Fleet(torch.ones_like(full), drawn(0, 10, 10_000, dice), full, drawn(0, 1, 10_000, dice))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    for _ in range(8):
        began = time.thread_time()  # whatever else runs on the machine
        by_filling(fleet, 0.6, 0.2)
        times.append(time.thread_time() - began)
    torch.set_num_threads(threads)
    assert min(times) < 0.05
