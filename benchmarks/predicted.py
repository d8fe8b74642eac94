"""Seconds and bytes of a round on Flower as the clock predicts them, and as real processes take them.

    OMP_NUM_THREADS=1 python benchmarks/predicted.py [--rounds 8] [--only lossy] [-o benchmarks/results/predicted.json]

Two nodes, each behind an emulated link of its own (Linux, as root), train one client each. Cells that the JSON file
has are not measured again. Predicted are the rounds of a simulation on `transport=flower` with the link's rates,
latency and loss; the speed of training is measured on this machine first, without Flower.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from emulated_link import EmulatedLink, why_not
from emulated_trial import deployed, measured
from fedloom import Experiment, run

LINKS = {  # bit/s up and down, seconds each way, loss of packets each way
    "far": (2e6, 10e6, 0.05, 0.0),
    "lossy": (2e6, 10e6, 0.05, 0.05),
    "usual": (20e6, 50e6, 0.015, 0.0),
    "near": (10e6, 10e6, 0.0025, 0.0),
}
MODELS: dict[str, list[int]] = {"small": [200], "large": [400, 500]}  # widths
METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "feddd": {"budget": 0.6}, "fedspu": {}}
NODES = 2
HERTZ = 1e9  # of the devices; what matters is `cycles_per_example`


def experiment(method: str, model: str, rounds: int, **fleet: Any) -> Experiment:
    """A method on digits, with a client for each node."""
    return Experiment(
        method={"name": method, "settings": METHODS[method]},
        model={"name": "mlp", "settings": {"widths": MODELS[model]}},
        fleet={"name": "equal", "settings": fleet},
        partition="iid",
        clients=NODES,
        per_round=NODES if method == "fedavg" else None,
        rounds=rounds,
        device="cpu",
        chunk=1,
    )


def cycles_per_example(method: str, model: str) -> float:
    """By a simulation on this machine, one client after another."""
    rows = run(experiment(method, model, 8)).rounds[2:]
    return HERTZ * median(row["wall_seconds"] / row["examples_trained"] for row in rows)


def fleet_of(link: str, method: str, model: str) -> dict[str, float | str]:
    """Columns of devices behind this link."""
    up, down, latency, loss = LINKS[link]
    speed = {"cycles": HERTZ, "cycles_per_example": cycles_per_example(method, model)}
    return {"up": up, "down": down, "latency": latency, "packet_loss": loss, "transport": "flower", **speed}


def predicted(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means of a simulation's rounds without the first; FedDD's differ, since it sends the whole model now and then."""
    later = rows[1:]
    sizes = {way: mean(row[f"bytes_{way}"] + row[f"transport_{way}"] for row in later) for way in ("up", "down")}
    return {"seconds": mean(row["virtual_seconds"] for row in later), **sizes}


def off(cell: dict[str, Any], what: str) -> float:
    """By what part of the measured value the prediction is off."""
    return cell["predicted"][what] / cell["measured"][what] - 1


def table(cells: list[dict[str, Any]]) -> list[str]:
    """A row for each cell, in Markdown."""
    lines = [
        "| link | numbers | method | seconds predicted | measured | off | kB up | measured | off | kB down | measured "
        "| off |",
        "|---|---:|---|" + "---:|" * 9,
    ]
    for cell in cells:
        found = [f"{cell['predicted']['seconds']:.2f}", f"{cell['measured']['seconds']:.2f}"]
        found.append(f"{off(cell, 'seconds'):+.0%}")
        for way in ("up", "down"):
            found += [f"{cell[kind][way] / 1e3:,.0f}" for kind in ("predicted", "measured")] + [
                f"{off(cell, way):+.0%}"
            ]
        lines.append(f"| {cell['link']} | {cell['numbers']:,} | {cell['method']} | {' | '.join(found)} |")
    return lines


def measure(link: str, wanted: list[tuple[str, str]], rounds: int) -> Any:
    """Yield a cell for each model and method, all on one deployment."""
    up, down, latency, loss = LINKS[link]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedloom-predicted-")))
        links = [stack.enter_context(EmulatedLink(up, down, latency, loss, place=place)) for place in range(NODES)]
        largest = experiment("fedavg", "large", 1)
        trial = stack.enter_context(deployed(largest, links, root))
        for model, method in wanted:
            own = experiment(method, model, rounds, **fleet_of(link, method, model))
            result = run(own)
            tell = partial(show, f"{link} {model} {method}", rounds)
            found = measured(trial, links, own, root / f"{model}-{method}", tell)
            yield {
                "link": link,
                "model": model,
                "method": method,
                "numbers": sum(value.numel() for value in result.model.parameters()),
                "predicted": predicted(result.rounds),
                "measured": {"seconds": mean(found.seconds), "up": found.up, "down": found.down},
                "rounds": [round(seconds, 3) for seconds in found.seconds],
                "predicted_rounds": [round(row["virtual_seconds"], 3) for row in result.rounds[1:]],
                "messages": [found.rounds[-1][f"bytes_{way}"] for way in ("up", "down")],
                "lost": found.lost,
                "load": os.getloadavg()[0],
            }


def show(name: str, rounds: int, done: int) -> None:
    """Progress."""
    print(f"\r{name}: round {done} of {rounds}", end="" if done < rounds else "\n", file=sys.stderr, flush=True)


def main() -> None:
    """Measure the cells that are missing, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[], help="words that a cell's name must have")
    parser.add_argument("--show", action="store_true", help="only print the table")
    parser.add_argument("-o", type=Path, default=Path(__file__).parent / "results" / "predicted.json")
    options = parser.parse_args()
    if not options.show and (reason := why_not()):
        raise SystemExit(reason)
    torch.set_num_threads(1)
    cells = json.loads(options.o.read_text())["cells"] if options.o.exists() else []
    names = [(link, model, method) for link in LINKS for model in MODELS for method in METHODS]
    known = {(cell["link"], cell["model"], cell["method"]) for cell in cells}
    for link in LINKS if not options.show else ():
        chosen = [name for name in names if name[0] == link and name not in known and set(options.only) <= set(name)]
        if not chosen:
            continue
        for cell in measure(link, [name[1:] for name in chosen], options.rounds):
            cells.append(cell)
            cells.sort(key=lambda cell: names.index((cell["link"], cell["model"], cell["method"])))
            about = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
            about |= {"python": platform.python_version(), "flwr": version("flwr"), "rounds": options.rounds}
            options.o.write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n")
            print(table([cell])[-1], flush=True)
    print("\n".join(table(cells)))


if __name__ == "__main__":
    main()
