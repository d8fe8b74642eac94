"""Metrics in words: how charts and tables call them, and how they write their values."""

from __future__ import annotations

from collections import Counter
from math import floor, isfinite, log10

from fedloom.core.metric import SHARE, Metric

LABELS = {"rmse": "RMSE", "mae": "MAE", "mse": "MSE", "r2": "R²", "f1": "F1", "iou": "mean IoU", "auroc": "AUROC",
          "top5": "top-5 accuracy"}  # fmt: skip
DIGITS = 4  # significant digits of values that are no shares
MOST = 1e7  # larger values, as of a run that diverges, are written with an exponent


def label_of(metric: Metric) -> str:
    """A metric's name as people write it."""
    return label(metric.name)


def label(name: str) -> str:
    """The name of a metric's column as people write it."""
    return LABELS.get(name, name.replace("_", " "))


def title(words: str) -> str:
    """The words with a capital first letter."""
    return words[:1].upper() + words[1:]


def direction(metric: Metric) -> str:
    """`lower is better` for metrics of which that is true; empty for others, of which a reader expects the opposite."""
    return "lower is better" if metric.best == "low" else ""


def decimals(metric: Metric, value: float, of_share: int = 4) -> int:
    """Digits behind the point: `of_share` for a share, else as many as `DIGITS` significant ones need, at most 6."""
    if metric.limits == SHARE:
        return of_share
    place = floor(log10(abs(value))) if value and isfinite(value) else 0
    return min(6, max(0, DIGITS - 1 - place))


def number(metric: Metric, value: float | None, of_share: int = 4) -> str:
    """A value of a metric; a dash for one that is not known."""
    if value is None or not isfinite(value):
        return "–"
    if abs(value) >= MOST:
        return f"{value:.{DIGITS - 1}e}"
    return f"{value:,.{decimals(metric, value, of_share)}f}"


def shortened(names: list[str], most: int = 18) -> list[str]:
    """Names of at most `most` characters and a number in brackets where shorter ones would be alike."""
    short = [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]
    count = Counter(short)
    return [f"{name} ({place})" if count[name] > 1 else name for place, name in enumerate(short)]
