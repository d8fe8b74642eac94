"""Goal `numbers`: regression of one number or several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.goal import Goal, Head, Targets
from fedloom.core.metric import POSITIVE, Mean, Sums
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.data.dataset import Dataset


def _both(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Answers and targets as [B, k]."""
    output = output.reshape(len(output), -1)
    return output, target.reshape(len(output), -1).to(output.dtype)


@dataclass(frozen=True)
class NumberLoss:
    """The mean over the k numbers of an example of squared error (mse), absolute error (l1) or Huber's loss."""

    kind: Literal["mse", "l1", "huber"] = "mse"
    delta: float = 1.0  # of Huber's loss

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The losses [B]."""
        answer, y = _both(output, target)
        if self.kind == "huber":
            return F.huber_loss(answer, y, reduction="none", delta=self.delta).mean(1)
        return (F.mse_loss if self.kind == "mse" else F.l1_loss)(answer, y, reduction="none").mean(1)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error of each example [B]."""
    answer, y = _both(output.double(), target)
    return (answer - y).square().mean(1)


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean absolute error of each example [B]."""
    answer, y = _both(output.double(), target)
    return (answer - y).abs().mean(1)


def moments(output: Tensor, target: Tensor) -> Tensor:
    """Of each example and number: squared error, target and its square; and the number of examples [B, 3 k + 1]."""
    answer, y = _both(output.double(), target)
    return torch.cat(((answer - y).square(), y, y.square(), torch.ones_like(y[:, :1])), 1)


def r2_of(totals: Tensor) -> Tensor:
    """1 - squared error / variance, averaged over the k numbers [...]; NaN where targets do not vary."""
    (error, first, second), count = totals[..., :-1].chunk(3, -1), totals[..., -1:]
    return (1 - error / (second - first.square() / count)).mean(-1)


RMSE = Mean("rmse", squared_error, "low", torch.sqrt, limits=POSITIVE)
MAE = Mean("mae", absolute_error, "low", limits=POSITIVE)
R2 = Sums("r2", moments, r2_of, limits=(float("-inf"), 1.0))


def how_many(data: Dataset) -> int:
    """The numbers of an example."""
    return 1 if data.y_train.ndim == 1 else int(data.y_train.shape[1])


def numbers(loss: Literal["mse", "l1", "huber"] = "mse", delta: float = 1.0) -> Goal:
    """One number or several, by squared error (`mse`), absolute error (`l1`) or `huber` with its `delta`."""
    if delta <= 0:
        raise BadExperiment(f"delta is {delta}; expected a number above 0, where Huber's loss becomes linear.")
    return Goal(
        name="numbers",
        loss=NumberLoss(loss, delta),
        targets=Targets("number", None),
        metrics=(RMSE, MAE, R2),
        outputs=how_many,
        answer="numbers",
        head=Head("squared") if loss == "mse" else None,
    )
