"""Whole runs with goals, losses, metrics and transforms of the user's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from goal_worlds import CASES, class_of, drawn, goal_world
from safetensors.torch import load_file
from torch import Tensor, nn

from fedloom import FromTorchmetrics, Goal, Mean, Sums, Targets, Whole, run
from fedloom.chance import uniform
from fedloom.core.metric import as_metric
from fedloom.errors import BadExperiment, BadModel
from fedloom.evaluate.score import evaluate
from fedloom.goals import classes, labels, numbers, own, pixels
from fedloom.goals.logits import auroc_of, f1_of, hits_and_misses
from fedloom.goals.numbers import moments, r2_of
from fedloom.layout import flatten
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import inputs_of
from fedloom.runs.play import resume


def small(**changes: Any) -> Experiment:
    """A few clients with a small network, for four rounds."""
    given = {"model": {"name": "mlp", "settings": {"widths": [8]}}, "clients": 6, "per_round": 3, "rounds": 4}
    return Experiment(**{**given, "training": {"epochs": 1, "batch": 32}, **changes})


def bounded(output: Tensor, target: Tensor) -> Tensor:
    """1 - p of the right class [B]."""
    return 1 - output.softmax(1).gather(1, target[:, None])[:, 0]


def confidence(output: Tensor, target: Tensor) -> Tensor:
    """The largest probability [B]."""
    return output.softmax(1).amax(1)


def dimmed(x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Each example times a number of its own."""
    return x * (0.5 + uniform(keys)).view(-1, *(1,) * (x.dim() - 1)), y


# ---- losses and metrics


def test_a_loss_and_metrics_of_ones_own():
    result = run(small(), loss=bounded, metrics=[Mean("confidence", confidence), Mean("wrong", bounded, "low")])
    last = result.rounds[-1]
    assert result.goal.loss is bounded
    assert result.score == last["score"] == last["confidence"]
    assert last["wrong"] == pytest.approx(last["loss"], abs=1e-9)
    assert result.accuracy is None
    assert "accuracy" not in last
    assert result.summary()["score_name"] == "confidence"
    assert not result.summary()["lower_is_better"]
    assert run(small(rounds=1), metrics=Mean("wrong", bounded, "low")).summary()["lower_is_better"]


def test_another_loss_trains_another_model():
    one, other = run(small()), run(small(), loss=bounded)
    assert not torch.equal(one.model[-1].weight, other.model[-1].weight)
    assert one.rounds[0].keys() == other.rounds[0].keys()


@pytest.mark.parametrize("engine", ["local", "loop"])
def test_an_own_goal_equals_the_one_by_name(engine):
    mine = own(
        lambda output, target: F.cross_entropy(output, target, reduction="none"), classes().metrics,
        targets=Targets("class"), strata=True,
    )  # fmt: skip
    one, other = run(small(engine="loop")), run(small(engine=engine), goal=mine)
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def scalar(output: Tensor, target: Tensor) -> Tensor:
    """A mean over the batch, which is refused."""
    return F.cross_entropy(output, target)


def failing(output: Tensor, target: Tensor) -> Tensor:
    """Not for these targets."""
    return F.mse_loss(output, target)


@pytest.mark.parametrize(("loss", "words"), [(scalar, "reduction='none'"), (failing, "does not take answers")])
def test_losses_that_do_not_fit_are_refused_before_a_run(loss, words, tmp_path):
    with pytest.raises(BadModel, match=words):
        run(small(), loss=loss, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_plain_function_is_no_metric_and_the_error_says_what_to_write():
    with pytest.raises(BadExperiment, match=r"fedloom.Mean\('confidence', confidence, best='low'\)"):
        run(small(), metrics=[confidence])
    with pytest.raises(BadExperiment, match=r"expected one each"):
        run(small(rounds=1), metrics=[Mean("all", lambda output, target: output)])


def test_one_metric_needs_no_list():
    assert list(run(small(rounds=1), metrics=Mean("margin", confidence)).goal.metrics) == [Mean("margin", confidence)]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.CrossEntropyLoss, r"loss is the class CrossEntropyLoss; .* CrossEntropyLoss\(reduction='none'\)"),
        ("huber", "goal.loss=huber"),
    ],
)
def test_what_is_no_loss_is_refused(loss, words):
    with pytest.raises(BadExperiment, match=words):
        run(small(), loss=loss)
    with pytest.raises(BadExperiment, match=words):
        own(loss)


def test_class_weights_leave_no_class_out():
    with pytest.raises(BadExperiment, match="has 2 numbers; expected one for each of the 10 classes"):
        run(small(goal={"name": "classes", "settings": {"weights": [1, 2]}}))


def test_a_diverged_run_has_no_score():
    result = run(small(rounds=2, training={"rate": 1e30, "epochs": 1}, admit="everything"), metrics=[
        Mean("size", lambda output, target: output.square().sum(1), "low")
    ])  # fmt: skip
    assert result.score is None
    assert result.rounds[-1]["score"] is None
    assert result.rounds[-1]["evaluation_seconds"] is not None


# ---- metrics against others


def test_metrics_by_hand():
    output, y = drawn("o", 50, 4).double() * 6 - 3, class_of("y", 2, 50, 4)
    said, true = output > 0, y > 0
    precision, recall = float(true[said].double().mean()), float(said[true].double().mean())
    assert float(f1_of(hits_and_misses(output, y).sum(0))) == pytest.approx(2 / (1 / precision + 1 / recall))
    x, t = drawn("a", 50, 2).double(), drawn("b", 50, 2).double()
    residual, around = (t - x).square().sum(0), (t - t.mean(0)).square().sum(0)
    assert float(r2_of(moments(x, t).sum(0))) == pytest.approx(float((1 - residual / around).mean()))


def test_auroc_and_iou_are_scikit_learns():
    from sklearn.metrics import jaccard_score, roc_auc_score

    score, y = (drawn("s", 80, 1) * 20).round(), class_of("t", 2, 80)
    assert auroc_of(score, y) == pytest.approx(roc_auc_score(y.numpy(), score[:, 0].numpy()))
    assert math.isnan(auroc_of(score, torch.ones_like(y)))
    maps, masks = drawn("m", 9, 3, 5, 5), class_of("c", 3, 9, 5, 5)
    iou = pixels().metrics[0]
    assert isinstance(iou, Sums)
    expected = jaccard_score(masks.flatten().numpy(), maps.argmax(1).flatten().numpy(), average="macro")
    assert float(iou.finish(iou.totals(maps, masks))) == pytest.approx(expected)


@pytest.mark.parametrize("name", CASES)
def test_pieces_of_a_test_set_add_up(name, monkeypatch):
    import fedloom.evaluate.score as module

    here = goal_world(name)
    whole = evaluate(here.setting, here.model, here.data, 10)
    monkeypatch.setattr(module, "at_once", lambda *facts: 7)
    pieces = evaluate(here.setting, here.model, here.data, 10)
    assert list(whole.metrics) == [one.name for one in here.setting.goal.metrics]
    for ours, theirs in zip((whole.loss, *whole.metrics.values()), (pieces.loss, *pieces.metrics.values())):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("classes")])
def test_the_evaluations_loss_is_the_mean_that_training_takes(name):
    here = goal_world(name, torch.float64)
    goal, (x, y) = here.setting.goal, here.data
    weight = torch.ones(len(y), dtype=torch.float64) if goal.weigh is None else goal.weigh(y).double()
    with torch.no_grad():
        losses = goal.loss(here.setting.module.eval()(x), y)
    expected = float((losses * weight).sum() / weight.sum())
    assert float(evaluate(here.setting, flatten(here.setting.module, here.setting.layout), here.data, 10).loss) == (
        pytest.approx(expected, rel=1e-12)
    )


class Tally:
    """A metric as torchmetrics writes them: with a state, and slow to forget."""

    higher_is_better = False

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, output: Tensor, target: Tensor) -> None:
        """Count the wrong ones."""
        self.total += float((output.argmax(1) != target).sum())
        self.count += len(target)

    def compute(self) -> float:
        """The share of wrong ones."""
        return self.total / self.count

    def reset(self) -> None:
        """Forget."""
        self.total, self.count = 0.0, 0


def test_an_object_with_update_and_compute_is_a_metric_and_does_not_change():
    given = Tally()
    given.update(torch.eye(3), torch.tensor([0, 1, 2]))
    result = run(small(), metrics=[*classes().metrics[:1], given])
    assert (given.total, given.count) == (0.0, 3)
    for row in result.rounds:
        assert row["tally"] == pytest.approx(1 - row["accuracy"])
    assert as_metric(given).best == "low"


def test_torchmetrics_in_pieces_equals_at_once(monkeypatch):
    from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score
    from torchmetrics.regression import MeanSquaredError

    import fedloom.evaluate.score as module

    assert [as_metric(one).best for one in (MulticlassF1Score(3), MulticlassAUROC(3), MeanSquaredError())] == [
        "high", "high", "low",
    ]  # fmt: skip
    given = MulticlassF1Score(10)
    experiment = small(rounds=2)
    whole = run(experiment, metrics=[given])
    monkeypatch.setattr(module, "at_once", lambda *facts: 11)
    pieces = run(experiment, metrics=[given])
    assert whole.score == pytest.approx(pieces.score, abs=1e-12)
    assert given.update_count == 0
    inputs = inputs_of(experiment)
    with torch.no_grad():
        expected = MulticlassF1Score(10)(whole.model(inputs.test.x), inputs.test.y)
    assert whole.score == pytest.approx(float(expected), abs=1e-9)
    assert isinstance(whole.goal.score, FromTorchmetrics)


def test_whole_metrics_see_all_outputs():
    seen = []

    def count(output: Tensor, target: Tensor) -> float:
        seen.append((len(output), len(target)))
        return float(len(target))

    result = run(small(rounds=1), metrics=[Whole("count", count)])
    assert seen == [(359, 359)]
    assert result.score == 359
    assert result.rounds[-1]["personal_loss"] is None


def test_whole_metrics_keep_no_more_than_fits(monkeypatch):
    import fedloom.core.metric as module

    monkeypatch.setattr(module, "MOST_GATHERED", 1000)
    with pytest.raises(
        BadExperiment, match=r"metric 'count' needs all outputs at once, .* fedloom.Sums or fedloom.Mean"
    ):
        run(small(rounds=1), metrics=[Whole("count", lambda output, target: len(target))])


def test_personal_scores_follow_the_goals_metric():
    result = run(small(split=(0.7, 0.0, 0.3)), metrics=[Mean("confidence", confidence, limits=(0, 1))])
    inputs = inputs_of(small(split=(0.7, 0.0, 0.3)))
    assert inputs.own_test is not None
    data, shards = inputs.own_test
    own_scores = []
    for rows in shards.examples.split(shards.sizes):
        with torch.no_grad():
            own_scores.append(float(confidence(result.model(data.x[rows]), data.y[rows]).double().mean()))
    last = result.rounds[-1]
    assert last["personal_score"] == last["personal_confidence"] == pytest.approx(np.mean(own_scores), abs=1e-6)


# ---- from a file


FILE = """
import torch.nn.functional as F
from fedloom import Goal, Mean, Targets
from fedloom.goals import own

def loss(output, target):
    return {factor} * F.cross_entropy(output, target, reduction="none")

def goal() -> Goal:
    return own(loss, [Mean("wrong", loss, "low")], targets=Targets("class"), strata=True)

def dim(x, y, keys, by=0.5):
    return x * by, y
"""


def test_a_goal_and_a_transform_in_a_file_run_and_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE.format(factor=1.0))
    chosen = {"goal": "mine.py:goal", "augment": [{"name": "mine.py:dim", "settings": {"by": 0.7}}, "crop"]}
    straight = run(small(**chosen), out="straight")
    assert straight.goal.score.best == "low"
    run(small(**chosen, rounds=2), out="short")
    resume("short", rounds=4)
    ours, theirs = (load_file(f"{folder}/model.safetensors") for folder in ("straight", "short"))
    for name, value in ours.items():
        assert torch.equal(value, theirs[name])
    Path("mine.py").write_text(FILE.format(factor=2.0))
    with pytest.raises(BadExperiment, match="goal's file is not that of the run"):
        resume("short", rounds=5)


# ---- transforms


def test_a_transform_changes_training_and_not_evaluation():
    plain, dim = run(small(rounds=1)), run(small(rounds=1), transform=dimmed)
    assert not torch.equal(plain.model[-1].weight, dim.model[-1].weight)
    inputs = inputs_of(small(rounds=1))
    with torch.no_grad():
        right = dim.model(inputs.test.x).argmax(1) == inputs.test.y
    assert dim.accuracy == pytest.approx(float(right.double().mean()))


@pytest.mark.parametrize("augment", [["crop", "flip"], ["noise"], [{"name": "mixup", "settings": {"alpha": 0.3}}]])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fjord"])
def test_engines_and_chunks_agree_on_transformed_examples(augment, method):
    models = [
        run(small(method=method, augment=augment, **way)).model.state_dict()
        for way in ({"engine": "loop"}, {}, {"chunk": 1}, {"execution": "masked"})
    ]
    for other in models[1:]:
        for name, value in models[0].items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=2e-5)


def test_a_resumed_run_draws_the_same_transforms(tmp_path):
    chosen = {"augment": ["crop", "noise"]}
    straight = run(small(**chosen), transform=dimmed)
    run(small(**chosen, rounds=2), out=tmp_path / "run", transform=dimmed)
    again = resume(tmp_path / "run", rounds=4, transform=dimmed)
    for ours, theirs in zip(straight.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(BadExperiment, match="transform is not that of the run"):
        resume(tmp_path / "run", rounds=5)


# ---- answers


def answering(outputs: int) -> nn.Module:
    """A network with this many outputs."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))


@pytest.mark.parametrize(
    ("goal", "net", "words"),
    [
        (numbers(), answering(3), "goal 'numbers' needs 1"),
        (classes(), answering(9), "the data have 10 classes"),
        (labels(), answering(10), "labels"),
        (pixels(), answering(10), "pixels"),
    ],
)
def test_answers_and_targets_that_do_not_fit_are_refused(goal: Goal, net: nn.Module, words: str) -> None:
    with pytest.raises(Exception, match=words) as refused:
        run(small(partition="iid"), goal=goal, model=net)
    assert type(refused.value).__module__ == "fedloom.errors"
