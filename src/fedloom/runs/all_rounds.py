"""The rounds of a run, one after another, until it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fedloom.core.part import NobodyLeft
from fedloom.errors import RunStopped
from fedloom.runs.build import Prepared
from fedloom.runs.checkpoint.snapshot import Progress
from fedloom.runs.experiment import Experiment
from fedloom.runs.ledger import Ledger
from fedloom.runs.one_round import add_score, play_one
from fedloom.runs.watch import Watch, row_notifier

log = logging.getLogger("fedloom")


def play_rounds(
    experiment: Experiment,
    prepared: Prepared,
    ledger: Ledger,
    at: Progress,
    watch: Watch | None,
    clock: Callable[[], float] = time.perf_counter,
    after: Callable[[Progress | None], None] = lambda now: None,
) -> Progress:
    """Play the rounds that are left; `after` is called with None when one begins, with the progress when it ends."""
    patience, show = experiment.world.patience, row_notifier(ledger, watch, at.model.device)
    unanswered, stopped = ledger.unanswered() % (patience or 1), False  # a resumed run gets another chance
    for number in range(at.round + 1, experiment.rounds + 1):
        if (over := why_over(experiment, prepared, ledger, stopped)) is not None:
            log.info("over after round %d: %s", number - 1, over)
            show(True, _scored_late(ledger, prepared, at, clock))
            break
        after(None)
        try:
            at = play_one(experiment, prepared, ledger, at, clock)
        except NobodyLeft as why:
            log.info("over before round %d: %s", number, why)
            if number > 1:
                _scored_late(ledger, prepared, at, clock)
            after(at)
            show(True)
            break
        after(at)
        stopped = show(number == experiment.rounds)
        unanswered = unanswered + 1 if ledger.measures_time and ledger.unanswered(1) else 0
        if patience is not None and unanswered == patience:
            raise RunStopped(
                f"nobody answered in {patience} rounds in a row, up to round {number}; the model is what it was before "
                "them. Look at the fleet, its channel and the deadline, or wait longer: world.patience."
            )
    return at


def why_over(experiment: Experiment, prepared: Prepared, ledger: Ledger, stopped: bool) -> str | None:
    """Why a run ends before its last round; None: it goes on."""
    if stopped:
        return "whoever watches it asked to stop"
    if not experiment.until.asked:
        return None
    return experiment.until.why_over(ledger.rounds(), prepared.inputs.setting.goal.score)


def _scored_late(ledger: Ledger, prepared: Prepared, at: Progress, clock: Callable[[], float]) -> bool:
    """Evaluate the model after a last round that was not; whether that was needed."""
    late = ledger.last()["evaluation_seconds"] is None
    if late:
        add_score(ledger, prepared, at.model, clock)
    return late
