"""Goals `tokens`, `next-token` and `pixels`: a class at every place of a text or an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.goal import Goal, Targets
from fedloom.core.metric import SHARE, Mean, Sums

if TYPE_CHECKING:
    from fedloom.data.dataset import Dataset

IGNORED = -100  # the target of a place that counts for nothing
Per = Literal["example", "place"]


@dataclass(frozen=True)
class PlaceLoss:
    """The mean cross-entropy of an example's own places that count; 0 for an example without any."""

    axis: int  # of the classes in the answer
    ignore: int

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The losses [B]."""
        scores = output.movedim(self.axis, 1)
        loss = F.cross_entropy(scores, target, ignore_index=self.ignore, reduction="none").flatten(1)
        count = (target != self.ignore).flatten(1).sum(1)
        return loss.sum(1) / count.clamp(min=1)


@dataclass(frozen=True)
class Counting:
    """The weight of an example [B]: the places that count, or 1 per example with any such place."""

    ignore: int
    per: Per

    def __call__(self, target: Tensor) -> Tensor:
        """The weights."""
        count = (target != self.ignore).flatten(1).sum(1)
        return (count if self.per == "place" else count.clamp(max=1)).to(torch.float32)


@dataclass(frozen=True)
class PlacesRight:
    """Of each example: the places with the largest score at their class, and the places that count [B, 2]."""

    axis: int
    ignore: int

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The counts; scores that are not finite are wrong."""
        scores = output.movedim(self.axis, 1)
        right = (scores.argmax(1) == target) & scores.isfinite().all(1) & (target != self.ignore)
        return torch.stack((right.flatten(1).sum(1), (target != self.ignore).flatten(1).sum(1)), 1)


def share_right(totals: Tensor) -> Tensor:
    """The part of the places that is right [...]."""
    return totals[..., 0] / totals[..., 1]


@dataclass(frozen=True)
class Overlaps:
    """Of each example and class: places where truth and answer agree, and places of either [B, 2 K]."""

    axis: int
    ignore: int

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The counts; an answer that is not finite agrees with nothing."""
        scores = output.movedim(self.axis, 1)
        classes, counts = scores.shape[1], (target != self.ignore).flatten(1)
        said = torch.where(scores.isfinite().all(1), scores.argmax(1), classes).flatten(1)
        true = torch.where(counts, target.flatten(1), classes)
        said = torch.where(counts, said, classes)
        both = F.one_hot(torch.where(said == true, true, classes), classes + 1).sum(1)
        either = F.one_hot(said, classes + 1).sum(1) + F.one_hot(true, classes + 1).sum(1) - both
        return torch.cat((both[:, :classes], either[:, :classes]), 1)


def mean_iou(totals: Tensor) -> Tensor:
    """Intersection over union, averaged over the classes that occur in truth or answers [...]."""
    both, either = totals.chunk(2, -1)
    return torch.where(either > 0, both / either, 0).sum(-1) / (either > 0).sum(-1)


def _accuracy(axis: int, ignore: int, name: str = "accuracy") -> Sums:
    """The part of all places that is right."""
    return Sums(name, PlacesRight(axis, ignore), share_right, limits=SHARE)


def _perplexity(axis: int, ignore: int) -> Mean:
    """e to the mean cross-entropy of all places."""
    loss = PlaceLoss(axis, ignore)
    return Mean("perplexity", loss, "low", torch.exp, Counting(ignore, "place"), (1.0, float("inf")))


def number_of_classes(data: Dataset) -> int:
    """The classes of the data."""
    return data.classes


def number_of_words(data: Dataset) -> int:
    """The vocabulary of the data."""
    return data.vocabulary


def tokens(per: Literal["example", "token"] = "example", ignore: int = IGNORED) -> Goal:
    """A class for every place of a sequence; places with target `ignore` do not count.

    A batch's loss is a mean over examples, each the mean of its own places, or over all places (`per="token"`).
    """
    return Goal(
        name="tokens",
        loss=PlaceLoss(-1, ignore),
        targets=Targets("class", (None,), ignore),
        metrics=(_accuracy(-1, ignore), _perplexity(-1, ignore)),
        outputs=number_of_classes,
        axis=-1,
        weigh=Counting(ignore, "place" if per == "token" else "example"),
    )


@dataclass(frozen=True)
class Following:
    """The token after each token; places before padding and the last place do not count."""

    padding: int

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Targets [n, T] of inputs [n, T]."""
        after = np.full(x.shape, IGNORED, np.int64)
        after[:, :-1] = np.where(x[:, 1:] == self.padding, IGNORED, x[:, 1:])
        return after


def next_token(per: Literal["example", "token"] = "token", padding: int = 0) -> Goal:
    """The next token of a text at every place of it; `padding` is the token that fills up short texts.

    Targets are made from the inputs. Labels of the examples, if the data have any, remain their strata.
    """
    return Goal(
        name="next-token",
        loss=PlaceLoss(-1, IGNORED),
        targets=Targets("class", (None,), IGNORED),
        metrics=(_perplexity(-1, IGNORED), _accuracy(-1, IGNORED)),
        outputs=number_of_words,
        axis=-1,
        weigh=Counting(IGNORED, "place" if per == "token" else "example"),
        derive=Following(padding),
    )


def pixels(per: Literal["example", "pixel"] = "example", ignore: int = 255) -> Goal:
    """A class for every pixel of an image; pixels with target `ignore` do not count.

    A batch's loss is a mean over examples, each the mean of its own pixels, or over all pixels (`per="pixel"`).
    """
    iou = Sums("iou", Overlaps(1, ignore), mean_iou, limits=SHARE)
    return Goal(
        name="pixels",
        loss=PlaceLoss(1, ignore),
        targets=Targets("class", (None, None), ignore),
        metrics=(iou, _accuracy(1, ignore)),
        outputs=number_of_classes,
        weigh=Counting(ignore, "place" if per == "pixel" else "example"),
    )
