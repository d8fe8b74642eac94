"""The command `fedloom reproduce`: tables and figures of the papers."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedloom.cli.options import DeviceOption, JsonOption, note_printer, print_json, runs_progress
from fedloom.errors import BadExperiment, RunStopped, unknown

if TYPE_CHECKING:
    from fedloom.studies.recipes.claims import Finding
    from fedloom.studies.recipes.recipe import Recipe
    from fedloom.studies.recipes.runner import Played

SEEDS, QUICK_SEEDS = 3, 2
STYLES = {
    "reproduced": "green", "holds": "green", "direction only": "yellow", "cannot tell": "yellow", "unsure": "yellow",
    "stopped early": "yellow", "fitted": "dim", "not run": "dim",
}  # fmt: skip


def reproduce_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="names from --list; runs that they share are run once")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a smaller version, which says that it is smaller")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="how many seeds, from 0 on; 3, or 2 with --quick")] = None,
    scale: Annotated[float, typer.Option(help="factor on the number of rounds, above 0 and at most 1")] = 1.0,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="only runs with this text in their label, at its start or after a slash"),
    ] = None,
    out: Annotated[Path, typer.Option(help="results; runs that are there are not run again")] = Path("reproduced"),
    device: DeviceOption = "auto",
    data_dir: Annotated[
        Path | None, typer.Option(help="where mnist.npz, cifar10.npz ... lie, else FEDLOOM_DATA or the cache folder")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="begin no runs after this time; the same command continues")
    ] = None,
    pages: Annotated[
        Path | None, typer.Option(metavar="DIR", help="run nothing: write the pages of the Parquet files in DIR again")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="show the recipes and end")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the tables and figures of the papers behind our methods, and judge the papers' claims.

    For example `fedloom reproduce fedumf-table1 --quick`. Finished runs are kept in --out: after Ctrl-C the same
    command continues. Verdicts: reproduced, direction only, cannot tell, stopped early, not reproduced, not run.
    """
    from fedloom.studies.recipes.page import write_pages
    from fedloom.studies.recipes.table import RECIPES

    if list_:
        _show_list(as_json)
        return
    if pages is not None:
        for file in write_pages(pages):
            typer.echo(file)
        return
    if not names:
        raise BadExperiment("reproduce got no names; `fedloom reproduce --list` shows them.")
    for name in names:
        if name not in RECIPES:
            raise BadExperiment(unknown("recipe", name, RECIPES))
    from fedloom.studies.recipes.recipe import scaled, selected

    recipes = [selected(scaled(RECIPES[name](quick), scale), only or ()) for name in dict.fromkeys(names)]
    count = seeds or (QUICK_SEEDS if quick else SEEDS)
    _reproduce(recipes, list(range(count)), scale, out, device, data_dir, minutes, as_json)


def _reproduce(
    recipes: list[Recipe], seeds: list[int], scale: float, out: Path, device: str, data_dir: Path | None,
    minutes: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the recipes, store and print their results."""
    from fedloom.accel.machine import device_of, duration
    from fedloom.cli.show import progress
    from fedloom.runs.lock import locked
    from fedloom.studies.recipes.estimate import expected, runs_of
    from fedloom.studies.recipes.runner import play

    errors = Console(stderr=True, highlight=False)
    console, began = errors if as_json else Console(highlight=False), time.perf_counter()
    runs = runs_of(recipes, seeds)
    guess = expected(recipes, seeds, device_of(device).type)
    console.print(
        f"{len(runs)} runs of {len(recipes)} recipes, about {duration(guess)} if none is stored yet", style="dim"
    )
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / "lock", f"folder '{out}'"):
        try:
            with runs_progress(console, "reproduce", sum(one.rounds for one in runs.values()), progress) as watch:
                played = play(recipes, seeds, out, device, data_dir, watch, note_printer(console), minutes)
        except KeyboardInterrupt:
            errors.print(f"interrupted; finished runs are in {out}, the same command continues", soft_wrap=True)
            raise typer.Exit(130) from None
        found = _write(played, seeds, scale, out, device, time.perf_counter() - began)
    if as_json:
        print_json({name: [one.record() for one in some] for name, some in found.items()})
    else:
        for recipe in played.recipes:
            console.print(_table(recipe, found[recipe.name]))
    _complain(played, errors)


def _stem(recipe: Recipe) -> str:
    return f"{recipe.name}-quick" if recipe.quick else recipe.name


def _write(
    played: Played, seeds: list[int], scale: float, out: Path, device: str, seconds: float
) -> dict[str, list[Finding]]:
    """Write each recipe's Parquet file, and all findings as JSON."""
    from fedloom.accel.machine import device_of
    from fedloom.files import replace_file
    from fedloom.studies.bench.limits import machine
    from fedloom.studies.recipes.page import findings_in, place_of
    from fedloom.studies.recipes.runner import kept_runs
    from fedloom.studies.recipes.store import Store, read_table, write_table

    command = {"command": _typed(), "seconds": seconds, "ran": played.ran, "machine": machine(device_of(device))}
    found = {}
    for recipe in played.recipes:
        kept, file = kept_runs(recipe, seeds, Store(out)), out / f"{_stem(recipe)}.parquet"
        before: list[dict[str, Any]] = []
        if file.is_file() and (old := read_table(file).about)["scale"] == scale:
            before = old["commands"]
        about = {
            "recipe": recipe.name, "about": recipe.about, "notes": list(recipe.notes), "quick": recipe.quick,
            "scale": scale, "seeds": seeds, "rates": played.rates[recipe.name], "runs": len(kept),
            "data": {one.facts["experiment"]["data"]["name"]: one.facts["data"] for one in kept.values()},
            "run_seconds": sum(one.facts["seconds"] for one in kept.values()),
            "places": sorted({place_of(one.facts["machine"]) for one in kept.values()}),
            "commands": [*before, *([command] if played.ran or not before else [])],
            "failed": {k: v for k, v in played.failed.items() if k.startswith((f"{recipe.name} ", f"{recipe.name}:"))},
            "experiments": {label: one.model_dump(mode="json") for label, one in recipe.experiments.items()},
        }  # fmt: skip
        write_table(file, about, kept)
        found[recipe.name] = findings_in(read_table(file))
    records = {name: [one.record() for one in some] for name, some in found.items()}
    replace_file(out / "claims.json", [json.dumps(records, indent=1).encode()])
    return found


def _typed() -> str:
    """The command as typed, with its short name."""
    return shlex.join(["fedloom", *sys.argv[1:]])


def _table(recipe: Recipe, found: list[Finding]) -> Table:
    """Comparisons and controls of a recipe, or its values if it has none."""
    from fedloom.studies.recipes.claims import verdict_of
    from fedloom.studies.recipes.page import paper_says, summary, we_found

    compared = [one for one in found if one.claim.how != "value" or one.claim.control]
    rest = len(found) - len(compared)
    caption = summary(found)
    if recipe.columns:
        caption += " Its numbers are on the page that `fedloom reproduce --pages DIR` writes."
    if rest:
        caption += f" {rest} values without a comparison are in claims.json and on the page that --pages writes."
    title = f"{recipe.name}: {recipe.about}" + (" (a smaller version)" if recipe.quick else "")
    table = Table("what", Column("paper", justify="right"), Column("ours", justify="right"), "verdict", title=title)
    table.title_justify, table.caption = "left", caption
    for one in compared or found:
        verdict = verdict_of(one)
        cells = (one.claim.what, paper_says(one), we_found(one))
        style = STYLES.get(verdict.partition(";")[0], "red")
        table.add_row(*(Text(cell) for cell in cells), Text(verdict, style=style))
    return table


def _complain(played: Played, errors: Console) -> None:
    """Print what was not run; raise if nothing was."""
    if played.left:
        errors.print(f"{played.left} runs are left because the time is over; the same command goes on", style="yellow")
    if not played.failed:
        return
    reasons = dict.fromkeys(played.failed.values())
    if played.ran + played.kept == 0:
        raise RunStopped(f"nothing was run: {'; '.join(reasons)}")
    for why in reasons:
        some = [name for name, one in played.failed.items() if one == why]
        errors.print(f"not run: {len(some)} ({some[0]}, ...): {why}", style="red", markup=False, soft_wrap=True)


def _show_list(as_json: bool) -> None:
    """Print each recipe's name, data sets, number of runs and expected time."""
    from fedloom.accel.machine import duration
    from fedloom.studies.recipes.estimate import expected
    from fedloom.studies.recipes.table import RECIPES

    rows: list[dict[str, Any]] = []
    for name, make in RECIPES.items():
        full, small = make(False), make(True)
        cost = {
            "quick_cpu_seconds": expected([small], range(QUICK_SEEDS), "cpu"),
            "cpu_seconds": expected([full], range(SEEDS), "cpu"),
            "h200_seconds": expected([full], range(SEEDS), "cuda"),
        }  # fmt: skip
        rows.append({"name": name, "about": full.about, "data": full.data, "runs": 3 * len(full.experiments), **cost})
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table(
        Column("name", no_wrap=True), "what it is", "data", "runs", "quick, 2 cores", "2 cores", "one H200",
        title="recipes, three seeds (two if quick); times are estimates", title_justify="left",
    )  # fmt: skip
    for row in rows:
        times = [duration(row[key]) for key in ("quick_cpu_seconds", "cpu_seconds", "h200_seconds")]
        table.add_row(row["name"], Text(row["about"]), ", ".join(row["data"]) or "none", str(row["runs"]), *times)
    Console().print(table)
