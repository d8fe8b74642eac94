"""The fingerprint of a run: all that decides its numbers, by hash or by name, to refuse a resume of another run."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.engine.cpu.native import identity
from fedloom.errors import BadExperiment
from fedloom.runs.base import hash_of_base
from fedloom.runs.build import Prepared
from fedloom.runs.checkpoint.tensors import bytes_of
from fedloom.runs.experiment import Experiment

OWN = {
    "method": "method",
    "network": "model",
    "base": "model",
    "data": "data",
    "goal": "goal",
    "transform": "transform",
}  # the arguments of `run`, by the entry that they change


def fingerprint(experiment: Experiment, prepared: Prepared) -> dict[str, str]:
    """All that is fixed during a run and is not in the experiment, by name."""
    inputs = prepared.inputs
    devices = [value for value in inputs.setting.fleet.devices or () if isinstance(value, Tensor)]
    base = hash_of_base(inputs.network, inputs.setting.layout)
    trace = () if prepared.trace is None else prepared.trace[:4]
    return {
        **({} if experiment.start is None else {"start": _hash(inputs.model)}),
        "method": _plain(inputs.method.in_full),
        "goal": _plain(repr(inputs.setting.goal)),
        "transform": _plain(repr(inputs.setting.transform)),
        "network": _hash(repr(inputs.setting.layout), inputs.model),
        **({"base": base} if base else {}),  # frozen parameters and constants
        "data": _hash(inputs.test.x, inputs.test.y, inputs.train.x, inputs.train.y),
        "partition": _hash(repr(inputs.shards.sizes), inputs.shards.examples),
        "fleet": _hash(repr(len(devices)), *devices, *trace),
        **{f"{what}'s file": _hash(file.read_text()) for what, file in own_files(experiment)},
    }


def surroundings(device: torch.device) -> dict[str, str]:
    """The versions and hardware on which the last bits of numbers depend."""
    own = {name: version(name) for name in ("fedloom", "torch", "numpy")}
    own |= {"python": platform.python_version(), "device": str(device), "threads": str(torch.get_num_threads())}
    return own | (
        {"gpu": torch.cuda.get_device_name(device)}
        if device.type == "cuda"
        else {"cpu": platform.machine(), "code": identity()}
    )


def refuse_another(experiment: Experiment, before: dict[str, Any]) -> None:
    """Refuse an experiment that differs from that before in anything but more rounds and when it ends."""
    for key, (old, new) in changes(before, experiment.model_dump(mode="json")).items():
        if key.partition(".")[0] == "until":
            continue
        if key != "rounds" or new < old:
            raise BadExperiment(
                f"{key} was {old!r} when this run was begun and is {new!r} now; a resumed run can only have more "
                "rounds. Leave the setting as it was, or choose another folder."
            )


def refuse_other_inputs(before: dict[str, str], now: dict[str, str]) -> None:
    """Refuse another method, network, data set or other entry of the fingerprint."""
    for key, (old, new) in changes(before, now).items():
        shown = "" if old is None or new is None or len(old) == len(new) == 64 else f" It was {old} and is {new}."
        hint = f" If it was passed to run({OWN[key]}=...), pass the same again." if key in OWN else ""
        raise BadExperiment(f"the {key} is not that of the run that was begun.{shown}{hint}")


def changes(before: Any, now: Any, key: str = "") -> dict[str, tuple[Any, Any]]:
    """The differences of two nested dictionaries, by dotted key."""
    if isinstance(before, dict) and isinstance(now, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for name in [*before, *(name for name in now if name not in before)]:
            found |= changes(before.get(name), now.get(name), f"{key}.{name}" if key else str(name))
        return found
    return {} if before == now else {key: (before, now)}


def own_files(experiment: Experiment) -> Iterator[tuple[str, Path]]:
    """The user's own Python files, by what they define."""
    augments = [(f"augment {place}", chosen) for place, chosen in enumerate(experiment.augment, 1)]
    named = (("method", experiment.method), ("model", experiment.model), ("goal", experiment.goal), *augments)
    for what, chosen in named:
        if chosen.own is not None:
            yield what, chosen.own.file


def _plain(text: str) -> str:
    """The text of a value, without places in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _hash(*things: str | Tensor) -> str:
    """The hash of texts and tensors."""
    digest = sha256()
    for thing in things:
        text = thing if isinstance(thing, str) else f"{thing.dtype} {list(thing.shape)}"
        digest.update(text.encode())
        if isinstance(thing, Tensor) and thing.numel():
            digest.update(bytes_of(thing))
    return digest.hexdigest()
