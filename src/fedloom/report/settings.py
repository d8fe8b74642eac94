"""Charts of what was tried: the score of every choice of settings, by method, as heat maps or parallel coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, log
from typing import Any

from fedloom.core.metric import Metric
from fedloom.evaluate.judge import best_of
from fedloom.evaluate.wording import label_of, number
from fedloom.report.charts import Axis, Cells, Map, Maps, Parallel, Parallels, Route
from fedloom.report.group import Group, flat, plain
from fedloom.report.tables import final_of, with_half

VALIDATION = "validation_score"
FILLED = 0.5  # of a heat map's cells, below which settings are drawn as parallel coordinates
WIDE = 10.0  # numbers whose ends are as far apart are placed by their logarithm
APART = ("seed", "method", "rounds", "evaluate_every")  # keys in which runs of one choice may differ


def settings_of(groups: list[Group]) -> tuple[Maps | Parallels | None, Cells | None, list[str]]:
    """The chart of methods that were tried with several settings, the table of their best, and notes."""
    methods: dict[str, list[Group]] = {}
    for group in groups:
        methods.setdefault(str(group.runs[0].experiment["method"]["name"]), []).append(group)
    tried = {name: own for name, own in methods.items() if len(own) > 1 and varied(own)}
    if not tried:
        return None, None, []
    what = VALIDATION if all(final_of(group, VALIDATION) for own in tried.values() for group in own) else "score"
    score = groups[0].scores.score
    notes = [] if what == VALIDATION else ["No run has validation examples: these are scores on the test set."]
    scale = label_of(score) + (" on validation examples" if what == VALIDATION else "")
    table = _best(methods, what, score)
    if len(tried) > 1 and len(alone := {tuple(varied(own)) for own in tried.values()}) == 1 and len(min(alone)) == 1:
        return Maps({"all": {scale: _by_method(tried, what, score)}}, {scale: (scale, None)}, "", ""), table, notes
    if all(_is_grid(own) for own in tried.values()):
        maps = {name: {scale: _map(own, what, score)} for name, own in tried.items()}
        if any(len(varied(own)) > 2 for own in tried.values()):
            notes.append("Where more than two settings vary, a cell has the best score over all others.")
        return Maps(maps, {scale: (scale, None)}, "", "", square=True), table, notes
    return Parallels({name: _parallel(own, what, score) for name, own in tried.items()}, scale), table, notes


def varied(groups: list[Group]) -> dict[str, list[Any]]:
    """The settings in which groups of one method differ, with their values, the most various first."""
    flats = [_flat(group) for group in groups]
    keys = dict.fromkeys(key for own in flats for key in own if key not in APART)
    found = {key: [own.get(key) for own in flats] for key in keys}
    values = {key: _ordered(own) for key, own in found.items()}
    return dict(sorted(((k, v) for k, v in values.items() if len(v) > 1), key=lambda pair: -len(pair[1])))


def _flat(group: Group) -> dict[str, Any]:
    """A group's settings by dotted key."""
    return flat(group.runs[0].experiment)


def _ordered(values: list[Any]) -> list[Any]:
    """Different values, numbers by size and before all others."""
    different = list({plain(value): value for value in values}.values())
    return sorted(different, key=lambda value: (0, value, "") if _is_number(value) else (1, 0, plain(value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_grid(groups: list[Group]) -> bool:
    """Whether the two settings with the most values make a heat map that is not mostly empty."""
    sizes = [len(values) for values in list(varied(groups).values())[:2]]
    pairs = {tuple(plain(_flat(group).get(key)) for key in list(varied(groups))[:2]) for group in groups}
    cells = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    return len(pairs) >= FILLED * cells


def short(key: str) -> str:
    """A setting's name without its section."""
    return key.rpartition(".")[2]


def _value(group: Group, what: str) -> float | None:
    """A group's mean score; None if it has none that is finite."""
    found = final_of(group, what)
    return None if found is None or not isfinite(found.mean) else found.mean


def _map(groups: list[Group], what: str, score: Metric) -> Map:
    """The best score at each value of the two settings with the most values."""
    keys = varied(groups)
    across, down = [*list(keys)[:2], None][:2]
    columns, rows = keys[str(across)], [None] if down is None else keys[down]

    def cell(x: Any, y: Any) -> float | None:
        own = [g for g in groups if _flat(g).get(str(across)) == x and (down is None or _flat(g).get(down) == y)]
        values = [value for value in (_value(group, what) for group in own) if value is not None]
        return float(f"{best_of(score, values):.5g}") if values else None

    names = [[f"{short(key)} {plain(value)}" for value in values] for key, values in ((str(across), columns),)]
    lines = [""] if down is None else [f"{short(down)} {plain(value)}" for value in rows]
    return Map([[cell(x, y) for x in columns] for y in rows], names[0], lines)


def _by_method(tried: Mapping[str, list[Group]], what: str, score: Metric) -> Map:
    """A row for each method, where all were tried with values of one setting."""
    maps = {name: _map(own, what, score) for name, own in tried.items()}
    columns = list(dict.fromkeys(str(value) for one in maps.values() for value in one.x))
    found = {name: dict(zip(map(str, one.x), one.z[0])) for name, one in maps.items()}
    return Map([[own.get(value) for value in columns] for own in found.values()], columns, list(maps))


def _parallel(groups: list[Group], what: str, score: Metric) -> Parallel:
    """A line for each choice of settings, from its values to its score; the best comes last and is drawn on top."""
    keys, flats = varied(groups), [_flat(group) for group in groups]
    axes = [_axis(short(key), values) for key, values in keys.items()]
    worth = [(value, own) for group, own in zip(groups, flats) if (value := _value(group, what)) is not None]
    worth.sort(key=lambda pair: pair[0], reverse=score.best == "low")
    scores = [value for value, _ in worth]
    axes.append(_axis(label_of(score), sorted(scores), lambda value: number(score, value)))
    paths = []
    for value, own in worth:
        places = [axis.places[plain(own.get(key))] for axis, key in zip(axes, keys)]
        words = ", ".join(f"{short(key)} {plain(own.get(key))}" for key in keys)
        paths.append(Route([*places, axes[-1].places[plain(value)]], f"{words}: {number(score, value)}"))
    return Parallel(axes, paths)


def _axis(name: str, values: list[Any], write: Any = plain) -> Axis:
    """Places of values from 0 to 1: numbers by size, or by logarithm where they are positive and far apart."""
    if all(_is_number(value) for value in values) and len(values) > 1:
        by_log = values[0] > 0 and values[-1] / values[0] >= WIDE
        sized = [log(value) if by_log else value for value in values]
        spread = (sized[-1] - sized[0]) or 1.0
        places = {plain(value): (own - sized[0]) / spread for value, own in zip(values, sized)}
        return Axis(name, places, [(0.0, write(values[0])), (1.0, write(values[-1]))])
    step = 1 / max(1, len(values) - 1)
    places = {plain(value): place * step for place, value in enumerate(values)}
    return Axis(name, places, [(place * step, write(value)) for place, value in enumerate(values)])


def _best(methods: Mapping[str, list[Group]], what: str, score: Metric) -> Cells:
    """Each method's best choice of settings, with how many were tried."""
    rows, owners = [], []
    for name, groups in methods.items():
        known = [(value, group) for group in groups if (value := _value(group, what)) is not None]
        if not known:
            continue
        top = best_of(score, [value for value, _ in known])
        best = next(group for value, group in known if value == top)
        own = _flat(best)
        words = ", ".join(f"{short(key)} {plain(own.get(key))}" for key in varied(groups)) or "its own"
        found = [final_of(best, one) for one in dict.fromkeys((what, "score"))]
        rows.append([name, words, str(len(groups)), *(with_half(score, one) for one in found)])
        owners.append(best)
    heads = ["on validation examples"] if what == VALIDATION else []
    return Cells(["", "best settings", "tried", *heads, "on the test set"], rows, list(owners))
