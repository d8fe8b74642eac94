"""The command line that runs an experiment again."""

from __future__ import annotations

import shlex
from typing import Any

from fedloom.report.group import flat, plain
from fedloom.runs.experiment import Experiment

OPTIONS = ("data", "partition", "clients", "model", "fleet", "rounds", "seed", "engine", "device", "precision")


def command_of(experiment: dict[str, Any]) -> str:
    """`fedloom run` with all settings that are not the defaults."""
    defaults, own = flat(Experiment().model_dump(mode="json")), flat(experiment)
    words = ["fedloom", "run", str(own["method"])]
    for key, value in own.items():
        if key == "method" or (key in defaults and value == defaults[key]):
            continue
        if key in OPTIONS:
            words += [f"--{key}", plain(value)]
        elif key == "exact_bytes":
            words += ["--exact-bytes"]
        else:
            words += ["--set", f"{key}={plain(value)}"]
    return shlex.join(words)
