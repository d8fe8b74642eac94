"""Going back to an earlier checkpoint of a run: later ones are removed, and its tables are as they were then."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fedloom.core.types import State
from fedloom.errors import BadExperiment
from fedloom.evaluate.coverage import REPLIES
from fedloom.files import replace_file, writing
from fedloom.reading.tensors import read_tensors
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.snapshot import SERVER, ledger_of
from fedloom.runs.checkpoint.tensors import names, pack
from fedloom.runs.columns import WHOLE, row_names, run_sums
from fedloom.runs.folder import LOCK, about_of, change_about
from fedloom.runs.lock import locked
from fedloom.runs.log_files import add_to_log


class Kept(NamedTuple):
    """A checkpoint of a run."""

    round: int
    saved: float  # when, by `time.time`
    size: int  # bytes
    score: float | None  # of the round; None: it was not evaluated
    damaged: str  # why it cannot be used; empty if it can


def kept_checkpoints(folder: Path) -> list[Kept]:
    """The checkpoints in a run folder, the newest first; each is read and checked."""
    about_of(folder)
    return [_kept(path) for path in store.list_all(folder / "checkpoint")]


def roll_back(folder: Path, to: int) -> Kept:
    """Go back to the checkpoint of round `to`, from which a resumed run goes on.

    Model and tables become those of that round; tasks that were in flight are in them again when the run is resumed.
    """
    about = about_of(folder)
    if not (folder / LOCK).parent.is_dir():
        raise BadExperiment(f"'{folder}' has no checkpoints; there is nothing to go back to.")
    with writing(folder), locked(folder / LOCK, f"folder '{folder}'"):
        paths = store.list_all(folder / "checkpoint")
        found = _found(folder, paths, to)
        rows, columns, recorded = ledger_of(found)
        model, before = store.tensors(found, SERVER)["model"], _round_of(paths[0])
        for path in paths:  # the newest first: if this is cut short, the run goes on from one in between
            if path != found.path and _round_of(path) >= to:
                store.remove(path)
        _write_tables(folder, about, rows, columns, recorded)
        _write_model(folder, model)
        change_about(folder, {"rolled_back": [*about.get("rolled_back", []), {"from": before, "to": to}]})
        add_to_log(folder, f"stopped: went back from round {before} to round {to}")
        return _kept(found.path)


def _found(folder: Path, paths: list[Path], to: int) -> store.Found:
    """The checkpoint of a round, checked."""
    here, why = [path for path in paths if _round_of(path) == to], ""
    for path in here:
        try:
            return store.read(path)
        except store.Damaged as problem:
            why = f"the checkpoint of round {to} in {folder} is damaged ({problem})"
    others = ", ".join(str(number) for number in sorted({_round_of(path) for path in paths} - {to})) or "none"
    raise BadExperiment(
        f"{why or f'there is no checkpoint of round {to} in {folder}'}; those that are there are of rounds {others}. A "
        "run keeps as many as --keep says when it is begun or resumed."
    )


def _round_of(path: Path) -> int:
    """The round of a checkpoint, by its name."""
    name = store.NAME.fullmatch(path.name)
    assert name is not None
    return int(name[1])


def _kept(path: Path) -> Kept:
    """What there is to say about a checkpoint."""
    saved, size = path.stat().st_mtime, sum(file.stat().st_size for file in path.iterdir())
    try:
        last = ledger_of(store.read(path))[0][-1:]
    except store.Damaged as problem:
        return Kept(_round_of(path), saved, size, None, str(problem))
    return Kept(_round_of(path), saved, size, last[0].get("score") if last else None, "")


def _write_tables(
    folder: Path, about: dict[str, Any], rows: list[dict[str, Any]], columns: State, recorded: State
) -> None:
    """Write both tables and the recorded tensors as `Ledger.write` does."""
    from fedloom.runs.parquet import column_bytes, table_bytes

    metrics = [one["name"] for one in about["score"]["metrics"]]
    every = row_names(metrics, about["score"]["personal"])
    replace_file(folder / "rounds.parquet", [table_bytes(rows, every)])
    replace_file(folder / "clients.parquet", [column_bytes(columns, about.get("client_names") or ())])
    file = folder / "kept.safetensors"
    later = read_tensors(file) if file.is_file() else {}
    tensors = {name: value for name, value in recorded.items() if not name.startswith("coverage.")}
    if REPLIES in recorded and recorded[REPLIES][1] > 0:
        tensors |= {name: value for name, value in recorded.items() if name.startswith("coverage.")}
    if WHOLE in later:
        tensors |= run_sums({name: value.numpy() for name, value in columns.items()}, later[WHOLE].numpy())
    if tensors:
        replace_file(file, pack(tensors))
    else:
        file.unlink(missing_ok=True)


def _write_model(folder: Path, model: Any) -> None:
    """Write the model [P] in the names and shapes of the file that is there; a run that was killed has none yet."""
    file = folder / "model.safetensors"
    if not file.is_file():
        return
    later, tensors, start = read_tensors(file), {}, 0
    for name in names(file):
        tensors[name] = model[start : start + later[name].numel()].view(later[name].shape)
        start += later[name].numel()
    replace_file(file, pack(tensors))
