"""Goals `labels` and `binary`: several yes-or-no questions about an example, or one, by a logit each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.goal import Goal, Head, Targets
from fedloom.core.metric import SHARE, Mean, Sums, Whole
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.data.dataset import Dataset


def _both(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and targets as [B, K] of one number type."""
    output = output.reshape(len(output), -1)
    return output, target.reshape(len(output), -1).to(output.dtype)


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """The mean over logits of binary cross-entropy; `positive` multiplies the loss of targets 1."""

    positive: float | None = None

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The losses [B]."""
        logits, y = _both(output, target)
        positive = None if self.positive is None else torch.full((), self.positive, dtype=y.dtype, device=y.device)
        return F.binary_cross_entropy_with_logits(logits, y, pos_weight=positive, reduction="none").mean(1)


def all_right(output: Tensor, target: Tensor) -> Tensor:
    """Which examples have every logit on the right side of 0 [B]; a logit that is not finite is wrong."""
    logits, y = _both(output, target)
    return (((logits > 0) == (y > 0.5)) & logits.isfinite()).all(1)


def hits_and_misses(output: Tensor, target: Tensor) -> Tensor:
    """Of each example: logits above 0 that are right, that are wrong, and targets that were missed [B, 3]."""
    logits, y = _both(output, target)
    said, true = (logits > 0) & logits.isfinite(), y > 0.5
    return torch.stack(((said & true).sum(1), (said & ~true).sum(1), (~said & true).sum(1)), 1)


def f1_of(totals: Tensor) -> Tensor:
    """The F1 score over all questions together (micro average) [...]; 0 where there is nothing to find."""
    hits, false, missed = totals.unbind(-1)
    return 2 * hits / (2 * hits + false + missed).clamp(min=1)


def auroc_of(output: Tensor, target: Tensor) -> float:
    """The chance that a random positive example is ranked above a random negative one; ties count half."""
    logit, true = output.reshape(len(output)).double(), target.reshape(len(output)) > 0
    positives, negatives = int(true.sum()), int((~true).sum())
    if not positives or not negatives or not bool(logit.isfinite().all()):
        return float("nan")
    _, place, count = logit.unique(return_inverse=True, return_counts=True)
    rank = count.cumsum(0).double() - (count - 1) / 2  # of each value, counted from 1, the mean of equal ones
    above = rank[place][true].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


F1 = Sums("f1", hits_and_misses, f1_of, limits=SHARE)
EXACT = Mean("exact_match", all_right, limits=SHARE)
ACCURACY = Mean("accuracy", all_right, limits=SHARE)
AUROC = Whole("auroc", auroc_of, limits=SHARE)


def number_of_questions(data: Dataset) -> int:
    """The columns of the targets."""
    return int(data.y_train.shape[1])


def one(data: Dataset) -> int:
    """A single logit."""
    return 1


def _positive(value: float | None) -> tuple[float, ...] | None:
    """A weight of positive targets as `Head` has it."""
    if value is not None and value <= 0:
        raise BadExperiment(f"positive is {value}; expected the weight of targets that are 1, above 0.")
    return None if value is None else (value,)


def labels(positive: float | None = None) -> Goal:
    """Several labels of an example, each 0 or 1, by a logit each. `positive` is the weight of targets that are 1."""
    return Goal(
        name="labels",
        loss=BinaryCrossEntropy(positive),
        targets=Targets("class", (None,)),
        metrics=(F1, EXACT),
        outputs=number_of_questions,
        answer="numbers",
        head=Head("binary", _positive(positive)),
    )


def binary(positive: float | None = None) -> Goal:
    """One label, 0 or 1, by a single logit. `positive` is the weight of targets that are 1."""
    return Goal(
        name="binary",
        loss=BinaryCrossEntropy(positive),
        targets=Targets("class"),
        metrics=(ACCURACY, AUROC),
        outputs=one,
        answer="numbers",
        strata=True,
        head=Head("binary", _positive(positive)),
    )
