"""Scores of the global model, against scikit-learn's metrics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import accuracy_score, log_loss, recall_score, top_k_accuracy_score
from torch import Tensor, nn

from fedloom.accel.machine import BATCH
from fedloom.core.types import Examples
from fedloom.evaluate.score import Score, evaluate
from fedloom.layout import flatten, layout_of
from worlds import world


class Known(nn.Module):
    """A network whose answer to example k is row k of its weights."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, classes] of examples [B, 1]."""
        return self.scores[x[:, 0]]


def score(scores: Tensor, y: Tensor, classes: int | None = None) -> Score:
    """The evaluation of a network that answers with these scores [n, classes]."""
    module = Known(scores)
    layout = layout_of(module)
    x = torch.arange(len(y))[:, None]
    setting = replace(world("mlp").setting, module=module, layout=layout, example=x[:2])
    return evaluate(setting, flatten(module, layout), Examples(x, y), classes or scores.shape[1])


def draw(n: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random scores [n, classes], no two of them equal, and labels [n]."""
    rng = np.random.default_rng(seed)
    scores = rng.permutation(n * classes).reshape(n, classes) / (n * classes) * 8 - 4
    return torch.tensor(scores), torch.tensor(rng.integers(0, classes, n))


def assert_as_sklearn(ours: Score, scores: Tensor, y: Tensor) -> None:
    """All four metrics agree."""
    every = list(range(scores.shape[1]))
    best, chances = scores.argmax(1), scores.softmax(1).numpy()
    seen = torch.bincount(y, minlength=len(every)) > 0
    recall = recall_score(y, best, labels=every, average=None, zero_division=0)
    assert float(ours.metrics["accuracy"]) == pytest.approx(accuracy_score(y, best), abs=1e-12)
    assert float(ours.metrics["top5"]) == pytest.approx(top_k_accuracy_score(y, chances, k=5, labels=every), abs=1e-12)
    assert float(ours.loss) == pytest.approx(log_loss(y, chances, labels=every), rel=1e-9)
    np.testing.assert_allclose(ours.metrics["per_class"][seen], recall[seen], atol=1e-12)
    assert ours.metrics["per_class"][~seen].isnan().all()


@given(st.integers(1, 40), st.integers(6, 12), st.integers(0, 10**6))
@settings(max_examples=40)
def test_as_sklearn(n, classes, seed):
    scores, y = draw(n, classes, seed)
    assert_as_sklearn(score(scores, y), scores, y)


@pytest.mark.parametrize("n", [BATCH - 1, BATCH, BATCH + 1, 2 * BATCH + 7])
def test_as_sklearn_over_several_batches(n):
    scores, y = draw(n, 7, n)
    assert_as_sklearn(score(scores, y), scores, y)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_among_five_classes_or_fewer_every_answer_is_in_the_top_five(classes):
    scores, y = draw(30, classes, classes)
    ours = score(scores, y)
    assert float(ours.metrics["top5"]) == 1
    assert float(ours.metrics["accuracy"]) == pytest.approx(accuracy_score(y, scores.argmax(1)))


def test_outputs_beyond_the_classes_are_wrong_answers():
    scores, y = draw(50, 9, 3)
    y = y % 6
    ours = score(scores, y, classes=6)
    assert float(ours.metrics["accuracy"]) == pytest.approx(accuracy_score(y, scores.argmax(1)))
    assert ours.metrics["per_class"].shape == (6,)


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_equal_scores_are_no_knowledge(value):
    y = torch.arange(10).repeat(3)
    ours = score(torch.full((30, 10), value), y)
    assert float(ours.metrics["accuracy"]) == pytest.approx(0.1)  # it says class 0, whatever it is shown
    assert float(ours.metrics["top5"]) == pytest.approx(0.5)
    assert ours.metrics["per_class"].tolist() == [1.0] + [0.0] * 9


@pytest.mark.parametrize("classes", [2, 4, 5, 10])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_diverged_model_is_right_about_nothing(classes, value):
    scores, y = draw(30, classes, 1)
    y = torch.cat([torch.arange(classes), y[classes:]])
    ours = score(torch.full_like(scores, value), y)
    assert float(ours.metrics["accuracy"]) == 0
    assert float(ours.metrics["top5"]) == 0
    assert ours.metrics["per_class"].tolist() == [0.0] * classes


def test_one_infinite_score_is_enough():
    scores, y = draw(30, 10, 1)
    scores[torch.arange(30), y] = 100.0  # all right ...
    assert float(score(scores, y).metrics["accuracy"]) == 1
    scores[:6, 3] = torch.nan  # ... but for these
    ours = score(scores, y)
    assert float(ours.metrics["accuracy"]) == pytest.approx(0.8)
    assert float(ours.metrics["top5"]) == pytest.approx(0.8)
    assert ours.loss.isnan()


def test_evaluation_is_not_training():
    here = world("normed")
    before = {name: value.clone() for name, value in here.setting.module.state_dict().items()}
    model = here.model.clone()
    for data in (here.data, Examples(here.data.x[:1], here.data.y[:1])):
        first, second = (evaluate(here.setting, model, data, 3) for _ in range(2))
        assert torch.equal(first.loss, second.loss)
    assert torch.equal(model, here.model)
    for name, value in here.setting.module.state_dict().items():
        assert torch.equal(value, before[name]), name
