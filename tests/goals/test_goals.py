"""Goals: losses against torch's own batch means, gradients of all kinds, and what must not count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from goal_worlds import CASES, N, class_of, drawn, goal_world, some_ignored
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Batch
from fedloom.core.work import Work
from fedloom.engine.feed import Feed, weights
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.engine.gradient.vmapped import VmappedGradient
from fedloom.errors import BadExperiment
from fedloom.goals import binary, classes, labels, next_token, numbers, pixels, tokens
from worlds import World

each_case = pytest.mark.parametrize("name", CASES)
KINDS = [StackedGradient, VmappedGradient]


def batches_of(here: World, dtype: torch.dtype = torch.float64) -> list[Batch]:
    """A round's batches of all clients, ragged."""
    ids = torch.tensor(sorted(range(len(here.shards.sizes)), key=lambda i: -here.shards.sizes[i]))
    sizes = [here.shards.sizes[i] for i in ids.tolist()]
    rows = here.shards.rows(ids, max(sizes))
    batches = Work(epochs=1, batch=6).plan(ids, rows, sizes, Chance(3, 1))
    return list(Feed(here.data, batches, here.setting.goal, None, dtype))


@each_case
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_on_ragged_batches(name: str, kind: Callable[..., PlainGradient]) -> None:
    here = goal_world(name, torch.float64)
    ours, plain = kind(here.setting), PlainGradient(here.setting)
    for batch in batches_of(here):
        params = here.model * (1 + 0.1 * torch.arange(len(batch.y), dtype=torch.float64))[:, None]
        for got, expected in zip(ours(params.clone(), batch), plain(params.clone(), batch)):
            assert float((got - expected).abs().max()) <= 1e-12


# ---- batch means of torch


def batch_mean(goal, output: Tensor, y: Tensor) -> Tensor:
    """The loss of one batch without padding."""
    weight = weights(goal, y[None], torch.ones(1, len(y), dtype=torch.bool), output.dtype)[0]
    return (goal.loss(output, y) * weight).sum()


OUT = drawn("outputs", N, 3).double() * 6 - 3
Y = class_of("y", 3, N)
W = torch.tensor([0.5, 2.0, 0.25], dtype=torch.float64)
BITS = class_of("bits", 2, N, 3)
PLACES, TAGS = drawn("places", N, 5, 3).double() * 6 - 3, some_ignored(class_of("t", 3, N, 5), -100)
MAPS, MASKS = drawn("maps", N, 3, 4, 4).double() * 6 - 3, some_ignored(class_of("m", 3, N, 4, 4), 255)
REALS = drawn("reals", N, 3).double()

AS_TORCH = {
    "classes": (classes(), OUT, Y, lambda: F.cross_entropy(OUT, Y)),
    "weights": (classes(tuple(W.tolist())), OUT, Y, lambda: F.cross_entropy(OUT, Y, W)),
    "smoothing": (classes(smoothing=0.2), OUT, Y, lambda: F.cross_entropy(OUT, Y, label_smoothing=0.2)),
    "weights and smoothing": (
        classes(tuple(W.tolist()), 0.2), OUT, Y, lambda: F.cross_entropy(OUT, Y, W, label_smoothing=0.2)
    ),
    "labels": (labels(), OUT, BITS, lambda: F.binary_cross_entropy_with_logits(OUT, BITS.double())),
    "labels, positive": (
        labels(3.0), OUT, BITS,
        lambda: F.binary_cross_entropy_with_logits(OUT, BITS.double(), pos_weight=torch.tensor(3.0)),
    ),
    "binary": (
        binary(), OUT[:, :1], BITS[:, 0], lambda: F.binary_cross_entropy_with_logits(OUT[:, 0], BITS[:, 0].double())
    ),
    "mse": (numbers(), OUT, REALS, lambda: F.mse_loss(OUT, REALS)),
    "l1": (numbers("l1"), OUT, REALS, lambda: F.l1_loss(OUT, REALS)),
    "huber": (numbers("huber", 0.7), OUT, REALS, lambda: F.huber_loss(OUT, REALS, delta=0.7)),
    "tokens per token": (tokens("token"), PLACES, TAGS, lambda: F.cross_entropy(PLACES.transpose(1, 2), TAGS)),
    "pixels per pixel": (pixels("pixel"), MAPS, MASKS, lambda: F.cross_entropy(MAPS, MASKS, ignore_index=255)),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_TORCH)
def test_a_batch_mean_is_torchs(name: str) -> None:
    goal, output, y, expected = AS_TORCH[name]
    assert abs(float(batch_mean(goal, output, y)) - float(expected())) <= 1e-12


def test_per_example_is_the_mean_of_examples_own_means() -> None:
    found = [F.cross_entropy(own.T[None], tags[None]) for own, tags in zip(PLACES, TAGS) if (tags != -100).any()]
    assert abs(float(batch_mean(tokens(), PLACES, TAGS)) - float(torch.stack(found).mean())) <= 1e-12


def test_focal_by_hand() -> None:
    p = OUT.softmax(1)[torch.arange(N), Y]
    assert torch.allclose(classes(focal=2.0).loss(OUT, Y), -((1 - p) ** 2) * p.log(), atol=1e-12)


def test_targets_of_next_token_by_hand() -> None:
    derive = next_token().derive
    assert derive is not None
    x = np.array([[5, 2, 7, 0, 0], [1, 1, 3, 4, 9]])
    assert derive(x).tolist() == [[2, 7, -100, -100, -100], [1, 3, 4, 9, -100]]


# ---- what must not count


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].goal.targets.ignore is not None])
def test_a_batch_of_nothing_has_no_loss_and_no_gradient(name: str) -> None:
    here = goal_world(name, torch.float64)
    y = torch.full_like(here.data.y[:4], here.setting.goal.targets.ignore)[None]
    weight = weights(here.setting.goal, y, torch.ones(1, 4, dtype=torch.bool), torch.float64)
    batch = Batch(here.data.x[None, :4], y, weight, torch.tensor([1]))
    for kind in (PlainGradient, *KINDS):
        grads, losses = kind(here.setting)(here.model[None].clone(), batch)
        assert not grads.any()
        assert not losses.any()


@each_case
def test_other_clients_examples_do_not_matter(name: str) -> None:
    here = goal_world(name, torch.float64)
    spoilt = [value.clone() for value in here.data]
    mine = here.shards.examples.split(here.shards.sizes)[2]
    for value in spoilt:
        if value.is_floating_point():
            value[[n for n in range(N) if n not in mine.tolist()]] = torch.nan
    ids, sizes = torch.tensor([2]), [here.shards.sizes[2]]
    batches = Work(epochs=2, batch=5).plan(ids, here.shards.rows(ids, sizes[0]), sizes, Chance(3, 1))
    for kind in (PlainGradient, *KINDS):
        gradient = kind(here.setting)
        clean, poisoned = (
            [gradient(here.model[None].clone(), batch) for batch in Feed(data, batches, here.setting.goal, None)]
            for data in (here.data, here.data._replace(x=spoilt[0], y=spoilt[1]))
        )
        for expected, found in zip(clean, poisoned, strict=True):
            assert all(map(torch.equal, found, expected))
            assert all(bool(value.isfinite().all()) for value in found)


@each_case
@pytest.mark.parametrize("kind", KINDS)
def test_padding_does_not_matter(name: str, kind: Callable[..., PlainGradient]) -> None:
    """Other numbers where a short batch is padded, in inputs and in targets; a feed puts the client's last example."""
    here = goal_world(name, torch.float64)
    gradient = kind(here.setting)
    for batch in batches_of(here)[:2]:
        padding = batch.weight == 0
        x, y = batch.x.clone(), batch.y.clone()
        x[padding] = 7 if x.is_floating_point() else 0
        if y.is_floating_point():
            y[padding] = -50
        else:
            y[padding] = 0
        assert padding.any()
        params = here.model.expand(len(batch.y), -1).clone()
        for found, expected in zip(gradient(params.clone(), batch._replace(x=x, y=y)), gradient(params.clone(), batch)):
            assert float((found - expected).abs().max()) <= 1e-12


def test_one_step_of_linear_regression_by_hand() -> None:
    x, y = drawn("x", 20, 4).double(), drawn("t", 20).double()
    w, b = drawn("w", 1, 4).double(), torch.zeros(1, dtype=torch.float64)
    error = (x.numpy() @ w[0].numpy()) - y.numpy()
    expected = 2 * x.numpy().T @ error / 20
    leaf = w.clone().requires_grad_()
    batch_mean(numbers(), x @ leaf.T + b, y).backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad[0].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: classes((1.0, -1.0)), "weights"), (lambda: classes(smoothing=1.0), "smoothing"),
        (lambda: classes(focal=-1.0), "focal"), (lambda: numbers("huber", 0.0), "delta"),
        (lambda: binary(0.0), "positive"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(make: Callable[[], object], word: str) -> None:
    with pytest.raises(BadExperiment, match=word):
        make()
