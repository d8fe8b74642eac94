"""When a run ends before its last round: at a score, after seconds, or when its score no longer gets better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from fedloom.core.metric import Metric
from fedloom.core.section import Section, told
from fedloom.evaluate.judge import check_target, reaches
from fedloom.evaluate.wording import label_of

REAL = ("wall_seconds", "evaluation_seconds")


class Until(Section):
    """A run ends with the round in which the first of these comes true, if that is before its last."""

    score: float | None = Field(default=None, description="the score is as good as this or better")
    seconds: float | None = told("have passed: virtual ones with a fleet, else real ones", "seconds", gt=0)
    real_seconds: float | None = told("have passed on this machine, also before a resume", "seconds", gt=0)
    patience: int | None = told("without a better score", "rounds", ge=1)

    @property
    def asked(self) -> bool:
        """Whether a run may end early."""
        return any(getattr(self, name) is not None for name in type(self).model_fields)

    def check(self, score: Metric) -> None:
        """Refuse a score that cannot be reached, or that every model has."""
        if self.score is not None:
            check_target(score, self.score)

    def why_over(self, rows: Sequence[dict[str, Any]], score: Metric) -> str | None:
        """Why the run is over after these rounds, in words; None: it goes on."""
        return next(self._reasons(rows, score), None)

    def _reasons(self, rows: Sequence[dict[str, Any]], score: Metric) -> Iterator[str]:
        """Everything that has come true."""
        if not self.asked or not rows:
            return
        known = [(row["score"], row["round"]) for row in rows if row["score"] is not None]
        if self.score is not None and any(reaches(score.best, value, self.score) for value, _ in known):
            yield f"{label_of(score)} {self.score:g} was reached"
        real = sum(row[name] or 0.0 for row in rows for name in REAL)
        virtual = [row["virtual_seconds"] for row in rows if row["virtual_seconds"] is not None]
        if self.seconds is not None and (sum(virtual) if virtual else real) >= self.seconds:
            yield f"{self.seconds:g} {'virtual ' if virtual else ''}seconds have passed"
        if self.real_seconds is not None and real >= self.real_seconds:
            yield f"{self.real_seconds:g} real seconds have passed"
        if self.patience is not None and known:
            best = (max if score.best == "high" else min)(value for value, _ in known)
            since = next(number for value, number in known if value == best)
            if rows[-1]["round"] - since >= self.patience:
                yield f"{label_of(score)} was not better for {self.patience} rounds"
