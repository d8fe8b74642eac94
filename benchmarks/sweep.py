"""A sweep of 3 methods, 6 settings and 3 seeds on digits: its seconds, and the same killed half-way and resumed.

    python benchmarks/sweep.py FOLDER [--rounds 50]

Runs the command in processes of its own: once straight, once killed when half of the runs are finished and then
resumed, and says whether both print the same cells. `fedloom report FOLDER/straight` shows the picture.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fedloom.report.recorded import FINISHED, read_end

WORDS = ["sweep", "fedavg", "fedprox", "scaffold", "rate=0.02,0.05,0.1,0.2,0.4,0.8", "--seeds", "3"]
RUNS = 54
COMMAND = [sys.executable, "-c", "from fedloom.cli.main import main; main()"]


def played(words: list[str]) -> tuple[Any, float]:
    """What a command prints as JSON, and its seconds with the start of the process."""
    began = time.perf_counter()
    done = subprocess.run([*COMMAND, *words, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - began


def finished(folder: Path) -> int:
    """How many runs in a folder are finished."""
    return sum(read_end(one) == FINISHED for one in folder.glob("*-seed-*"))


def main() -> None:
    """Run both and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    asked = parser.parse_args()
    words = [*WORDS, "--rounds", str(asked.rounds)]
    straight, seconds = played([*words, "--out", str(asked.folder / "straight")])
    print(f"straight: {len(straight['cells'])} cells, {seconds:.1f} s")
    killed = asked.folder / "killed"
    process = subprocess.Popen(
        [*COMMAND, *words, "--out", str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and finished(killed) < RUNS // 2:
        time.sleep(0.05)
    process.kill()
    process.wait()
    left = RUNS - finished(killed)
    resumed, seconds = played(["sweep", "--resume", str(killed)])
    print(f"killed with {left} of {RUNS} runs left; resumed: {seconds:.1f} s")
    print("the same table to the bit" if resumed["cells"] == straight["cells"] else "NOT THE SAME TABLE")
    for cell in straight["cells"]:
        if cell["best"]:
            scores = f"validation {cell['validation_mean']:.4f} test {cell['test_mean']:.4f}"
            print(f"{cell['method']:10} rate {cell['rate']:<5} {scores}")


if __name__ == "__main__":
    main()
