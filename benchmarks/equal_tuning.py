"""Six methods tuned equally on a hard scenario, against their untuned defaults: does the ranking change?

    python benchmarks/equal_tuning.py FOLDER [--trials 8] [--seeds 5] [--rounds 60]

Digits, 100 clients of Dirichlet(0.1), 10 a round, equal devices, half of the replies lost. Every method gets the same
number of random choices of its rate, its epochs and the settings that it alone has, chosen on a fifth of the clients'
training examples; defaults are run on the same examples. Prints a page of Markdown. A run that was stopped goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedloom import Experiment, Range, compare, sweep
from fedloom.studies.compare import Contender, paired, significant
from fedloom.studies.sweep import Cell

METHODS = ("fedavg", "fedprox", "scaffold", "feddyn", "fedspu", "loom")
SPACE: dict[str, Any] = {
    "rate": Range(0.01, 1.0),
    "epochs": [1, 2, 5, 10],
    "method.mu": Range(0.001, 1.0),
    "method.alpha": Range(0.003, 0.3),
}
HARD: dict[str, Any] = {
    "partition": {"name": "dirichlet", "settings": {"alpha": 0.1}},
    "fleet": "equal",
    "channel": {"name": "bernoulli", "settings": {"up": 0.5}},
    "split": (0.8, 0.2, 0.0),
}


def ranks(contenders: list[Contender]) -> dict[str, int]:
    """Each method's place by its mean score on the test set."""
    ordered = sorted(contenders, key=lambda one: -one.score().mean)
    return {one.name.partition(",")[0]: place for place, one in enumerate(ordered, 1)}


def row(plain: Contender, tuned: Cell, places: tuple[int, int], marked: bool) -> str:
    """A method's line."""
    before, after, gain = plain.score(), tuned.test, paired(tuned.contender, plain)
    settings = ", ".join(f"{key.removeprefix('method.')} {value:g}" for key, value in tuned.settings.items())
    moved = "" if gain is None or gain.half is None else f"{gain.mean:+.3f} ± {gain.half:.3f}"
    cells = [f"`{plain.name}`", f"{before.mean:.3f} ± {before.half or 0:.3f} ({places[0]}.)", settings]
    cells += [f"{after.mean:.3f} ± {after.half or 0:.3f} ({places[1]}.){' *' if marked else ''}", moved]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run what is not finished yet, and print the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name, value in (("trials", 8), ("seeds", 5), ("rounds", 60)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    base, seeds = {**HARD, "rounds": asked.rounds}, tuple(range(asked.seeds))
    plain = compare({name: Experiment(**base, method=name) for name in METHODS}, seeds, out=asked.folder / "defaults")
    found = sweep(
        Experiment(**base), SPACE, METHODS, seeds, "random", asked.trials, tell=print, out=asked.folder / "tuned"
    )
    tuned = [found.best[name] for name in METHODS]
    before, after = ranks(plain), ranks([one.contender for one in tuned])
    marks = significant([one.contender for one in tuned])
    print(f"\n{asked.trials} choices of settings per method, {asked.seeds} seeds, {asked.rounds} rounds.\n")
    print("| method | default (place) | best settings | tuned (place) | gain |\n|---|---|---|---|---|")
    for one, cell, marked in zip(plain, tuned, marks):
        print(row(one, cell, (before[one.name], after[one.name]), marked))
    print(f"\n`*`: tuned, it differs from tuned {METHODS[0]} (paired t-test over seeds, 5 % over all, Holm).")
    moved = [f"{name} from {before[name]} to {after[name]}" for name in METHODS if before[name] != after[name]]
    print(f"Places that change: {', '.join(moved) or 'none'}.")


if __name__ == "__main__":
    main()
