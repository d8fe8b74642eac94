"""A LaTeX table for papers (booktabs): means over seeds with 95 % intervals."""

from __future__ import annotations

from pathlib import Path

from fedloom.core.metric import Metric
from fedloom.evaluate.judge import best_of, is_share
from fedloom.evaluate.targets import Interval, cost_of
from fedloom.evaluate.wording import decimals, direction, label_of
from fedloom.report.curves import largest_unit
from fedloom.report.group import Group
from fedloom.report.tables import AXES, HEADS, costs_of, final_of, own_target

SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "²": r"\textsuperscript{2}", "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip


def latex_table(groups: list[Group], targets: tuple[float, ...]) -> str:
    """Final score of each group, the best in bold, and its costs to reach each target."""
    targets = targets or own_target(groups)
    score = groups[0].scores.score
    costs = {(group.place, t): costs_of(group, t) for group in groups for t in targets}
    shown = [(t, what) for t in targets for what in AXES if any(cost_of(costs[g.place, t], what) for g in groups)]
    units = {what: _unit(what, [cost_of(costs[g.place, t], what) for g in groups for t in targets]) for what in AXES}
    lines = [
        "% needs \\usepackage{booktabs}; means over seeds, $\\pm$ is half the 95 % interval (Student's t)",
        f"\\begin{{tabular}}{{lr{'r' * len(shown)}}}",
        "\\toprule",
    ]
    if targets:
        spans = [(t, sum(own == t for own, _ in shown)) for t in targets]
        heads = [f"\\multicolumn{{{wide}}}{{c}}{{to {_target(score, t)}}}" for t, wide in spans if wide]
        lines.append(" & ".join(["", "", *heads]).strip() + " \\\\")
        column = 3
        for _, wide in spans:
            if wide:
                lines.append(f"\\cmidrule(lr){{{column}-{column + wide - 1}}}")
            column += wide
    said = ", ".join(filter(None, ("%" if is_share(score) else "", direction(score))))
    head = escape_latex(f"{label_of(score)} ({said})" if said else label_of(score))
    finals = [final_of(group) for group in groups]
    known = [value.mean for value in finals if value is not None]
    best = best_of(score, known) if len(known) > 1 else None
    scale = (0.01, 1) if is_share(score) else (1.0, max((decimals(score, mean) for mean in known), default=0))
    names = [f"{HEADS[what]}{f' ({units[what][1]})' if units[what][1] else ''}" for _, what in shown]
    lines += [" & ".join(["method", head, *names]) + " \\\\", "\\midrule"]
    for group, value in zip(groups, finals):
        cells = [escape_latex(group.label), _number(value, *scale, value is not None and value.mean == best)]
        for t, what in shown:
            own = costs[group.place, t]
            text = _number(cost_of(own, what), units[what][0], 1)
            missed = (
                f" ({len(own)} of {len(group.runs)})" if what == "rounds" and 0 < len(own) < len(group.runs) else ""
            )
            cells.append(text + missed)
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def write_latex(groups: list[Group], targets: tuple[float, ...], file: Path) -> None:
    """Write the table as a file."""
    file.write_text(latex_table(groups, targets))


def _unit(what: str, values: list[Interval | None]) -> tuple[float, str]:
    """One unit for a whole column."""
    return largest_unit(AXES[what], max((value.mean for value in values if value is not None), default=0.0))


def _target(score: Metric, target: float) -> str:
    """A target in the head of its columns."""
    return f"{100 * target:g}\\,\\%" if is_share(score) else f"{escape_latex(label_of(score))} {target:g}"


def _number(value: Interval | None, unit: float, digits: int, bold: bool = False) -> str:
    """A mean and half its interval in math mode; a dash where there is none."""
    if value is None:
        return "--"
    half = "" if not value.half else f" \\pm {value.half / unit:.{digits}f}"
    mean = f"{value.mean / unit:.{digits}f}"
    return f"$\\mathbf{{{mean}}}{half}$" if bold else f"${mean}{half}$"


def escape_latex(text: str) -> str:
    """Escape LaTeX's special characters; characters outside ASCII stay as they are."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)
