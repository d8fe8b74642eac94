"""Markdown pages of reproductions, written from the recipes' Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

from fedloom.accel.machine import duration
from fedloom.files import replace_file
from fedloom.studies.recipes.claims import VERDICTS, Finding, count_verdicts, findings, verdict_of
from fedloom.studies.recipes.measure import unit
from fedloom.studies.recipes.recipe import NEVER
from fedloom.studies.recipes.store import Reproduced, read_table, tables_in

INDEX = "README.md"
OURS = "questions of ours, no paper's"  # of a recipe without claims of a paper
REMARKS = ".notes.txt"  # NAME.notes.txt next to NAME.parquet: remarks for the page


def format_number(value: float, what: str) -> str:
    """A number in one or two digits after the point."""
    if value == NEVER:
        return "never"
    if isnan(value):
        return "neither"
    return f"{value:.2f}" if what in ("ratio", "GB", "times", "") else f"{value:.1f}"


def paper_says(finding: Finding) -> str:
    """The paper's number or direction."""
    claim = finding.claim
    what = "ratio" if claim.how == "ratio" else unit(claim.measure)
    if claim.control:
        return "-"
    if claim.paper is not None:
        return "never" if claim.paper == NEVER else _with_unit(f"{format_number(claim.paper, what)}", what)
    return {"above": "more", "below": "less", "equal": "alike"}[claim.sign]


def we_found(finding: Finding) -> str:
    """Our mean with its interval, or each seed's value if some are not finite."""
    claim, found = finding.claim, finding.found
    what = "ratio" if claim.how == "ratio" else unit(claim.measure)
    if not finding.values:
        return "-"
    if found is None:
        return ", ".join(format_number(value, what) for value in finding.values)
    half = "" if found.half is None else f" ± {format_number(found.half, what)}"
    return _with_unit(format_number(found.mean, what) + half, what) + (" (one seed)" if finding.alone else "")


def _with_unit(text: str, what: str) -> str:
    return text if what in ("ratio", "") else f"{text} {what}"


def findings_in(table: Reproduced) -> list[Finding]:
    """The verdicts on a recipe's claims, from its Parquet file."""
    from fedloom.studies.recipes.table import RECIPES

    about = table.about
    recipe = RECIPES[about["recipe"]](about["quick"])
    short = about["quick"] or about["scale"] != 1
    return findings(recipe.claims, table.runs, recipe.facts, about["seeds"], short)


def page(table: Reproduced, remarks: str = "") -> str:
    """A recipe's page in Markdown."""
    about, found = table.about, findings_in(table)
    lines = [f"# {about['recipe']}", "", f"{about['about']}.", ""]
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
            lines += [f"## {title}", "", *_table(some, "paper"), ""]
    if controls:
        lines += ["## Controls that the paper lacks", "", *_table(controls, ""), ""]
    lines += ["## How it was made", "", *(f"- {note}" for note in about["notes"])]
    lines += [f"- Learning rate of runs `{prefix}`: {rate:g}, the best of FedAvg's." for prefix, rate in _rates(about)]
    lines += [f"- {line}" for line in _made(about)]
    if about["failed"]:
        lines += ["", "Not run:", "", *(f"- {name}: {why}" for name, why in sorted(about["failed"].items()))]
    return "\n".join(lines) + "\n"


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
        return "No paper has claims about this; what was asked of it is below."
    return "Of the paper's claims: " + ", ".join(f"{counts[one]} {one}" for one in VERDICTS if counts[one]) + "."


def _table(found: Sequence[Finding], paper: str) -> list[str]:
    head = ["what", *([paper] if paper else []), "ours", "verdict"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in found:
        cells = [one.claim.what, *([paper_says(one)] if paper else []), we_found(one), verdict_of(one)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


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
    written, index = (
        [],
        ["# Reproduction", "", *_remarks(folder / "README"), "| recipe | what | verdicts |", "|---|---|---|"],
    )
    for file in tables_in(folder):
        table = read_table(file)
        written.append(file.with_suffix(".md"))
        replace_file(written[-1], [page(table, "\n".join(_remarks(file.with_suffix("")))).encode()])
        counts = count_verdicts(findings_in(table))
        verdicts = ", ".join(f"{counts[one]} {one}" for one in VERDICTS if counts[one])
        size = f" ({smaller(table.about)})" if table.about["quick"] or table.about["scale"] != 1 else ""
        index.append(f"| [{file.stem}]({file.stem}.md) | {table.about['about']}{size} | {verdicts or OURS} |")
    replace_file(folder / INDEX, [("\n".join(index) + "\n").encode()])
    return [*written, folder / INDEX]


def _remarks(stem: Path) -> list[str]:
    """The remarks in NAME.notes.txt and an empty line, if that file exists."""
    file = stem.with_name(stem.name + REMARKS)
    return [file.read_text().strip(), ""] if file.is_file() else []
