"""Code of our own for CPUs: plain PyTorch's steps, by any number of threads, and torch's layers where it cannot be."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fedloom import BadExperiment
from fedloom.core.types import Examples
from fedloom.engine import steps
from fedloom.engine.cpu import native, native_steps
from fedloom.engine.feed import Feed
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.engine.plain_layers import plain_layers
from native_worlds import (
    METHOD,
    NETWORKS,
    by_hand,
    convs,
    feed_of,
    here,
    native_steps_of,
    needs_compiler,
    unlike,
)
from worlds import CLASSES, assert_close, play


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("shrink", "momentum"), [(1.0, 0.0), (0.97, 0.0), (1.0, 0.5), (0.97, 0.5)])
def test_steps_are_plain_pytorchs(name: str, shrink: float, momentum: float) -> None:
    place = here(NETWORKS[name]())
    first, feed = unlike(place, 3), feed_of(place, [10, 7, 3], 4)
    ours, theirs = (f(place, first, feed, shrink, momentum) for f in (native_steps_of, by_hand))
    assert_close({"weights": ours[0], "losses": ours[1]}, {"weights": theirs[0], "losses": theirs[1]}, 2e-6)
    assert not torch.equal(ours[0], first)


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 19), max_size=2),
    st.lists(st.integers(1, 19), max_size=2),
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(1, 10), min_size=1, max_size=5),
    st.integers(1, 10),
    st.integers(1, 3),
)
def test_any_sizes(
    widths: list[int], dense: list[int], kernel: int, padding: int, pool: bool, bias: bool, sizes: list[int],
    batch: int, threads: int,
) -> None:  # fmt: skip
    place = here(convs(*widths, dense=tuple(dense), kernel=kernel, padding=padding, pool=pool, bias=bias))
    sizes = sorted(sizes, reverse=True)[:4]
    first, feed = unlike(place, len(sizes)), feed_of(place, sizes, batch)
    torch.set_num_threads(threads)
    ours, theirs = native_steps_of(place, first, feed), by_hand(place, first, feed)
    assert_close({"weights": ours[0], "losses": ours[1]}, {"weights": theirs[0], "losses": theirs[1]}, 5e-6)


@needs_compiler
@pytest.mark.parametrize("name", ["pooled", "dense"])
def test_threads_and_company_change_no_bit(name: str) -> None:
    place = here(NETWORKS[name]())
    first, feed = unlike(place, 4), feed_of(place, [10, 10, 10, 10], 4, epochs=2)
    torch.set_num_threads(1)
    weights, losses = native_steps_of(place, first, feed)
    for threads in (2, 3, 4, 7):
        torch.set_num_threads(threads)
        again = native_steps_of(place, first, feed)
        assert torch.equal(again[0], weights)
        assert torch.equal(again[1], losses)
    for client in range(4):
        one = feed.batches._replace(
            **{key: getattr(feed.batches, key)[client : client + 1] for key in ("examples", "real", "steps", "keys")},
            active=[1] * len(feed.batches.active),
        )
        alone = native_steps_of(place, first[client : client + 1], Feed(place.data, one, place.setting.goal))
        assert torch.equal(alone[0][0], weights[client])


@needs_compiler
@pytest.mark.parametrize("name", ["pooled", "many channels", "not pooled", "one convolution", "dense"])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_frozen_neurons_stay_and_others_move(name: str, share: float, momentum: float) -> None:
    place = here(NETWORKS[name]())
    neurons, first, feed = place.setting.neurons, unlike(place, 3), feed_of(place, [10, 9, 4], 4)
    keep = neurons.cut(torch.rand(3, neurons.size, generator=torch.Generator().manual_seed(1)), share)
    mask = neurons.expand(keep)
    last, losses = native_steps_of(place, first, feed, 0.97, momentum, keep)
    theirs = by_hand(place, first, feed, 0.97, momentum, mask)
    assert_close({"weights": last, "losses": losses}, {"weights": theirs[0], "losses": theirs[1]}, 2e-6)
    assert torch.equal(last[~mask], first[~mask])


@needs_compiler
def test_of_equal_numbers_the_first_is_the_largest() -> None:
    """Whole numbers, of which windows have several largest ones; sums of them are exact."""
    place = here(convs(6, 5, dense=(4,)))
    data = Examples(place.data.x.mul(2).round(), place.data.y)
    place = place._replace(data=data)
    first, feed = place.model[None].mul(4).round(), feed_of(place, [10], 10)
    ours, theirs = native_steps_of(place, first, feed), by_hand(place, first, feed)
    assert_close({"weights": ours[0], "losses": ours[1]}, {"weights": theirs[0], "losses": theirs[1]}, 2e-5)


@needs_compiler
@pytest.mark.parametrize("name", ["pooled", "dense"])
def test_what_is_not_a_number_stays_with_its_client(name: str) -> None:
    place = here(NETWORKS[name]())
    first, feed = unlike(place, 3), feed_of(place, [10, 10, 10], 4)
    well, _ = native_steps_of(place, first, feed)
    first[1, 5] = float("nan")
    last, losses = native_steps_of(place, first, feed)
    assert torch.equal(last[[0, 2]], well[[0, 2]])
    assert losses[1].isnan()
    assert last[1].isnan().sum() > 1
    theirs, _ = by_hand(place, first, feed)
    assert torch.equal(last.isnan().any(1), theirs.isnan().any(1))


@needs_compiler
def test_labels_beyond_the_classes_are_refused() -> None:
    place = here(NETWORKS["dense"]())
    place.data.y[3] = CLASSES
    with pytest.raises(BadExperiment, match=f"not among the model's {CLASSES} classes"):
        native_steps_of(place, place.model[None], feed_of(place, [10], 4))


@needs_compiler
@pytest.mark.parametrize("name", ["pooled", "dense"])
def test_it_is_what_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, calls = here(NETWORKS[name]()), []

    def counted(start: steps.Start) -> steps.Taken | None:
        calls.append(native_steps.native_steps(start))
        return calls[-1]

    monkeypatch.setattr(steps, "native_steps", counted)
    engine = place.local(METHOD)
    assert engine.plan.steps[0] == "native"
    ours = play(place, METHOD, engine, rounds=1)
    assert [taken is None for taken in calls] == [False]
    monkeypatch.setattr(native_steps, "library", lambda: None)
    theirs = play(place, METHOD, engine, rounds=1)
    assert [taken is None for taken in calls] == [False, True]
    assert_close({"w": ours.model}, {"w": theirs.model}, 1e-6)
    assert not torch.equal(ours.model, theirs.model)  # by other code, which rounds otherwise


@needs_compiler
@pytest.mark.parametrize("name", ["pooled", "dense"])
def test_a_misread_network_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = here(NETWORKS[name]())
    wrong = tuple(stage._replace(relu=False) for stage in plain_layers(place.setting) or ())
    monkeypatch.setattr(native_steps, "plain_layers", lambda setting: wrong)
    assert native_steps.why_not_native(place.setting, place.data).startswith("it differs from plain PyTorch by ")
    assert "native" not in place.local(METHOD).plan.steps
    x = place.data.x[None]
    assert native_steps.native_outputs(place.setting, place.setting.layout, place.model[None], x) is None


@needs_compiler
def test_what_it_cannot_train() -> None:
    place = here(NETWORKS["dense"]())
    x, y = place.data
    assert native_steps.why_not_native(place.setting, place.data) == ""
    for data in (Examples(x.double(), y), Examples(x, y.int())):
        assert "it needs float32 and int64" in native_steps.why_not_native(place.setting, data)
    assert "it runs on CPUs" in native_steps.why_not_native(place.setting, Examples(x.to("meta"), y.to("meta")))
    assert "one block of memory" in native_steps.why_not_native(place.setting, Examples(x.transpose(2, 3), y))
    other = here(NETWORKS["dense"]())
    other.setting.module.double()
    assert "float64" in native_steps.why_not_native(other.setting, place.data)
    deep = here(
        nn.Sequential(nn.Flatten(), nn.Linear(126, 2), *(nn.Linear(2, 2) for _ in range(31)), nn.Linear(2, CLASSES))
    )
    assert "at most 32 layers" in native_steps.why_not_native(deep.setting, deep.data)


@needs_compiler
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("dense", "linear")])
@pytest.mark.parametrize(("clients", "count"), [(1, 40), (3, 13), (2, 1)])
def test_outputs_are_plain_pytorchs(name: str, clients: int, count: int) -> None:
    place = here(NETWORKS[name]())
    models, x = unlike(place, clients), place.data.x[: clients * count].unflatten(0, (clients, count))
    ours = native_steps.native_outputs(place.setting, place.setting.layout, models, x)
    assert ours is not None
    theirs = PlainGradient(place.setting).outputs(models, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert torch.equal(StackedGradient(place.setting).outputs(models, x), ours)


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing is compiled yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDLOOM_NATIVE", raising=False)
    native._found.cache_clear()
    yield tmp_path / "fedloom"
    native._found.cache_clear()


@needs_compiler
def test_it_is_compiled_once(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.library() is not None
    (kept,) = anew.iterdir()  # and nothing else is left
    written = kept.stat().st_mtime_ns
    native._found.cache_clear()
    monkeypatch.setattr(subprocess, "run", None)
    assert native.library() is not None
    assert kept.stat().st_mtime_ns == written


@needs_compiler
def test_where_nothing_can_be_kept_it_is_compiled_all_the_same(anew: Path) -> None:
    anew.write_text("a file in the folder's place")
    assert native.library() is not None


def test_turned_off(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_NATIVE", "0")
    assert native.library() is None
    assert not anew.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no compiler is looked for")
@pytest.mark.parametrize(("how", "says"), [("none", "no C compiler"), ("broken", "failed")])
def test_without_a_compiler_torch_does_it(
    how: str, says: str, anew: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tools = anew.parent / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CC", raising=False)
    if how == "broken":
        (tools / "gcc").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
        (tools / "gcc").chmod(0o755)
    with caplog.at_level(logging.INFO, "fedloom"):
        place = here(NETWORKS["pooled"]())
        engine = place.local(METHOD)
    assert says in caplog.text
    assert engine.plan.steps == ("fused", "autograd")
    assert says in dict(engine.plan.reasons)["native"]
    feed = feed_of(place, [10, 5], 4)
    ours = StackedGradient(place.setting).descent(unlike(place, 2), feed, 0.1, 1.0)
    theirs = by_hand(place, unlike(place, 2), feed)
    assert_close(dict(zip("wl", ours)), dict(zip("wl", theirs)), 2e-6)
