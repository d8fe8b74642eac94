"""A run folder: locked by one run, with the experiment, a log and checkpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torch import Tensor

from fedloom.core.goal import Goal
from fedloom.core.types import Setting
from fedloom.engine.plan import ClientWay
from fedloom.errors import BadData, BadExperiment, BadModel, RunStopped
from fedloom.files import replace_file, writing
from fedloom.layout import Layout
from fedloom.reading.tensors import read_tensors
from fedloom.reading.texts import read_json
from fedloom.runs.base import hash_of_base
from fedloom.runs.build import Prepared
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.fingerprint import changes, fingerprint, refuse_another, refuse_other_inputs, surroundings
from fedloom.runs.checkpoint.saver import Checkpoints, Saver
from fedloom.runs.checkpoint.tensors import pack
from fedloom.runs.experiment import Experiment
from fedloom.runs.lock import locked
from fedloom.runs.log_files import JSON, TEXT, logged

log = logging.getLogger("fedloom")

FORMAT = 3  # of checkpoints
ABOUT, LOCK, START = "experiment.json", "checkpoint/lock", "start.safetensors"


class Opened(NamedTuple):
    """A locked run folder."""

    saver: Saver
    found: store.Found | None  # the checkpoint to go on from


def new_folder(stem: str) -> Path:
    """The first free `runs/STEM-NUMBER`."""
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


def experiment_in(folder: Path) -> Experiment:
    """The experiment in a run folder."""
    return Experiment(**about_of(folder)["experiment"])


def about_of(folder: Path) -> dict[str, Any]:
    """What a run folder's `experiment.json` says."""
    about = _about(folder)
    if about is None:
        raise BadExperiment(f"'{folder}' is not a run folder: it has no {ABOUT}; name the folder of a run.")
    return about


def change_about(folder: Path, changed: dict[str, Any]) -> None:
    """Change entries of a run folder's `experiment.json`."""
    _write_about(folder, {**about_of(folder), **changed})


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write `experiment.json`."""
    replace_file(folder / ABOUT, [f"{json.dumps(about, indent=2)}\n".encode()])


def base_in(folder: Path) -> str:
    """The hash of the network's base in a run folder; empty if it has none."""
    return str((_about(folder) or {}).get("base", ""))


def way_in(folder: Path) -> ClientWay | None:
    """How the clients of the run in a folder share the cores; None: it does not say."""
    plan = ((_about(folder) or {}).get("engine") or {}).get("plan") or {}
    return plan["clients"] if plan.get("clients") in get_args(ClientWay) else None


def start_in(folder: Path | None) -> Path | None:
    """A run's own copy of the weights that it began with; None: it has none."""
    return folder / START if folder is not None and (folder / START).is_file() else None


def check(folder: Path | None, experiment: Experiment, resume: bool) -> None:
    """Refuse early, before data are read, what `open_folder` would refuse."""
    if folder is None:
        if resume:
            raise BadExperiment("resume needs the run's folder; give it as out.")
        return
    if folder.exists() and (not folder.is_dir() or (_used(folder) and not resume)):
        hint = "name a new folder, or resume the run that is in it" if _about(folder) else "name a new folder"
        raise BadExperiment(f"out is '{folder}', which exists and is not empty; {hint}.")
    if not resume or not _used(folder):
        return
    refuse_another(experiment, experiment_in(folder).model_dump(mode="json"))


def check_engine(folder: Path, network: bool) -> None:
    """Refuse to go on over a `network` with a run that was simulated, or the other way round; nothing to refuse if new.

    Clients' states and, it may be, their data are where the run was begun.
    """
    about = _about(folder)
    if about is None:
        return
    engine = about.get("engine") or {}
    if (engine.get("engine") == "flower") == network:
        return
    if network:
        raise BadExperiment(f"'{folder}' is a simulated run; go on with `fedloom run --resume {folder}`.")
    command = engine.get("resume") or "flwr run APP --run-config 'resume=true'"
    raise BadExperiment(
        f"'{folder}' is a run on real nodes, which have its clients' states and data; go on with `{command}`."
    )


def resume_command(folder: Path) -> str:
    """The command with which a run on real nodes says that it goes on; empty for other folders."""
    return str(((_about(folder) or {}).get("engine") or {}).get("resume") or "")


def _used(folder: Path) -> bool:
    """Whether the folder holds anything to lose; the files of a run that was killed before it began do not count."""
    inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    nothing = {"checkpoint", TEXT, JSON, f".{ABOUT}.new"} if (folder / LOCK).exists() else {"checkpoint"}
    return bool(inside - nothing or store.list_all(folder / "checkpoint"))


def _about(folder: Path) -> dict[str, Any] | None:
    """The contents of `experiment.json`; None: the folder is not a run folder."""
    try:
        about = read_json(folder / ABOUT)
        assert isinstance(about["experiment"], dict)
        return dict(about)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AssertionError) as problem:
        raise BadData(f"'{folder / ABOUT}' cannot be read ({problem}); it was written when the run began.") from problem


@contextmanager
def open_folder(
    folder: Path, experiment: Experiment, prepared: Prepared, resume: bool, when: Checkpoints
) -> Iterator[Opened]:
    """Open a run folder: lock it, write its experiment, open its log and find its newest checkpoint."""
    import fedloom.runs.parquet  # noqa: F401  fail now rather than at the end if it cannot be imported

    with ExitStack() as stack:
        with writing(folder):
            (folder / LOCK).parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / LOCK, f"folder '{folder}'"))
        check(folder, experiment, resume)  # another process may have been quicker
        with writing(folder):
            stack.enter_context(logged(folder))
        found = newest_checkpoint(folder) if resume else None
        now, here = fingerprint(experiment, prepared), surroundings(prepared.inputs.model.device)
        if found is not None:
            _compare(found, experiment, now, here)
        with writing(folder):
            _describe(folder, experiment, prepared, now, here, found)
        facts = {"format": FORMAT, "experiment": experiment.model_dump(mode="json"), "fingerprint": now}
        paths = store.list_all(folder / "checkpoint")
        good = [] if found is None else paths[paths.index(found.path) :]
        saver = Saver(folder, when, {**facts, "surroundings": here}, good[::-1])
        saver.begin(0 if found is None else found.facts["round"])
        yield Opened(saver, found)


def newest_checkpoint(folder: Path) -> store.Found | None:
    """The newest checkpoint that is not damaged; None where none was ever written."""
    paths = store.list_all(folder / "checkpoint")
    for path in paths:
        try:
            found = store.read(path)
        except store.Damaged as why:
            log.warning("checkpoint '%s' is damaged (%s) and is not used", path, why)
            continue
        if found.facts.get("format") != FORMAT:
            raise RunStopped(
                f"checkpoint '{path}' has format {found.facts.get('format')}, and this fedloom reads {FORMAT}; resume "
                "it with the version of fedloom that is named in its manifest."
            )
        return found
    if paths:
        raise RunStopped(
            f"all {len(paths)} checkpoints in '{folder / 'checkpoint'}' are damaged; put one back from a copy, or run "
            "the experiment anew in another folder."
        )
    return None


def _compare(found: store.Found, experiment: Experiment, now: dict[str, str], here: dict[str, str]) -> None:
    """Refuse to go on with another run; warn about another machine or library."""
    refuse_another(experiment, found.facts["experiment"])
    refuse_other_inputs(found.facts["fingerprint"], now)
    for name, (old, new) in changes(found.facts["surroundings"], here).items():
        log.warning(
            "%s was %s up to round %d and is %s now: the last bits may differ from those of an undisturbed run",
            *(name, old, found.facts["round"], new),
        )


def _describe(
    folder: Path,
    experiment: Experiment,
    prepared: Prepared,
    now: dict[str, str],
    here: dict[str, str],
    found: store.Found | None,
) -> None:
    """Write `experiment.json`: what is run and when it was resumed; and a copy of the weights that it began with."""
    before = _about(folder) or {}
    about = {
        "experiment": experiment.model_dump(mode="json"),
        "method": prepared.inputs.method.in_full,
        "versions": {name: here[name] for name in ("fedloom", "torch", "numpy", "python")},
        "device": here["device"],
        "parameters": prepared.inputs.setting.layout.trained,
        "score": _score(prepared.inputs.setting.goal),
        "base": hash_of_base(prepared.inputs.network, prepared.inputs.setting.layout),
        "partition": prepared.inputs.dealt,
        "dealt_by": prepared.inputs.dealt_by,
        "clients": prepared.inputs.parts,
        "client_names": prepared.inputs.client_names,
        "class_names": prepared.inputs.class_names,
        "memory": prepared.inputs.placement.record(),
        "engine": prepared.engine.describe(),
        "start": now.get("start"),
        "notes": prepared.notes,
    }
    if before:
        own = {"round": 0 if found is None else found.facts["round"], **here}
        about = {**before, "experiment": about["experiment"], "resumed": [*before.get("resumed", []), own]}
    _write_about(folder, about)
    if "start" in now and start_in(folder) is None:
        replace_file(folder / START, pack(prepared.inputs.setting.layout.split(prepared.inputs.model)))
    for note in (prepared.inputs.dealt, *prepared.notes):
        log.info(note)


def save_model(folder: Path, setting: Setting, weights: Tensor) -> None:
    """Write the model's tensors into the run folder."""
    replace_file(folder / "model.safetensors", pack(setting.layout.split(weights)))


def saved_model(folder: Path, layout: Layout) -> Tensor:
    """The model [P] in the run folder's `model.safetensors`."""
    file = folder / "model.safetensors"
    if not file.is_file():
        raise BadModel(f"there is no '{file}': the run has not finished a round yet, or was kept elsewhere.")
    saved = read_tensors(file)
    if dict(zip(layout.names, layout.shapes)) != {name: tuple(value.shape) for name, value in saved.items()}:
        raise BadModel(
            f"the weights in '{file}' are not this network's; pass the network that `run` was given as model."
        )
    return layout.join(saved, 0)


def _score(goal: Goal) -> dict[str, Any]:
    """What the run is judged by, for reports; a limit that is infinite is None."""
    metrics = [
        {"name": one.name, "best": one.best, "limits": [value if isfinite(value) else None for value in one.limits]}
        for one in goal.metrics
    ]
    return {**metrics[0], "personal": goal.personal.name, "metrics": metrics}
