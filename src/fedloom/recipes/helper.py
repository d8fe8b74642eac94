"""A process that plays groups of runs for `fedloom reproduce`: see `jobs.py`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from fedloom.experiment import Experiment
from fedloom.machine import device_of
from fedloom.recipes.play import Stage
from fedloom.recipes.store import Store


def main(order: str) -> None:
    """Play what comes in, line by line, until nothing more does."""
    voice = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed does not mix with the answers
    facts = json.loads(order)
    device = device_of(facts["device"])
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.set_per_process_memory_fraction(facts["share"], index)

    def say(**words: Any) -> None:
        print(json.dumps(words), file=voice)

    folder = None if facts["data_dir"] is None else Path(facts["data_dir"])
    stage = Stage(
        Store(Path(facts["out"])), facts["device"], folder, lambda *row: say(row=row), lambda text: say(tell=text), None
    )
    for line in sys.stdin:
        stage.ran, stage.failed = 0, {}
        stage.together([(name, Experiment(**values)) for name, values in json.loads(line)])
        say(ran=stage.ran, failed=stage.failed)


if __name__ == "__main__":
    main(sys.argv[1])
