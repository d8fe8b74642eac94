"""Every method by its bare name: what a user who types `fedloom run METHOD` gets, as a page.

    python benchmarks/bare_names.py [--rounds 100] [--seeds 3] [--only TEXT ...] [--page docs/reference-bare-names.md]

Embedded digits and default settings, so Dirichlet 0.1 over 100 clients; without a barrier as many steps as make up the
rounds. The score is the global model's; clients' own models are those of a second run, of which each client keeps 30 %
of its data for tests. Wall seconds are of the first run, next to FedAvg's with the same seed, which runs before every
method anew: its median over seeds. Fails if a method learns nothing (both scores below 0.70) or takes above 20 times
as long.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedloom.errors import FedloomError
from fedloom.evaluate.targets import interval
from fedloom.methods import METHODS
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from fedloom.studies.bench.limits import machine
from fedloom.studies.recipes.page import place_of

LEAST, MOST = 0.70, 20.0  # of the score, and of the time over FedAvg's
OWN = (0.7, 0.0, 0.3)  # training, validation and test part of each client's data, for clients' own models
HEAD = """# Every method by its bare name

`fedloom run METHOD --rounds {rounds}` and nothing else: the embedded digits, Dirichlet 0.1 over 100 clients, and each
method's default settings. It shows that a default learns and what it costs; it ranks nobody, since methods were made
for unlike fleets and rates are not tuned. Papers' own settings are in the [recipes](reproduction/README.md).

<!-- not run: minutes, and it is the program that writes this page -->
```sh
python benchmarks/bare_names.py --page docs/reference-bare-names.md
```

Means and 95 % intervals (Student's t) over {seeds} seeds. *Global* is the server's model on the test set. *Own* is the
mean over clients of the model that serves each, on the 30 % of its own data that it keeps for tests in a second run;
where clients keep nothing of their own, that is the global model or the part of it that the client has. *Time* is wall
time over FedAvg's. A *fleet* is there where the method needs one and brings it.

"""


class Row(NamedTuple):
    """A method's results, one number per seed."""

    name: str
    scores: list[float]
    own: list[float]
    seconds: list[float]
    plain: list[float]  # FedAvg's seconds right before
    fleet: str
    refused: str = ""  # why it does not run

    @property
    def times(self) -> float:
        """The median of the time over FedAvg's."""
        return statistics.median(ours / theirs for ours, theirs in zip(self.seconds, self.plain))

    @property
    def trouble(self) -> str:
        """What is wrong with the default; empty: nothing."""
        if self.refused:
            return f"refuses: {self.refused}"
        best = max(statistics.mean(self.scores), statistics.mean(self.own))
        learnt = "" if best >= LEAST else f"ends at {best:.2f}, below {LEAST:.2f}"
        return learnt or ("" if self.times <= MOST else f"takes {self.times:.1f} times FedAvg's time, above {MOST:g}")


def main() -> None:
    """Run the table and print it; write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="methods with one of these texts in their name")
    parser.add_argument("--page", type=Path, help="the Markdown file to write")
    options = parser.parse_args()
    names = [name for name in METHODS if not options.only or any(text in name for text in options.only)]
    run(Experiment(rounds=1))  # what is imported and compiled once
    rows = []
    for place, name in enumerate(names, 1):
        rows.append(row_of(name, options.rounds, options.seeds))
        print(f"{place}/{len(names)} {line(rows[-1])}", file=sys.stderr, flush=True)
    print(table(rows))
    if options.page:
        options.page.write_text(page(rows, options.rounds, options.seeds))
    troubles = [f"{row.name} {row.trouble}" for row in rows if row.trouble]
    if troubles:
        sys.exit("; ".join(troubles))


def row_of(name: str, rounds: int, seeds: int) -> Row:
    """All runs of a method."""
    steps = Experiment(method=name).build_method().pace.steps_a_round  # 1 where rounds have a barrier
    common = {"rounds": rounds * steps, "evaluate_every": steps}
    row = Row(name, [], [], [], [], Experiment(method=name).fleet.name)
    try:
        _fill(row, rounds, seeds, common)
    except FedloomError as problem:
        return row._replace(refused=str(problem))
    return row


def _fill(row: Row, rounds: int, seeds: int, common: dict[str, Any]) -> None:
    """Run the method and FedAvg with every seed."""
    for seed in range(seeds):
        row.plain.append(run(Experiment(rounds=rounds, seed=seed)).wall_seconds)
        result = run(Experiment(method=row.name, seed=seed, **common))
        row.seconds.append(result.wall_seconds)
        row.scores.append(result.score or 0.0)
        own = run(Experiment(method=row.name, seed=seed, split=OWN, **{**common, "evaluate_every": common["rounds"]}))
        row.own.append(own.rounds[-1]["personal_score"] or 0.0)


def mean_of(values: list[float]) -> str:
    """A mean with its interval."""
    if not values:
        return "-"
    found = interval(values)
    return f"{found.mean:.3f}" + ("" if found.half is None else f" ± {found.half:.3f}")


CELLS: dict[str, Callable[[Row], str]] = {
    "method": lambda row: f"`{row.name}`",
    "global": lambda row: mean_of(row.scores),
    "own": lambda row: mean_of(row.own),
    "time": lambda row: "-" if row.refused else f"{row.times:.1f}",
    "fleet": lambda row: "" if row.fleet == "none" else f"`{row.fleet}`",
}


def line(row: Row) -> str:
    """A row of the table."""
    return "| " + " | ".join(cell(row) for cell in CELLS.values()) + " |"


def table(rows: list[Row]) -> str:
    """All rows, in the order of the list of methods."""
    return "\n".join([f"| {' | '.join(CELLS)} |", "|" + "---|" * len(CELLS), *map(line, rows)])


def page(rows: list[Row], rounds: int, seeds: int) -> str:
    """The page in Markdown."""
    wrong = [f"- `{row.name}` {row.trouble}" for row in rows if row.trouble]
    plain = statistics.median(second for row in rows for second in row.plain)
    made = f"FedAvg's {rounds} rounds took {plain:.2f} s (median) on {place_of(machine(torch.device('cpu')))}."
    ends = ["", "Not as they should be:", "", *wrong] if wrong else []
    return HEAD.format(rounds=rounds, seeds=seeds) + "\n".join([table(rows), "", made, *ends]) + "\n"


if __name__ == "__main__":
    main()
