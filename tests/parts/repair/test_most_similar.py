"""MostSimilar equals a reference with plain loops and a dict."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.pruning import prunable
from fedloom.core.types import Fleet, Reply, State
from fedloom.errors import BadExperiment
from fedloom.parts.aggregate.plain_mean import PlainMean
from fedloom.parts.repair.most_similar import MostSimilar
from fedloom.round import read_unsent_as_unchanged
from worlds import SIZES, reply_rows, world

HERE = world("normed")
FLEET, NUMBERS = len(SIZES), len(HERE.model)
SETTINGS = [{}, {"distance": "relative"}, {"smoothing": 0.75}, {"mask_aware": True}]


def reply_of(number: int, lost: float = 0.5, masked: bool = True) -> Reply:
    """A random cohort's replies in a random order, with NaN wherever nothing was sent."""
    chance, fleet = Chance(3, number), torch.arange(FLEET)
    ids = fleet[chance.uniform("cohort", fleet) < 0.8]
    ids = ids[chance.uniform("order", ids).argsort()]
    places = torch.arange(NUMBERS)
    params = chance.uniform("params", ids[:, None], places) + (ids % 3)[:, None] + number
    mask = chance.uniform("mask", ids[:, None], places) < 0.6 if masked else None
    arrived = chance.uniform("arrived", ids) >= lost
    sent = arrived[:, None] & (torch.ones_like(params, dtype=torch.bool) if mask is None else mask)
    report = {"examples": torch.tensor(SIZES)[ids], "loss": chance.uniform("loss", ids).float()}
    report = {k: torch.where(arrived, v, -1 if k == "examples" else torch.nan) for k, v in report.items()}
    extras = {"drift": torch.where(arrived[:, None], params[:, :2].float(), torch.nan)}
    params = torch.where(sent, params, torch.nan).float()
    return Reply(ids, params, mask, extras, report, arrived)


def repair(part: MostSimilar, memory: State, reply: Reply) -> tuple[Reply, Reply, State]:
    """The replies as read, the repaired replies, and the memory."""
    read = read_unsent_as_unchanged(HERE.model, reply)
    memory = part.observe(memory, HERE.setting, HERE.model, read)
    whole, memory = part(memory, HERE.setting, HERE.model, read)
    return read, whole, memory


class Naive:
    """MostSimilar by loops over clients, with a dict for the distances."""

    def __init__(self, distance: str = "plain", smoothing: float = 0.0, mask_aware: bool = False) -> None:
        self.table: dict[tuple[int, int], float] = {}
        self.distance, self.smoothing, self.mask_aware = distance, smoothing, mask_aware

    def __call__(self, reply: Reply) -> dict[int, Any]:
        """The model, mask, report and extras that count for each client of the cohort."""
        mask = torch.ones_like(reply.params, dtype=torch.bool) if reply.mask is None else reply.mask
        found: dict[int, Any] = {}
        for row, client in enumerate(reply.ids.tolist()):
            if reply.arrived[row]:
                sent = torch.where(mask[row], reply.params[row].double(), 0)
                facts = {k: v[row].double() for k, v in {**reply.report, **reply.extras}.items()}
                found[client] = sent, mask[row], facts
        for u in found:
            for v in found:
                if u != v:
                    self.measure(u, v, found[u][0], found[v][0])
        whole = dict(found)
        for client in reply.ids.tolist():
            if client not in found and found:
                known = sorted((self.table[client, other], other) for other in found if (client, other) in self.table)
                whole[client] = found[known[0][1]] if known else self.mean(list(found.values()))
        return whole

    def measure(self, u: int, v: int, one: Tensor, other: Tensor) -> None:
        """Eq. 11 and its variants."""
        now = sqrt(float(((one - other) ** 2).sum()))
        if self.distance == "relative":
            now /= sqrt(float(one.norm()) * float(other.norm()))
        if (u, v) in self.table:
            now = self.smoothing * self.table[u, v] + (1 - self.smoothing) * now
        self.table[u, v] = now

    def mean(self, found: list[Any]) -> Any:
        """The mean of the arrived replies; each number over all of them, or over its senders."""
        total, count = sum(f[0] for f in found), sum(f[1].double() for f in found)
        facts = {k: sum(f[2][k] for f in found) / len(found) for k in found[0][2]}
        facts["examples"] = facts["examples"].round()
        params = total / count.clamp(min=1) if self.mask_aware else total / len(found)
        return params, count > 0, facts


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_the_naive_reading(settings: dict[str, Any], masked: bool) -> None:
    part, naive = MostSimilar(**settings), Naive(**settings)
    memory, means, stood = part.init(HERE.setting, HERE.model), 0.0, 0.0
    for number in range(1, 13):
        reply = reply_of(number, lost=1.0 if number == 5 else 0.7, masked=masked)
        before = {name: value.clone() for name, value in memory.items()}
        given = memory
        read, whole, memory = repair(part, memory, reply)
        assert all(torch.equal(given[name], before[name]) for name in before)  # pure
        wanted = naive(read)
        for row, client in enumerate(whole.ids.tolist()):
            assert bool(whole.arrived[row]) == (client in wanted)
            if client not in wanted:
                continue
            params, mask, facts = wanted[client]
            got = whole.params[row] if whole.mask is None else torch.where(whole.mask[row], whole.params[row], 0)
            torch.testing.assert_close(got.double(), params, rtol=1e-6, atol=1e-6)
            assert whole.mask is None or torch.equal(whole.mask[row], mask)
            for name, value in facts.items():
                mine = {**whole.report, **whole.extras}[name][row].double()
                torch.testing.assert_close(mine, value, rtol=1e-6, atol=1e-6)
        record = part.record(memory)
        for u in range(FLEET):
            for v in range(FLEET):
                entry = float(record["distance"][u, v])
                if (u, v) in naive.table:
                    assert entry == pytest.approx(naive.table[u, v], rel=1e-9)
                else:
                    assert isnan(entry)
        assert int(record["stand_ins"] + record["by_mean"]) == (~reply.arrived).sum() * bool(reply.arrived.any())
        means, stood = means + float(record["by_mean"]), stood + float(record["stand_ins"])
    assert means > 0
    assert stood > 10


def test_nothing_lost_and_nobody_heard_of_are_left_alone() -> None:
    part, memory = MostSimilar(), MostSimilar().init(HERE.setting, HERE.model)
    for lost in (0.0, 1.0):
        read, whole, _ = repair(part, memory, reply_of(1, lost))
        assert whole is read


def test_garbage_in_lost_rows_is_not_read() -> None:
    part = MostSimilar()
    results = []
    for garbage in (torch.nan, 1e30):
        memory = part.init(HERE.setting, HERE.model)
        for number in (1, 2, 3):
            reply = reply_of(number)
            params = torch.where(reply.params.isnan(), garbage, reply.params)
            _, whole, memory = repair(part, memory, reply._replace(params=params))
        results.append((whole.params, memory["distance"]))
    for ours, theirs in zip(*results):
        assert ours.isfinite().all()
        assert torch.equal(ours, theirs)


def models(rows: list[list[float]], arrived: list[bool], mask: Tensor | None = None) -> Reply:
    """The first clients' replies, each with a few numbers of its own in front."""
    params = torch.zeros(len(rows), NUMBERS)
    params[:, : len(rows[0])] = torch.tensor(rows)
    ids = torch.arange(len(rows))
    return Reply(ids, params, mask, {}, {"examples": torch.ones_like(ids)}, torch.tensor(arrived))


def test_a_stale_entry_stands_and_may_win() -> None:
    part, memory = MostSimilar(), MostSimilar().init(HERE.setting, HERE.model)
    _, _, memory = repair(part, memory, models([[0.0], [1.0], [5.0]], [True, True, False]))  # 0 and 1: 1 apart
    _, _, memory = repair(part, memory, models([[9.0], [0.0], [7.0]], [True, False, True]))  # 0 and 2: 2 apart
    _, whole, memory = repair(part, memory, models([[0.0], [30.0], [3.0]], [False, True, True]))
    assert whole.params[:, 0].tolist() == [30.0, 30.0, 3.0]  # for 0 still 1, which has long been elsewhere
    table = part.record(memory)["distance"]
    assert table[0, 1] == 1
    assert table[0, 2] == 2
    assert table[1, 2] == table[2, 1] == 27


def test_relative_distances_do_not_grow_with_the_models() -> None:
    rows = [[1.0, 2.0], [2.0, 1.5], [0.5, 4.0]]
    tables = []
    for scale in (1.0, 64.0):
        part = MostSimilar("relative")
        reply = models([[scale * v for v in row] for row in rows], [True] * 3)
        _, _, memory = repair(part, part.init(HERE.setting, HERE.model), reply)
        tables.append(memory["distance"])
    torch.testing.assert_close(*tables)
    assert tables[0][0, 1] == pytest.approx(sqrt(1.25) / sqrt(sqrt(5) * 2.5))


def test_equal_models_are_at_zero_and_the_lowest_of_equals_stands_in() -> None:
    part, rows = MostSimilar(), [[0.1, 0.7], [0.3, 0.2], [0.1, 0.7], [0.1, 0.7]]
    reply = models(rows, [True] * 4)
    _, _, memory = repair(part, part.init(HERE.setting, HERE.model), reply)
    assert memory["distance"][0, [2, 3]].tolist() == [0, 0]
    assert memory["distance"][0, 1] > 0
    now = models([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]], [True, True, True, False])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1]):
        _, whole, _ = repair(part, memory, reply_rows(now, torch.tensor(order)))
        assert whole.params[whole.ids == 3, 0].tolist() == [1.0]


def test_unsent_numbers_are_zeros_in_distances() -> None:
    mask = torch.zeros(2, NUMBERS, dtype=torch.bool)
    mask[0, 0] = mask[1, 1] = True
    _, _, memory = repair(
        MostSimilar(),
        MostSimilar().init(HERE.setting, HERE.model),
        models([[3.0, 99.0], [99.0, 4.0]], [True] * 2, mask),
    )
    assert memory["distance"][0, 1] == 5


def test_a_diverged_model_is_compared_with_nobody() -> None:
    reply = models([[torch.nan], [1.0], [2.0]], [True] * 3)
    _, _, memory = repair(MostSimilar(), MostSimilar().init(HERE.setting, HERE.model), reply)
    assert memory["compared"].sum() == 2
    assert memory["distance"].isfinite().all()


def test_what_is_recorded() -> None:
    part, reply = MostSimilar(), reply_of(2)
    memory = part.init(HERE.setting, HERE.model)
    for number in (1, 2):
        read, whole, memory = repair(part, memory, reply_of(number))
    record, labels = part.record(memory), HERE.setting.fleet.labels
    counted = prunable(HERE.setting, torch.device("cpu"))
    rows = reply.arrived.nonzero().flatten().tolist()
    both = kept = 0
    for u in rows:
        for v in rows:
            if u != v and read.mask is not None:
                both += int((read.mask[u] & read.mask[v] & counted).sum())
                kept += int((read.mask[u] & counted).sum())
    assert float(record["overlap"]) == pytest.approx(both / kept)
    same = stood = 0
    before = reply_of(1)
    seen = set(before.ids[before.arrived].tolist())
    for row in (~reply.arrived).nonzero().flatten().tolist():
        if int(reply.ids[row]) in seen and seen & set(reply.ids[reply.arrived].tolist()):
            source = next(int(reply.ids[r]) for r in rows if torch.equal(whole.params[row], whole.params[r]))
            stood += 1
            same += bool(((labels[source] > 0) == (labels[int(reply.ids[row])] > 0)).all())
    assert stood > 0
    assert int(record["stand_ins"]) == stood
    assert float(record["same_group"]) == pytest.approx(same / stood)
    assert all(record[name].dim() == 0 for name in ("stand_ins", "by_mean", "same_group", "overlap"))
    assert part.note(HERE.setting) is None  # 12 clients: not worth a word
    many = replace(HERE.setting, fleet=Fleet(torch.ones(2000, dtype=torch.int64), torch.ones(2000, 3)))
    assert "2000 x 2000 clients, 34.3 MiB" in str(part.note(many))


def test_the_plain_mean_counts_zeros() -> None:
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    params = torch.tensor([[1.0, 9.0, 9.0], [2.0, 4.0, 9.0], [7.0, 7.0, 7.0]])
    arrived = torch.tensor([True, True, False])
    reply = Reply(torch.arange(3), params, mask, {}, {}, arrived)
    new, _ = PlainMean()({}, HERE.setting, torch.full((3,), 5.0), reply)
    assert new.tolist() == [1.5, 2.0, 0.0]
    stays, _ = PlainMean()({}, HERE.setting, torch.full((3,), 5.0), reply._replace(arrived=torch.zeros(3).bool()))
    assert stays.tolist() == [5.0] * 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"distance": "relativ"}, "did you mean 'relative'"),
        ({"smoothing": 1.0}, r"smoothing .* is 1.0; it lies in \[0, 1\)"),
        ({"smoothing": -0.1}, r"smoothing .* is -0.1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadExperiment, match=says):
        MostSimilar(**settings)


def test_distances_over_the_numbers_that_both_sent() -> None:
    """Numbers that only one of two sent do not count; a pair without a common number is not compared."""
    params = torch.tensor([[1.0, 2.0, 9.0, 0.0], [4.0, 7.0, 6.0, 0.0], [0.0, 0.0, 0.0, 5.0]])
    mask = torch.tensor([[True, True, False, False], [True, True, True, False], [False, False, False, True]])
    reply = Reply(torch.tensor([3, 5, 8]), params, mask, {}, {}, torch.ones(3, dtype=torch.bool))
    part = MostSimilar("shared")
    memory = {**part.init(HERE.setting, HERE.model)}
    size = len(HERE.model)
    wide = reply._replace(
        params=torch.nn.functional.pad(params, (0, size - 4)),
        mask=torch.nn.functional.pad(mask, (0, size - 4)),
    )
    after = part.observe(memory, HERE.setting, HERE.model, wide)
    assert float(after["distance"][3, 5]) == pytest.approx(sqrt((9 + 25) / 2))
    assert after["compared"].nonzero().tolist() == [[3, 5], [5, 3]]


def test_nobody_stands_in_for_those_who_were_not_to_send() -> None:
    size = len(HERE.model)
    params = torch.stack([HERE.model + k for k in range(3)])
    arrived = torch.tensor([True, False, False])
    report = {"examples": torch.tensor([5, 0, 0])}
    reply = Reply(torch.tensor([1, 2, 4]), params, None, {}, report, arrived, awaited=torch.tensor([True, True, False]))
    reply = read_unsent_as_unchanged(HERE.model, reply)
    part = MostSimilar()
    whole, _ = part(part.init(HERE.setting, HERE.model), HERE.setting, HERE.model, reply)
    assert whole.arrived.tolist() == [True, True, False]
    assert torch.equal(whole.params[1], params[0])  # the mean of the one that arrived
    assert whole.params.shape == (3, size)
