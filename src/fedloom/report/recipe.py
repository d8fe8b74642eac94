"""Which command runs this experiment again?"""

from __future__ import annotations

import shlex
from typing import Any

from fedloom.report.group import flat, plain
from fedloom.runs.experiment import Experiment

OPTIONS = ("data", "partition", "clients", "model", "fleet", "rounds", "seed", "engine", "device", "precision")


def command_of(experiment: dict[str, Any]) -> str:
    """The command line: all that is not as it is when left out."""
    usual, own = flat(Experiment().model_dump(mode="json")), flat(experiment)
    words = ["fedloom", "run", str(own["method"])]
    for key, value in own.items():
        if key == "method" or (key in usual and value == usual[key]):
            continue
        if key in OPTIONS:
            words += [f"--{key}", plain(value)]
        elif key == "exact_bytes":
            words += ["--exact-bytes"]
        else:
            words += ["--set", f"{key}={plain(value)}"]
    return shlex.join(words)
