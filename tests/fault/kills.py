"""Kill runs at random moments, resume them, and compare with undisturbed ones.

`python tests/fault/kills.py --runs 100 --seed 1` prints one line a run and a summary; exit code 1 if any run differs.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from forked import child, command, ended, result_of


def settings(*values: str) -> tuple[str, ...]:
    """Each as an option `--set`."""
    return tuple(word for value in values for word in ("--set", value))


WORLD = ("--fleet", "table4")
LOSSES = settings("channel.up=0.3", "channel.down=0.2")
FLIGHT = settings("pace=buffered", "pace.buffer=2", "pace.in_flight=5")
CASES: dict[str, tuple[str, ...]] = {
    "fedavg": ("fedavg",),
    "scaffold": ("scaffold",),
    "feddd": ("feddd", *WORLD),
    "safari": ("safari", *WORLD, "--set", "channel.up=0.4"),
    "fedspu, early stopping": ("fedspu", "--set", "split=[0.7,0.0,0.3]", "--set", "early_stopping=true"),
    "fedumf": ("fedumf",),
    "ram-fed": ("ram-fed",),
    "oort": ("oort", *WORLD),
    "int8 with feedback": ("fedavg", "--set", "codec.values=int8", "--set", "codec.feedback=true"),
    "scaffold, bursts of losses": ("scaffold", *WORLD, "--set", "channel=bursty", "--set", "channel.enter=0.4"),
    "kept momentum, one by one": ("fedavg", "--engine", "loop", "--set", "momentum=0.9", "--set", "fresh=false"),
    "loom, personal models": ("loom", *WORLD, "--set", "channel.up=0.3", "--set", "split=[0.7,0.0,0.3]"),
    "in flight: fedbuff, losses": ("fedbuff", *WORLD, *LOSSES, *settings("method.buffer=2", "method.in_flight=5")),
    "in flight: fedspu, personal models": ("fedspu", *WORLD, *FLIGHT, *settings("split=[0.7,0.0,0.3]")),
    "in flight: scaffold": ("scaffold", *WORLD, *LOSSES, *FLIGHT),
    "in flight: feddd, trained when asked": ("feddd", *WORLD, *FLIGHT, *settings("pace.refill=step")),
    "in flight: a window": ("fjord", *WORLD, *settings("pace=windowed", "pace.seconds=0.3", "pace.in_flight=5")),
    "in flight: tiers": ("fedat", *WORLD, *settings("method.tiers=2", "method.per_tier=2")),
    "in flight: int8 with feedback": (
        *("fedavg", *WORLD, *FLIGHT),
        *settings("codec.values=int8", "codec.feedback=true", "pace.hold=bases"),
    ),
}
SMALL = ("--clients", "8", "--rounds", "10", "--device", "cpu", "--set", "epochs=1", "--set", "batch=32")
SMALL += ("--set", "model.widths=[16]", "--checkpoint-every", "1", "--json")


def saved(run: Path) -> int:
    """The newest round that has a checkpoint."""
    return max((int(path.name.split("-")[1]) for path in run.glob("checkpoint/round-*")), default=0)


def undisturbed(name: str, folder: Path) -> tuple[str, float]:
    """What the case leaves, and how many seconds it takes."""
    began, run = time.monotonic(), folder / "straight"
    code = ended(child(command("run", *CASES[name], *SMALL, "--out", str(run)), folder / "log"))
    assert code == 0, (folder / "log").read_text()
    return result_of(run), time.monotonic() - began


def disturbed(name: str, folder: Path, seconds: float, chance: random.Random, by: signal.Signals) -> tuple[str, str]:
    """Kill the case until chance has had enough; what it leaves in the end, and what happened."""
    run, log, story = folder / "run", folder / "log", []
    words = ("run", *CASES[name], *SMALL, "--out", str(run), "--resume")
    kills, limit = 1 + (chance.random() < 0.4) + (chance.random() < 0.2), seconds
    while len(story) < kills:
        playing = chance.random() < 0.8  # else any moment from the start on, most of which is preparation
        pid, moment = child(command(*words), log), chance.uniform(0, limit)
        began, before = time.monotonic(), saved(run)
        while playing and saved(run) == before and time.monotonic() - began < 2 * seconds:
            time.sleep(0.001)
        time.sleep(moment)
        os.kill(pid, by)
        code = ended(pid)
        if code == 0 and not story:  # it was quicker: once more from the start, and earlier
            limit *= 0.7
            shutil.rmtree(run)
        elif code == 0:
            break
        else:
            assert code == (-by if by == signal.SIGKILL else 130), f"{name}: exit code {code}\n{log.read_text()}"
            story.append(f"{time.monotonic() - began:.2f} s (saved: round {saved(run)})")
    code = ended(child(command(*words), log))
    assert code == 0, f"{name}: exit code {code}\n{log.read_text()}"
    return result_of(run), ", ".join(story)


def main() -> int:
    """Run the cases in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--signal", choices=["KILL", "INT"], default="KILL")
    chosen = parser.parse_args()
    by = signal.Signals[f"SIG{chosen.signal}"]
    chance, same = random.Random(chosen.seed), 0
    known: dict[str, tuple[str, float]] = {}
    names = [name for name in CASES if chosen.only in name]
    print(f"{by.name}; seed {chosen.seed}; torch {torch.__version__}, Python {platform.python_version()}, CPU")
    for number in range(chosen.runs):
        name = names[number % len(names)]
        with tempfile.TemporaryDirectory() as place:
            if name not in known:
                known[name] = undisturbed(name, Path(place))
            result, story = disturbed(name, Path(place), known[name][1], chance, by)
        same += result == known[name][0]
        verdict = "same" if result == known[name][0] else "DIFFERENT"
        print(f"{number + 1:3d} {verdict} {result[:16]} {name}: {by.name} after {story}", flush=True)
    print(f"{same} of {chosen.runs} resumed to the undisturbed result")
    return int(same != chosen.runs)


if __name__ == "__main__":
    sys.exit(main())
