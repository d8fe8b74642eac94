"""The C code with the losses of several goals: plain PyTorch's steps, and a reason where it does not know a loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from fedloom import BadExperiment
from fedloom.core.goal import Goal, Head
from fedloom.engine.cpu import native_steps
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.goals import binary, classes, labels, numbers, own, tokens
from native_worlds import (
    METHOD,
    by_hand,
    convs,
    feed_of,
    here,
    native_steps_of,
    needs_compiler,
    unlike,
    with_goal,
)
from worlds import CLASSES, World, assert_close, cross_entropy, play

N = 40
LABELS, YES_NO = torch.arange(N) * 7 % CLASSES, torch.arange(N) * 5 % 7 % 2
MANY = torch.arange(N * 4).view(N, 4)


class Case(NamedTuple):
    """A goal, targets for it, and the width of the answer."""

    goal: Goal
    y: Tensor = LABELS
    outputs: int = CLASSES


CASES: dict[str, Case] = {
    "plain": Case(classes()),
    "smoothed": Case(classes(smoothing=0.1)),
    "class weights": Case(classes((0.5, 2.0, 1.25))),
    "class weights, smoothed": Case(classes((0.5, 2.0, 1.25), 0.2)),
    "a class without weight": Case(classes((1.0, 0.0, 2.0), 0.3)),
    "outputs that are no classes": Case(classes((0.5, 2.0, 1.25), 0.1), outputs=11),
    "smoothed over more outputs": Case(classes(smoothing=0.3), outputs=11),
    "one number": Case(numbers(), (torch.arange(N) * 0.7).sin(), 1),
    "numbers": Case(numbers(), (MANY * 0.7).sin(), 4),
    "numbers as a table": Case(numbers(), (MANY * 0.7).sin().view(N, 2, 2), 4),
    "labels": Case(labels(), MANY * 3 % 5 % 2, 4),
    "labels, weighted": Case(labels(3.0), MANY * 3 % 5 % 2, 4),
    "binary": Case(binary(), YES_NO, 1),
    "binary, weighted": Case(binary(0.4), YES_NO, 1),
}


def place_of(name: str, images: bool) -> World:
    """A small network for this goal."""
    goal, y, outputs = CASES[name]
    dense = nn.Sequential(nn.Flatten(), nn.Linear(126, 17), nn.ReLU(), nn.Linear(17, outputs))
    return with_goal(here(convs(5, 9, dense=(13,), outputs=outputs) if images else dense), goal, y)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize(("shrink", "momentum"), [(1.0, 0.0), (0.97, 0.5)])
def test_steps_are_plain_pytorchs(name: str, images: bool, shrink: float, momentum: float) -> None:
    place = place_of(name, images)
    first, feed = unlike(place, 3), feed_of(place, [10, 7, 3], 4)
    ours, theirs = (f(place, first, feed, shrink, momentum) for f in (native_steps_of, by_hand))
    assert_close(dict(zip("wl", ours)), dict(zip("wl", theirs)), 2e-6)
    assert not torch.equal(ours[0], first * shrink)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_frozen_neurons_stay_and_others_move(name: str) -> None:
    place = place_of(name, images=True)
    neurons, first, feed = place.setting.neurons, unlike(place, 3), feed_of(place, [10, 9, 4], 4)
    keep = neurons.cut(torch.rand(3, neurons.size, generator=torch.Generator().manual_seed(1)), 0.5)
    mask = neurons.expand(keep)
    last, losses = native_steps_of(place, first, feed, 0.97, 0.5, keep)
    theirs = by_hand(place, first, feed, 0.97, 0.5, mask)
    assert_close({"w": last, "l": losses}, dict(zip("wl", theirs)), 2e-6)
    assert torch.equal(last[~mask], first[~mask])


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_threads_change_no_bit(name: str) -> None:
    place = place_of(name, images=True)
    first, feed = unlike(place, 3), feed_of(place, [10, 9, 4], 4)
    torch.set_num_threads(1)
    alone = native_steps_of(place, first, feed)
    torch.set_num_threads(4)
    together = native_steps_of(place, first, feed)
    assert all(map(torch.equal, alone, together))


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.01, 0.5, 1.0, 7.0, 300.0]), min_size=CLASSES, max_size=CLASSES).filter(any),
    st.sampled_from([0.0, 0.05, 0.9]),
    st.integers(0, 20),
    st.lists(st.integers(0, CLASSES - 1), min_size=N, max_size=N),
    st.integers(1, 10),
)
def test_any_class_weights(weights: list[float], smoothing: float, more: int, y: list[int], batch: int) -> None:
    outputs = CLASSES + more
    place = here(nn.Sequential(nn.Flatten(), nn.Linear(126, outputs)))
    place = with_goal(place, classes(tuple(weights), smoothing), torch.tensor(y))
    first, feed = unlike(place, 2), feed_of(place, [10, 5], batch)
    ours, theirs = (f(place, first, feed) for f in (native_steps_of, by_hand))
    assert_close(dict(zip("wl", ours)), dict(zip("wl", theirs)), 5e-6)


@needs_compiler
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_batch_without_weight_moves_nothing_but_decays(smoothing: float, momentum: float) -> None:
    place = with_goal(here(convs(5, dense=(6,))), classes((1.0, 0.0, 2.0), smoothing), torch.ones(N, dtype=torch.int64))
    first, feed = unlike(place, 2), feed_of(place, [10, 10], 10)
    last, losses = native_steps_of(place, first, feed, momentum=momentum)
    assert torch.equal(last, first)
    assert torch.equal(losses, torch.zeros(2))
    last, losses = native_steps_of(place, first, feed, 0.97, momentum)
    torch.testing.assert_close(last, first * 0.97, rtol=1e-6, atol=0)
    assert torch.equal(losses, torch.zeros(2))


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_a_run_is_the_loops(name: str) -> None:
    place = place_of(name, images=True)
    engine = place.local(METHOD)
    assert engine.plan.steps == ("native", "fused", "autograd")
    assert dict(engine.plan.reasons) == {}
    ours, theirs = play(place, METHOD, engine, 2), play(place, METHOD, place.loop(METHOD), 2)
    assert_close({"w": ours.model}, {"w": theirs.model}, 1e-6)
    losses = [run.replies[-1].report["loss"] for run in (ours, theirs)]
    assert_close({"l": losses[0]}, {"l": losses[1]}, 1e-6)
    assert not torch.equal(ours.model, place.model)


@needs_compiler
def test_labels_beyond_the_classes_are_refused() -> None:
    for name in ("smoothed", "class weights", "outputs that are no classes"):
        place = place_of(name, images=False)
        place.data.y[3] = -1
        with pytest.raises(BadExperiment, match="a label is not among the model's"):
            native_steps_of(place, unlike(place, 1), feed_of(place, [10], 4))


FOCAL, SUMMED = classes(focal=2.0), own(cross_entropy)
REFUSED: dict[str, tuple[Goal, Tensor, int, str]] = {
    "focal": (FOCAL, LABELS, CLASSES, "the goal's loss, CrossEntropy(weights=None, smoothing=0.0, focal=2.0), is not"),
    "own": (SUMMED, LABELS, CLASSES, "the goal's loss, worlds.cross_entropy, is not one that the C code knows"),
    "l1": (numbers("l1"), (MANY * 0.7).sin(), 4, "the goal's loss, NumberLoss(kind='l1', delta=1.0), is not"),
    "weighed": (
        replace(numbers(), weigh=tokens().weigh), (MANY * 0.7).sin(), 4, "weighs examples otherwise than by their cl"
    ),
    "not weighed": (
        replace(classes((1.0, 2.0, 3.0)), weigh=None), LABELS, CLASSES, "weighs examples otherwise than by their cl"
    ),
    "another loss": (replace(FOCAL, head=Head("softmax")), LABELS, CLASSES, "it differs from plain PyTorch by "),
    "doubles": (numbers(), (MANY * 0.7).sin().double(), 4, "torch.float64; it needs float32 and float32"),
    "bytes": (labels(), (MANY % 2).byte(), 4, "torch.uint8; it needs float32 and int64"),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_why_not(name: str) -> None:
    goal, y, outputs, why = REFUSED[name]
    place = with_goal(here(nn.Sequential(nn.Flatten(), nn.Linear(126, outputs))), goal, y)
    plan = place.local(METHOD).plan
    assert why in dict(plan.reasons)["native"]
    assert plan.steps == ("fused", "autograd")


@needs_compiler
def test_targets_that_do_not_suit_the_outputs() -> None:
    three = here(nn.Sequential(nn.Flatten(), nn.Linear(126, CLASSES)))
    for goal, y in ((numbers(), (MANY * 0.7).sin()), (labels(), MANY % 2), (classes((1.0,) * 4), LABELS)):
        place = with_goal(three, goal, y)
        assert "do not suit the network's 3 outputs" in native_steps.why_not_native(place.setting, place.data)


@needs_compiler
def test_one_network_with_two_goals() -> None:
    """What is known of a network holds for one loss."""
    place = here(convs(5))
    wrong = with_goal(place, replace(FOCAL, head=Head("softmax", None, 0.1)), LABELS)
    assert "differs" in native_steps.why_not_native(wrong.setting, wrong.data)
    assert native_steps.why_not_native(place.setting, place.data) == ""


@needs_compiler
def test_outputs_serve_every_goal() -> None:
    place = with_goal(here(convs(5, outputs=4)), own(cross_entropy), LABELS)
    models, x = unlike(place, 2), place.data.x.unflatten(0, (2, 20))
    found = native_steps.native_outputs(place.setting, place.setting.layout, models, x)
    assert found is not None
    torch.testing.assert_close(found, PlainGradient(place.setting).outputs(models, x), rtol=1e-5, atol=1e-5)
