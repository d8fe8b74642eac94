"""The batches of a cohort: what is gathered, what the transform makes of it, and what each example counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import absorb, uniform
from fedloom.core.goal import Goal, Transform
from fedloom.core.optimiser import Sgd
from fedloom.core.types import Batch
from fedloom.core.work import Batches
from fedloom.data.augment import Crop, Flip, Mixup, Noise, Own, Seeded, Several
from fedloom.engine import steps
from fedloom.engine.cpu import blocks as blocks_, native_steps
from fedloom.engine.cpu.blocks import Block, blocks
from fedloom.engine.cpu.native.move import Moves
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.feed import PLACE, Feed, weights
from fedloom.goals import classes
from native_worlds import METHOD, convs, feed_of, here, needs_compiler, unlike, with_goal
from worlds import CLASSES, World, assert_close, play

LABELS = torch.arange(40) * 7 % CLASSES
SIZES, BATCH = [10, 7, 3], 4


def relabel(x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Other examples and other labels."""
    return x * uniform(keys).view(-1, 1, 1, 1), (y + (keys & 1)) % CLASSES


def blend(x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours mixed, and the first label for all."""
    return (x + x[keys.argsort()]) / 2 + len(x), y[:1].expand(len(y))


blend.mixes = True  # type: ignore[attr-defined]


def dimmed(x: Tensor) -> Tensor:
    """Draws from torch's own generator."""
    return x * torch.rand(())


PLAIN: dict[str, Transform] = {
    "several": Several((Flip(), Crop(2), Noise(0.1))),
    "labels": Own(relabel),
}
MIXING: dict[str, Transform] = {"blend": Own(blend), "seeded": Seeded(dimmed)}
ALL = {**PLAIN, **MIXING, "mixup": Mixup(CLASSES, 0.4)}


def place_of(transform: Transform | None, goal: Goal | None = None, network: nn.Module | None = None) -> World:
    """A small network, whose examples are transformed."""
    return with_goal(here(network or convs(5, dense=(6,))), goal or classes(), LABELS, transform)


def alone(feed: Feed, client: int) -> Feed:
    """One client's batches by itself."""
    count, some = int(feed.batches.steps[client]), slice(client, client + 1)
    own = {name: getattr(feed.batches, name)[some] for name in ("examples", "real", "steps", "keys")}
    return replace(feed, batches=feed.batches._replace(**own, active=[1] * count))


def assert_equal(one: Batch, other: Batch, at: Callable[[Tensor], Tensor]) -> None:
    """Rows of a batch, bit for bit."""
    for ours, theirs in zip(one, other):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, at(theirs))


def test_plain_batches_are_rows_of_the_data() -> None:
    feed = feed_of(place_of(None), SIZES, BATCH, epochs=2)
    found = list(feed)
    assert [len(batch.y) for batch in found] == feed.batches.active == [3, 3, 2, 2, 1, 1]  # 3, 2 and 1 an epoch
    for step, batch in enumerate(found):
        now = slice(len(batch.y))
        rows, real = feed.batches.examples[now, step], feed.batches.real[now, step]
        assert torch.equal(batch.x, feed.data.x[rows])
        assert torch.equal(batch.y, feed.data.y[rows])
        assert torch.equal(batch.weight, real / real.sum(1, keepdim=True))
        assert torch.equal(batch.keys, feed.batches.keys[now, step])


@pytest.mark.parametrize("transform", [None, Own(relabel), Own(blend)])
def test_weights_are_those_of_the_targets_that_count(transform: Transform | None) -> None:
    goal = classes((0.5, 0.0, 2.0))
    assert goal.weigh is not None
    for batch, plain in zip(feed_of(place_of(transform, goal), SIZES, 2), feed_of(place_of(transform), SIZES, 2)):
        assert torch.equal(batch.x, plain.x)
        assert torch.equal(batch.y, plain.y)
        raw = goal.weigh(batch.y) * (plain.weight > 0)
        assert torch.equal(batch.weight, raw / raw.sum(1, keepdim=True).clamp(min=1e-30))
        assert ((batch.weight.sum(1) - 1).abs() < 1e-6).logical_or(raw.sum(1) == 0).all()


def test_a_batch_that_counts_for_nothing_has_no_weight() -> None:
    real, y = torch.tensor([[True, True, False], [True, True, True]]), torch.tensor([[1, 1, 0], [1, 0, 2]])
    found = weights(classes((1.0, 0.0, 3.0)), y, real, torch.float64)
    assert torch.equal(found, torch.tensor([[0, 0, 0], [0, 0.25, 0.75]], dtype=torch.float64))
    assert torch.equal(weights(classes(), y, real, torch.float64).sum(1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_have_the_networks_type(dtype: torch.dtype) -> None:
    feed = replace(feed_of(place_of(None, classes((1.0, 2.0, 3.0))), SIZES, BATCH), dtype=dtype)
    assert {batch.weight.dtype for batch in feed} == {dtype}


def test_every_example_has_a_key_of_its_own() -> None:
    seen: list[Tensor] = []

    def noting(x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(keys)
        return x, y

    feed = feed_of(place_of(noting), SIZES, BATCH, epochs=2)
    for step, batch in enumerate(feed):
        own = absorb(feed.batches.keys[: len(batch.y), step], PLACE)
        assert torch.equal(seen[step].view(-1, BATCH), absorb(own[:, None], torch.arange(BATCH)))
    everyone = torch.cat(seen)
    assert len(everyone.unique()) == len(everyone)


@pytest.mark.parametrize("name", ALL)
def test_company_changes_no_bit(name: str) -> None:
    """A client's batches are the same in any chunk, with padding at other widths."""
    feed = feed_of(place_of(ALL[name]), SIZES, BATCH, epochs=2)
    together = list(feed)
    for client in range(len(SIZES)):
        for batch, mine in zip(together, alone(feed, client)):
            assert_equal(mine, batch, lambda t, row=client: t[row : row + 1])
    wide = replace(feed, batches=padded(feed.batches))
    for batch, wider in zip(together, wide):
        real = batch.weight > 0
        assert torch.equal(wider.weight[:, :BATCH] > 0, real)
        assert torch.equal(wider.x[:, :BATCH][real], batch.x[real])
        assert torch.equal(wider.y[:, :BATCH][real], batch.y[real])


def padded(batches: Batches) -> Batches:
    """The same batches beside those of a client with larger ones."""
    wide = {name: torch.nn.functional.pad(getattr(batches, name), (0, 3)) for name in ("examples", "real")}
    return batches._replace(**wide)


@pytest.mark.parametrize("name", MIXING)
def test_who_mixes_sees_one_clients_real_examples(name: str) -> None:
    feed = feed_of(place_of(MIXING[name]), SIZES, BATCH)
    batches, transform = feed.batches, MIXING[name]
    for step, batch in enumerate(feed):
        for client in range(len(batch.y)):
            real = batches.real[client, step]
            rows = batches.examples[client, step][real]
            keys = absorb(absorb(batches.keys[client, step], PLACE), torch.arange(BATCH))[real]
            x, y = transform(feed.data.x[rows], feed.data.y[rows], keys)
            assert torch.equal(batch.x[client][real], x)
            assert torch.equal(batch.y[client][real], y)
            assert torch.equal(batch.x[client][~real], torch.zeros_like(batch.x[client][~real]))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("small", "largest", "threads", "groups"),
    [
        (2**25, 2**28, 2, [3]),
        (2**25, 2**28, 1, [3]),
        (1, 2**28, 2, [2, 1]),
        (1, 2**28, 1, [1] * 3),
        (1, 1, 2, [1] * 3),
    ],
)
def test_blocks_hold_the_batches_of_the_feed(
    name: str, small: int, largest: int, threads: int, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = feed_of(place_of(ALL[name]), SIZES, BATCH, epochs=2)
    monkeypatch.setattr(blocks_, "SMALL", small)
    one = 6 * BATCH * feed.data.x[0].nbytes  # the first client's
    monkeypatch.setattr(blocks_, "LARGEST", max(largest, one))
    found = blocks(feed.data, feed.batches, ALL[name], threads)
    assert found is not None
    parts = list(found)
    assert [len(part.batches.steps) for part in parts] == groups
    together = list(feed)
    for part in parts:
        assert part.data.x.is_contiguous()
        assert len(part.data.x) == BATCH * int(part.batches.steps.sum())
        for step, batch in enumerate(together):
            now = slice(part.clients.start, min(part.clients.stop, len(batch.y)))
            own = part.batches.examples[: max(0, now.stop - now.start), step]
            assert torch.equal(part.data.x[own], batch.x[now])
            assert torch.equal(part.data.y[own], batch.y[now])


def test_a_client_too_large_for_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = feed_of(place_of(Flip()), SIZES, BATCH)
    monkeypatch.setattr(blocks_, "LARGEST", 3 * BATCH * feed.data.x[0].nbytes - 1)
    assert blocks(feed.data, feed.batches, Flip(), 1) is None


# ---- whole runs


@needs_compiler
@pytest.mark.parametrize("name", [*PLAIN, *MIXING])
@pytest.mark.parametrize("goal", [classes(), classes((0.5, 0.0, 2.0), 0.1)])
@pytest.mark.parametrize("small", [1, 2**25])
def test_the_c_code_takes_transformed_examples(
    name: str, goal: Goal, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, taken = place_of(ALL[name], goal), []

    def noting(start: steps.Start) -> steps.Taken | None:
        taken.append(native_steps.native_steps(start))
        return taken[-1]

    monkeypatch.setattr(steps, "native_steps", noting)
    monkeypatch.setattr(blocks_, "SMALL", small)
    engine = place.local(METHOD)
    assert engine.plan.steps == ("native", "fused", "autograd")
    ours, theirs = play(place, METHOD, engine, 2), play(place, METHOD, place.loop(METHOD), 2)
    assert [found is None for found in taken] == [False, False]
    assert_close({"w": ours.model}, {"w": theirs.model}, 1e-6)
    untransformed = play(place_of(None, goal), METHOD, place_of(None, goal).loop(METHOD), 2)
    assert not torch.allclose(ours.model, untransformed.model, atol=1e-4)


@needs_compiler
def test_frozen_neurons_and_momentum_with_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one client each, beside all clients at once."""
    place = place_of(Own(relabel))
    neurons, first, feed = place.setting.neurons, unlike(place, 3), feed_of(place, SIZES, BATCH)
    keep = neurons.cut(torch.rand(3, neurons.size, generator=torch.Generator().manual_seed(1)), 0.5)

    moves = Moves(Sgd(rate=0.1, weight_decay=0.3, momentum=0.5), 0.1)

    def descended(part: Block) -> Any:
        layers = native_steps.plain_layers(place.setting)
        assert layers is not None
        assert place.setting.goal.head is not None
        facts = place.setting.layout, place.setting.goal.head, first[part.clients], part.data, part.batches
        return native_steps.descend_native(layers, *facts, moves, keep[part.clients], neurons)

    whole = [descended(part) for part in blocks(feed.data, feed.batches, Own(relabel), 1) or ()]
    monkeypatch.setattr(blocks_, "SMALL", 1)
    parts = [descended(part) for part in blocks(feed.data, feed.batches, Own(relabel), 1) or ()]
    assert (len(whole), len(parts)) == (1, 3)
    assert all(torch.equal(torch.cat(own), one) for own, one in zip(zip(*parts), whole[0]))


@needs_compiler
def test_too_large_a_client_takes_the_next_way(monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(Flip())
    engine, theirs = place.local(METHOD), play(place, METHOD, place.loop(METHOD), 1)
    monkeypatch.setattr(blocks_, "LARGEST", 1)
    assert_close({"w": play(place, METHOD, engine, 1).model}, {"w": theirs.model}, 1e-6)


@needs_compiler
def test_shares_of_classes_take_the_next_way() -> None:
    place = place_of(Mixup(CLASSES, 0.4))
    engine = place.local(METHOD)
    assert engine.plan.steps == ("fused", "autograd")
    assert "turns classes into shares" in dict(engine.plan.reasons)["native"]
    ours, theirs = play(place, METHOD, engine, 2), play(place, METHOD, place.loop(METHOD), 2)
    assert_close({"w": ours.model}, {"w": theirs.model}, 1e-6)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("goal", [classes(), classes((0.5, 0.0, 2.0), 0.1)])
def test_steps_in_static_buffers_transform(name: str, goal: Goal) -> None:
    place = place_of(PLAIN[name], goal)
    engine = place.local(METHOD, graphs=Graphs(capture=False))
    assert (engine.plan.captured, engine.plan.steps) == (True, ("fused",))
    ours, theirs = play(place, METHOD, engine, 2), play(place, METHOD, place.loop(METHOD), 2)
    assert_close({"w": ours.model}, {"w": theirs.model}, 1e-6)


@pytest.mark.parametrize("name", MIXING)
def test_who_mixes_is_not_captured(name: str) -> None:
    place = place_of(MIXING[name])
    engine = place.local(METHOD, graphs=Graphs(capture=False))
    assert not engine.plan.captured
    assert "mixes the examples" in dict(engine.plan.reasons)["captured"]
    ours, theirs = play(place, METHOD, engine, 2), play(place, METHOD, place.loop(METHOD), 2)
    assert_close({"w": ours.model}, {"w": theirs.model}, 1e-6)
