"""LatestUpdates equals algorithm 2 of RAM-Fed, MIFA and FedVARP, written number by number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, State
from fedloom.errors import BadExperiment
from fedloom.parts.aggregate import latest_updates
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from pieces import scattered
from worlds import SIZES, fleet_of, world

HERE = world("normed")  # its last numbers are running statistics
N, P, T = len(SIZES), HERE.setting.layout.total, HERE.setting.layout.trained


def reply_of(chance: Chance, model: Tensor, masked: bool = True, present: float = 0.7, spread: float = 1.0) -> Reply:
    """Random replies of random clients, with the model's own numbers where nothing was sent."""
    ids = (chance.uniform("present", torch.arange(N)) < present).nonzero().flatten()
    arrived = chance.uniform("arrived", ids) < 0.7
    mask = scattered(chance, ids, P, 0.4) & arrived[:, None] if masked else None
    end = model + spread * (chance.uniform("end", ids[:, None], torch.arange(P)) - 0.5)
    params = torch.where(arrived[:, None] if mask is None else mask, end, model)
    rate = 0.1 * 0.8**chance.round
    return Reply(ids, params, mask, {}, {}, arrived, rate)


def by_hand(
    model: list[float], updates: list[list[float]], reply: Reply, correct: bool, move: bool
) -> tuple[list[float], list[list[float]]]:
    """One round in plain Python, in the paper's order."""
    new, kept = list(model), [list(row) for row in updates]
    for number in range(P):
        senders = [
            row
            for row in range(len(reply.ids))
            if reply.arrived[row] and (reply.mask is None or reply.mask[row, number])
        ]
        clients = [int(reply.ids[row]) for row in senders]
        if number >= T:
            if senders and move:
                new[number] = sum(float(reply.params[row, number]) for row in senders) / len(senders)
            continue
        delta = [(model[number] - float(reply.params[row, number])) / reply.rate for row in senders]
        v = sum(u[number] for u in updates) / N
        if senders:
            v += sum(d - updates[n][number] for d, n in zip(delta, clients)) / len(senders)
        for client, d in zip(clients, delta):
            kept[client][number] = d
        if not correct:
            v = sum(u[number] for u in kept) / N
        if move:
            new[number] = model[number] - reply.rate * v
    return new, kept


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("part", [LatestUpdates(), LatestUpdates(correct=False), LatestUpdates(wait=True)], ids=repr)
def test_rounds_by_hand(part: LatestUpdates, masked: bool) -> None:
    model, memory = HERE.model, part.init(HERE.setting, HERE.model)
    hand, updates = model.tolist(), [[0.0] * T for _ in range(N)]
    heard: set[int] = set()
    for number in range(1, 7):
        reply = reply_of(Chance(3, number), model, masked)
        heard |= set(reply.ids[reply.arrived].tolist())
        move = not part.wait or len(heard) == N
        hand, updates = by_hand(hand, updates, reply, part.correct, move)
        before = model
        model, memory = part(memory, HERE.setting, model, reply)
        assert not torch.equal(model, before) or not move
        torch.testing.assert_close(model.double(), torch.tensor(hand).double(), rtol=0, atol=2e-6)
        hand = model.tolist()  # the next round begins from the same numbers
        torch.testing.assert_close(memory["updates"].double(), torch.tensor(updates).double(), rtol=1e-5, atol=2e-5)
    assert memory["heard"].nonzero().flatten().tolist() == sorted(heard)
    assert part.record(memory)["heard"] == len(heard)


def test_what_nobody_sent_repeats_the_mean_of_the_memory() -> None:
    part, first = LatestUpdates(), reply_of(Chance(3, 1), HERE.model, masked=False)
    model, memory = part(part.init(HERE.setting, HERE.model), HERE.setting, HERE.model, first)
    mean = memory["updates"].double().mean(0)
    second = reply_of(Chance(3, 2), model)
    unsent = ~second.mask.any(0)  # type: ignore[union-attr]
    assert 0 < int(unsent[:T].sum()) < T
    new, after = part(memory, HERE.setting, model, second)
    expected = (model[:T] - second.rate * mean).float()
    torch.testing.assert_close(new[:T][unsent[:T]], expected[unsent[:T]], rtol=0, atol=1e-7)
    assert torch.equal(new[T:][unsent[T:]], model[T:][unsent[T:]])  # statistics have no memory
    assert torch.equal(after["mean"][unsent[:T]], memory["mean"][unsent[:T]])


def test_a_round_without_replies_changes_nothing() -> None:
    part, first = LatestUpdates(correct=False), reply_of(Chance(3, 1), HERE.model)
    model, memory = part(part.init(HERE.setting, HERE.model), HERE.setting, HERE.model, first)
    kept = {name: value.clone() for name, value in memory.items()}
    silent = first._replace(arrived=torch.zeros_like(first.arrived), mask=torch.zeros_like(first.params).bool())
    nobody = Reply(first.ids[:0], first.params[:0], None, {}, {}, first.arrived[:0], 0.1)
    for reply in (silent._replace(params=model.expand_as(first.params)), nobody):
        new, memory = part(memory, HERE.setting, model, reply)
        assert torch.equal(new, model)
        assert all(torch.equal(memory[name], kept[name]) for name in kept)


def test_the_memory_moves_by_the_rows_and_numbers_that_were_sent() -> None:
    part = LatestUpdates()
    memory = part.init(HERE.setting, HERE.model)
    memory["updates"].fill_(5.0)
    reply = reply_of(Chance(3, 1), HERE.model)
    sent = torch.zeros(N, T, dtype=torch.bool)
    sent[reply.ids] = reply.mask[:, :T]  # type: ignore[index]
    part(memory, HERE.setting, HERE.model, reply)
    assert memory["updates"][~sent].eq(5).all()
    assert memory["updates"][sent].ne(5).all()
    assert 0 < int(sent.sum()) < sent.numel()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_running_mean_stays_true(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_updates, "BLOCK", 500)  # several blocks, the last one short
    part = LatestUpdates(dtype)
    model, memory = HERE.model, part.init(HERE.setting, HERE.model)
    for number in range(1, 51):
        model, memory = part(memory, HERE.setting, model, reply_of(Chance(5, number), model)._replace(rate=0.1))
    assert memory["mean"].abs().max() < 10
    assert memory["updates"].dtype == getattr(torch, dtype)
    torch.testing.assert_close(memory["mean"], memory["updates"].double().mean(0), rtol=0, atol=1e-13)


@given(st.integers(0, 1000), st.integers(1, 4000))
def test_blocks_are_not_seen(seed: int, block: int) -> None:
    reply = reply_of(Chance(seed, 1), HERE.model)

    def sums(size: int) -> tuple[Tensor, ...]:
        updates = torch.ones(N, T)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(latest_updates, "BLOCK", size)
            return (*latest_updates._remember(updates, HERE.model[:T], reply), updates)

    for ours, theirs in zip(sums(block), sums(2**30)):
        assert torch.equal(ours, theirs)


def rounds(part: LatestUpdates, count: int = 5, spread: float = 1.0) -> tuple[Tensor, State]:
    """Some rounds of replies that do not depend on the model."""
    model, memory = HERE.model, part.init(HERE.setting, HERE.model)
    for number in range(1, count + 1):
        reply = reply_of(Chance(9, number), HERE.model, spread=spread)
        model, memory = part(memory, HERE.setting, model, reply._replace(params=reply.params - HERE.model + model))
    return model, memory


@pytest.mark.parametrize("correct", [True, False])
def test_half_the_memory_costs_little(correct: bool) -> None:
    whole, exact = rounds(LatestUpdates(correct=correct))
    half, memory = rounds(LatestUpdates("float16", correct=correct))
    most = float(exact["updates"].abs().max())
    torch.testing.assert_close(memory["updates"].float(), exact["updates"], rtol=0, atol=most * 2**-11 + 1e-4)
    # a stored update is off by at most 2^-11 of itself; five rounds use at most two means of them each
    assert float((half - whole).abs().max()) <= 5 * 2 * 0.1 * most * 2**-11
    assert not torch.equal(half, whole)


def test_half_the_memory_does_not_overflow() -> None:
    model, memory = rounds(LatestUpdates("float16"), spread=1e5)
    assert memory["updates"].isfinite().all()
    assert memory["updates"].float().abs().max() == torch.finfo(torch.float16).max
    assert model.isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_disk_remembers_the_same(dtype: Any, tmp_path: Any) -> None:
    folder = tmp_path / "deep" / "down"
    model, memory = rounds(LatestUpdates(dtype))
    on_disk, mapped = rounds(LatestUpdates(dtype, str(folder)))
    assert torch.equal(on_disk, model)
    assert all(torch.equal(mapped[name], memory[name]) for name in memory)
    assert folder.is_dir()
    assert not list(folder.iterdir())  # the file has no name, so that nothing is left behind


def test_every_run_begins_anew(tmp_path: Any) -> None:
    for part in (LatestUpdates(), LatestUpdates(folder=str(tmp_path))):
        one, other = (part.init(HERE.setting, HERE.model) for _ in range(2))
        one["updates"].fill_(1.0)
        assert not other["updates"].any()


def test_a_folder_that_cannot_be_is_refused(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadExperiment, match=r"folder is '.*file', where no file can be made"):
        LatestUpdates(folder=str(tmp_path / "file")).init(HERE.setting, HERE.model)
    with pytest.raises(BadExperiment, match=r"folder is .*, which has no room for 4.61e\+12 MB"):
        latest_updates.zeros_on_disk(str(tmp_path), 2**60, torch.float32)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    with pytest.raises(BadExperiment, match="unknown dtype of remembered updates 'float61'; did you mean 'float16'"):
        LatestUpdates("float61")  # type: ignore[arg-type]


def test_a_fleet_of_a_hundred_is_priced_before_it_starts() -> None:
    shape = HERE.setting.layout._replace(names=("w",), shapes=((85_614,),), parameters=("w",))
    fleet = fleet_of(HERE.data, HERE.shards)._replace(examples=torch.ones(100))
    setting = replace(HERE.setting, layout=shape, fleet=fleet)
    said = LatestUpdates().note(setting)
    assert said.endswith("100 x 85,614 numbers (float32) = 34.2 MB in memory.")
    said = LatestUpdates("float16", "there", wait=True).note(setting)
    assert "(float16) = 17.1 MB in a file in 'there'. The model stays until all 100 clients were heard of." in said


@given(st.integers(0, 10**6))
def test_the_order_of_clients_is_irrelevant(seed: int) -> None:
    """With other client numbers the memory is permuted and the model is the same."""
    order = Chance(seed, 0).uniform("order", torch.arange(N)).argsort()
    part, model, renamed = LatestUpdates(), HERE.model, HERE.model
    memory, other = part.init(HERE.setting, model), part.init(HERE.setting, model)
    for number in (1, 2, 3):
        reply = reply_of(Chance(seed, number), HERE.model)
        model, memory = part(memory, HERE.setting, model, reply)
        renamed, other = part(other, HERE.setting, renamed, reply._replace(ids=order[reply.ids]))
    assert torch.equal(renamed, model)
    assert torch.equal(other["updates"][order], memory["updates"])


def test_the_first_round_is_the_coverage_mean() -> None:
    part = LatestUpdates()
    for masked in (True, False):
        reply = reply_of(Chance(4, 1), HERE.model, masked)
        new, _ = part(part.init(HERE.setting, HERE.model), HERE.setting, HERE.model, reply)
        mean = CoverageMean("uniform")({}, HERE.setting, HERE.model, reply)[0]
        torch.testing.assert_close(new, mean, rtol=0, atol=3e-7 if masked else 0)  # updates are rounded to single
