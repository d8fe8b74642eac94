"""Charts of the clients: their shares, replies and scores, and where time went."""

from __future__ import annotations

import numpy as np

from fedloom.core.flight import FATES
from fedloom.core.refused import REASONS
from fedloom.evaluate.judge import MetricFacts, is_share
from fedloom.evaluate.wording import label_of, number
from fedloom.report.about import CLIENTS as NAMES, name_of
from fedloom.report.charts import Bars, Cells, Map, Maps, Ranks, Row, Series, merged, spaced, tidy
from fedloom.report.group import Group
from fedloom.report.recorded import Numbers, Recorded
from fedloom.report.tasks import FATE_COLOURS, FLYING, REFUSED, colour_of, word_of

CELLS = 120_000  # of all tables of clients and rounds together
CLIENTS, BINS = 100, 120  # rows and columns of such a table at most
NAMED = 3  # weakest clients that are named
POINTS = 400  # clients of a distribution at most
PERSONAL, OLD = "personal_score", "personal_accuracy"  # tensors, the second of older runs
SHARE, LOST = "share of the model", "lost replies"
REFUSALS = (FATE_COLOURS[REFUSED], "#B79B6B", "#5E4A21", "#D4C3A3")  # colours of their reasons
STEPS = {"seconds_down": "download", "seconds_compute": "training", "seconds_up": "upload"}


def shares_of(groups: list[Group]) -> tuple[Maps | None, list[str]]:
    """Each client's share of the model and lost replies by round, and notes."""
    with_rows = [group for group in groups if any(len(run.clients.get("round", ())) for run in group.runs)]
    by, notes = {}, list[tuple[str, str]]()
    for group in with_rows:
        run = next(run for run in group.runs if len(run.clients.get("round", ())))
        most = max(10, CELLS // (2 * len(with_rows) * CLIENTS))
        by[group.label], said = _tables(run, min(BINS, most))
        notes.append((group.label, f"seed {run.experiment['seed']}{said}."))
    if not by:
        return None, []
    scales: dict[str, tuple[str, float | None]] = {
        SHARE: (SHARE, 1.0),
        LOST: ("replies that did not arrive", 1.0),
    }
    first = max(by, key=lambda label: _spread(by[label][SHARE]))  # the shares that differ most
    return Maps(by, scales, "round", "client", first=first), merged(notes)


def _spread(table: Map) -> float:
    known = [value for row in table.z for value in row if value is not None]
    return float(np.std(known)) if known else 0.0


def _tables(run: Recorded, bins: int) -> tuple[dict[str, Map], str]:
    """One run's tables, and a note on what they leave out."""
    rounds, clients = run.clients["round"], run.clients["client"]
    last = int(rounds.max())
    each = -(-last // bins)
    wide = -(-last // each)
    fleet = max(int(clients.max()) + 1, run.fleet)
    shown = spaced(fleet, CLIENTS)
    row = np.full(fleet, -1)
    row[shown] = np.arange(len(shown))
    use = row[clients] >= 0
    cell = row[clients[use]] * wide + (rounds[use] - 1) // each
    size = len(shown) * wide
    met = np.bincount(cell, minlength=size)

    def mean(values: Numbers) -> list[Row]:
        total = np.bincount(cell, weights=values[use].astype(np.float64), minlength=size)
        means = np.where(met > 0, total / np.maximum(met, 1), np.nan)
        return [tidy(line, 2) for line in means.reshape(len(shown), wide)]

    across, names = [float(1 + a * each) for a in range(wide)], run.names(NAMES)
    down = [name_of(names, client) for client in shown] if names else [float(client) for client in shown]
    maps = {
        SHARE: Map(mean(run.clients["share"]), across, down),
        LOST: Map(mean(~run.clients["arrived"]), across, down),
    }
    said = f", means over {each} rounds" if each > 1 else ""
    return maps, said + (f", {len(shown)} of {fleet:,} clients, evenly spaced" if len(shown) < fleet else "")


def fates_of(run: Recorded) -> dict[str, int]:
    """Number of replies of a run by what became of them."""
    counts: dict[str, int] = {}
    columns = run.clients
    if not len(columns.get("round", ())):
        return counts
    arrived, refused = columns["arrived"].astype(bool), columns["rejected"] > 0
    counts["arrived"] = int(arrived.sum())
    left = ~arrived & ~refused
    if "fate" in columns:
        for code, count in zip(*np.unique(columns["fate"][left], return_counts=True)):
            name = FATES[int(code)] if 0 <= code < len(FATES) else "unknown"
            counts[name] = int(count)
    elif left.any():
        counts["silent"] = int(left.sum())
    if run.in_flight:
        counts[FLYING] = len(run.in_flight["fate"])
    for name in dict.fromkeys(name for line in run.rows for name in line if name.startswith("rejected.")):
        reason = name.partition(".")[2]
        total = int(sum(line.get(name) or 0 for line in run.rows))
        if total:
            counts[f"refused: {reason if reason in REASONS else 'unknown'}"] = total
    return counts


def losses_of(groups: list[Group]) -> tuple[Bars | None, Cells | None]:
    """What became of the replies: percentages, and counts over all seeds."""
    counts = [(group, [fates_of(run) for run in group.runs]) for group in groups]
    totals = [(g, {name: sum(one.get(name, 0) for one in each) for one in each for name in one}) for g, each in counts]
    totals = [(group, total) for group, total in totals if sum(total.values())]
    names = list(dict.fromkeys(name for _, total in totals for name in total))
    if not totals or names == ["arrived"]:
        return None, None
    reasons = [name for name in names if name.startswith(REFUSED)]
    colours = {name: REFUSALS[place % len(REFUSALS)] for place, name in enumerate(reasons)}
    series = [
        Series(
            word_of(name),
            colours.get(name, colour_of(name)),
            tidy(np.array([100 * total.get(name, 0) / sum(total.values()) for _, total in totals])),
        )
        for name in names
    ]
    bars = Bars([group.label for group, _ in totals], series, "% of the replies asked for", stacked=True, top=100.0)
    rows = [[group.label, *(f"{total.get(name, 0):,}" for name in names)] for group, total in totals]
    return bars, Cells(["", *map(word_of, names)], rows, [group for group, _ in totals])


def fairness_of(groups: list[Group]) -> tuple[Ranks | None, Cells | None, list[str]]:
    """Each client's score on its own test examples, its spread, and notes."""
    metric = groups[0].scores.personal
    weakest = 1 if metric.best == "high" else -1  # the order in which they are sorted
    found, rows, owners = [], [], []
    notes: list[tuple[str, str]] = []
    for group in groups:
        tensors = [run.kept.get(PERSONAL, run.kept.get(OLD)) for run in group.runs]
        every = [tensor.astype(np.float64) for tensor in tensors if tensor is not None]
        values = np.concatenate(every) if every else np.zeros(0)
        values = weakest * np.sort(weakest * values[np.isfinite(values)])
        if not len(values):
            continue
        some = spaced(len(values), POINTS)
        if len(some) < len(values):
            notes.append((group.label, f"{len(some)} of {len(values):,} clients are drawn, evenly spaced by rank."))
        found.append((group, [v or 0.0 for v in tidy(values[some], 4)]))
        tenth = values[: max(1, len(values) // 10)].mean()
        numbers = (values.mean(), np.median(values), tenth, values.std())
        rows.append([group.label, *(number(metric, value, 3) for value in numbers), f"{len(values):,}"])
        owners.append(group)
        if said := _weakest(group, metric):
            notes.append((group.label, said))
    if not found:
        return None, None, []
    tenth_name = "lowest tenth" if metric.best == "high" else "highest tenth"
    head = ["", "mean", "median", tenth_name, "deviation", "clients × seeds"]
    words = f"{label_of(metric)} on own test examples"
    return (
        Ranks(found, words, "clients, weakest to strongest (%)", is_share(metric)),
        Cells(head, rows, list(owners)),
        merged(notes),
    )


def _weakest(group: Group, metric: MetricFacts) -> str:
    """The clients with the worst scores, by name, over the runs of a group; empty where they have no names."""
    totals: dict[str, list[float]] = {}
    for run in group.runs:
        scores = run.kept.get(PERSONAL, run.kept.get(OLD))
        names = [short for short, name in zip(run.names(NAMES), run.about.get(NAMES) or []) if name]  # "": no examples
        if scores is None or len(names) != len(scores):
            continue
        for name, score in zip(names, scores.tolist()):
            totals.setdefault(name, []).append(score)
    means = {name: float(np.mean(own)) for name, own in totals.items()}
    worst = sorted((name for name in means if np.isfinite(means[name])), key=lambda name: means[name])
    worst = (worst if metric.best == "high" else worst[::-1])[:NAMED]
    return f"weakest: {', '.join(f'{name} {number(metric, means[name], 3)}' for name in worst)}." if worst else ""


def virtual_time_of(groups: list[Group]) -> Bars | None:
    """Mean virtual seconds of a client and round: its own steps, and waiting for the slowest client."""
    parts: dict[str, dict[str, float]] = {}
    for group in groups:
        runs = [run for run in group.runs if all(name in run.clients for name in STEPS) and len(run.clients["round"])]
        if not runs:
            continue
        means = [_seconds(run) for run in runs]
        parts[group.label] = {name: float(np.mean([one[name] for one in means])) for name in means[0]}
    if not parts:
        return None
    names = [*STEPS.values(), "waiting for others"]
    colours = ("#56B4E9", "#009E73", "#0072B2", "#C9CED3")
    series = [Series(n, c, tidy(np.array([own[n] for own in parts.values()]))) for n, c in zip(names, colours)]
    return Bars(list(parts), series, "virtual seconds per client and round", stacked=True)


def _seconds(run: Recorded) -> dict[str, float]:
    columns = run.clients
    lasts = {row["round"]: row["virtual_seconds"] or 0.0 for row in run.rows}
    duration = np.array([lasts.get(number, 0.0) for number in columns["round"].tolist()])
    own = {word: np.nan_to_num(columns[name].astype(np.float64), posinf=0.0) for name, word in STEPS.items()}
    waiting = columns["waited"] if "waited" in columns else np.maximum(0.0, duration - sum(own.values()))
    return {**{word: float(v.mean()) for word, v in own.items()}, "waiting for others": float(waiting.mean())}


def wall_time_of(groups: list[Group]) -> Bars | None:
    """Wall time of a run, mean over seeds: playing rounds, and evaluating."""
    every = [group for group in groups if any(run.rows for run in group.runs)]
    if not every:
        return None
    series = []
    for name, word, colour in (
        ("wall_seconds", "playing rounds", "#0072B2"),
        ("evaluation_seconds", "evaluating", "#E69F00"),
    ):
        sums = [np.mean([sum(row[name] or 0.0 for row in run.rows) for run in g.runs if run.rows]) for g in every]
        series.append(Series(word, colour, tidy(np.array(sums), 4)))
    return Bars([group.label for group in every], series, "seconds, mean of a run", stacked=True)
