"""Markdown pages of reproductions, written from the recipes' Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf, isnan
from pathlib import Path
from typing import Any

from fedloom.accel.machine import duration
from fedloom.files import replace_file
from fedloom.studies.recipes.claims import (
    MEANINGS,
    STOPPED,
    UNTRIED,
    VERDICTS,
    Finding,
    count_verdicts,
    findings,
    values_of,
    verdict_of,
)
from fedloom.studies.recipes.measure import Span, unit
from fedloom.studies.recipes.recipe import NEVER, Claim, Recipe
from fedloom.studies.recipes.store import Reproduced, read_table, tables_in

INDEX = "README.md"
OURS = "questions of ours, no paper's"  # of a recipe without claims of a paper
REMARKS = ".notes.txt"  # NAME.notes.txt next to NAME.parquet: remarks for the page


def format_number(value: float, what: str) -> str:
    """A number in one or two digits after the point."""
    return f"{value:.2f}" if what in ("ratio", "GB", "times", "") else f"{value:.1f}"


def format_span(value: Span, what: str) -> str:
    """A number, or what is known of it."""
    if value.known:
        return format_number(value.low, what)
    if isnan(value.low) or (isinf(value.low) and isinf(value.high)):
        return "unknown"
    if value.low <= 0 or isinf(value.low):
        return f"below {format_number(value.high, what)}"
    if isinf(value.high):
        return "never" if what != "ratio" else f"above {format_number(value.low, what)}"
    return f"{format_number(value.low, what)} to {format_number(value.high, what)}"


def paper_says(finding: Finding) -> str:
    """The paper's number or direction."""
    claim = finding.claim
    what = "ratio" if claim.how == "ratio" else unit(claim.measure)
    if claim.control:
        return "-"
    if claim.paper is not None:
        return "never" if claim.paper == NEVER else _with_unit(format_number(claim.paper, what), what)
    return {"above": "more", "below": "less", "equal": "alike"}[claim.sign]


def tolerance_of(finding: Finding) -> str:
    """How far from the paper's number a value may lie."""
    claim = finding.claim
    what = "ratio" if claim.how == "ratio" else unit(claim.measure)
    return "-" if claim.paper == NEVER or claim.band is None else format_number(claim.margin, what)


def we_found(finding: Finding) -> str:
    """Our mean with its interval, or what is known of each seed's value."""
    claim, found = finding.claim, finding.found
    what = "ratio" if claim.how == "ratio" else unit(claim.measure)
    if not finding.values:
        return "-"
    if found is None:
        return ", ".join(format_span(value, what) for value in finding.values)
    half = "" if found.half is None else f" ± {format_number(found.half, what)}"
    return _with_unit(format_number(found.mean, what) + half, what) + (" (one seed)" if finding.alone else "")


def _with_unit(text: str, what: str) -> str:
    return text if what in ("ratio", "") else f"{text} {what}"


def recipe_of(table: Reproduced) -> Recipe:
    """The recipe that a Parquet file is of."""
    from fedloom.studies.recipes.table import RECIPES

    return RECIPES[table.about["recipe"]](table.about["quick"])


def findings_in(table: Reproduced) -> list[Finding]:
    """The verdicts on a recipe's claims, from its Parquet file."""
    return findings(recipe_of(table), table.runs, table.about["seeds"], table.about["scale"])


def page(table: Reproduced, remarks: str = "") -> str:
    """A recipe's page in Markdown."""
    about, found, recipe = table.about, findings_in(table), recipe_of(table)
    lines = [f"# {about['recipe']}", "", f"{recipe.about}.", ""]
    if about["quick"] or about["scale"] != 1:
        lines += [f"**This is a smaller version**: {smaller(about)}.", ""]
    lines += [f"{summary(found)} Intervals are 95 % (Student's t) over {len(about['seeds'])} seeds.", ""]
    if remarks:
        lines += ["## What was seen", "", remarks.strip(), ""]
    compared = [one for one in found if one.claim.how != "value" and not one.claim.control]
    valued = [one for one in found if one.claim.how == "value" and not one.claim.control]
    controls = [one for one in found if one.claim.control]
    for title, some in (("Comparisons", compared), ("Values", valued)):
        if some:
            lines += [f"## {title}", "", *_table(some, True), ""]
    if controls:
        lines += ["## Controls that the paper lacks", "", *_table(controls, False), ""]
    lines += [*numbers(recipe, table), ""] if recipe.columns else []
    lines += ["## How it was made", "", *(f"- {note}" for note in recipe.notes)]
    lines += [f"- Learning rate of runs `{prefix}`: {rate:g}, the best of FedAvg's." for prefix, rate in _rates(about)]
    lines += [f"- {line}" for line in _made(about)]
    if about["failed"]:
        lines += ["", "Not run:", "", *(f"- {name}: {why}" for name, why in sorted(about["failed"].items()))]
    return "\n".join(lines) + "\n"


def numbers(recipe: Recipe, table: Reproduced) -> list[str]:
    """The recipe's columns of every run, mean and interval over seeds."""
    units = [unit(measure) for measure in recipe.columns.values()]
    heads = [f"{name}, {what}" if what else name for name, what in zip(recipe.columns, units)]
    lines = ["## Numbers", "", *_head(["", *heads])]
    for label in recipe.experiments:
        claims = [Claim(label, (label,), measure) for measure in recipe.columns.values()]
        values = [values_of(claim, table.runs, {}, table.about["seeds"]) for claim in claims]
        found = [Finding(claim, some, UNTRIED, alone=len(some) == 1) for claim, some in zip(claims, values)]
        lines.append(_row([label, *(we_found(one).removesuffix(f" {what}") for one, what in zip(found, units))]))
    return lines


def _rates(about: dict[str, Any]) -> list[tuple[str, float]]:
    return sorted(about["rates"].items())


def smaller(about: dict[str, Any]) -> str:
    """How a smaller version differs from the full one."""
    parts = ["the recipe's `--quick`"] if about["quick"] else []
    return ", ".join([*parts, *([f"{about['scale']:g} times the rounds"] if about["scale"] != 1 else [])])


def summary(found: Sequence[Finding]) -> str:
    """One sentence with the number of claims by verdict."""
    counts = count_verdicts(found)
    if not any(counts.values()):
        return "No paper has claims about this."
    return f"Of the paper's claims: {tally(found)}."


def tally(found: Sequence[Finding]) -> str:
    """The number of claims by verdict, and what those that were stopped early say so far."""
    counts = count_verdicts(found)
    stopped = [one.so_far for one in found if one.verdict == STOPPED and not one.claim.control]
    so_far = ", ".join(f"{stopped.count(one)} {one}" for one in VERDICTS if one in stopped)
    words = {STOPPED: f"{STOPPED} (so far {so_far})"}
    return ", ".join(f"{counts[one]} {words.get(one, one)}" for one in VERDICTS if counts[one])


def _table(found: Sequence[Finding], paper: bool) -> list[str]:
    lines = _head(["what", *(["paper", "tolerance"] if paper else []), "ours", "verdict"])
    for one in found:
        said = [paper_says(one), tolerance_of(one)] if paper else []
        lines.append(_row([one.claim.what, *said, we_found(one), verdict_of(one)]))
    return lines


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), "|" + "---|" * len(names)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _made(about: dict[str, Any]) -> list[str]:
    """Lines on commands, machines, data and time."""
    lines = [f"Data: {name}, {n['train']:,} + {n['test']:,} examples." for name, n in sorted(about["data"].items())]
    lines += [
        f"`{one['command']}`: {one['ran']} runs in {duration(one['seconds'])}, start and data included, on "
        f"{place_of(one['machine'])}. Runs may serve several recipes."
        for one in about["commands"]
    ]
    took = f"{about['runs']} runs, which by themselves took {duration(about['run_seconds'])}"
    return [*lines, f"{took}, on {' and '.join(about['places'])}." if about["places"] else f"{took}."]


def place_of(machine: dict[str, Any]) -> str:
    """A machine as text."""
    name = machine["name"] if machine["device"] == "cuda" else f"{machine['cores']} CPU cores ({machine['name']})"
    return f"{name}, torch {machine['torch']}, Python {machine['python']}"


def write_pages(folder: Path) -> list[Path]:
    """Write each recipe's page and an index from the Parquet files in a folder."""
    written, rows, papers = [], list[str](), dict[str, dict[str, int]]()
    for file in tables_in(folder):
        table = read_table(file)
        written.append(file.with_suffix(".md"))
        replace_file(written[-1], [page(table, "\n".join(_remarks(file.with_suffix("")))).encode()])
        found = findings_in(table)
        counts = count_verdicts(found)
        of_paper = papers.setdefault(table.about["recipe"].partition("-")[0], dict.fromkeys(VERDICTS, 0))
        of_paper |= {one: of_paper[one] + counts[one] for one in VERDICTS}
        size = f" ({smaller(table.about)})" if table.about["quick"] or table.about["scale"] != 1 else ""
        names = f"[{file.stem}]({file.stem}.md)", recipe_of(table).about + size
        rows.append(_row([*names, tally(found) or OURS]))
    index = ["# Reproduction", "", *_remarks(folder / "README"), *_head(["recipe", "what", "verdicts"]), *rows, ""]
    index += ["The claims by paper:", "", *_head(["paper", *VERDICTS])]
    claimed = {name: counts for name, counts in papers.items() if any(counts.values())}
    index += [_row([name, *(str(counts[one]) for one in VERDICTS)]) for name, counts in claimed.items()]
    index += ["", *(f"- **{one}**: {MEANINGS[one]}." for one in VERDICTS)]
    replace_file(folder / INDEX, [("\n".join(index) + "\n").encode()])
    return [*written, folder / INDEX]


def _remarks(stem: Path) -> list[str]:
    """The remarks in NAME.notes.txt and an empty line, if that file exists."""
    file = stem.with_name(stem.name + REMARKS)
    return [file.read_text().strip(), ""] if file.is_file() else []
