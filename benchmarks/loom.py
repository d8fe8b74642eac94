"""Gain from each part of `loom`, on skewed data with five capacity tiers and half of the replies lost.

    python benchmarks/loom.py [--seeds 5] [--rounds 150] [--jobs 2] [--out FILE.md]

The embedded digits, 100 clients by Dirichlet 0.1, 10 a round, the small network, rate 0.05, 5 local epochs in batches
of 10, an upload lost with probability 0.5. `late` is the mean accuracy of the last ten evaluations, `all` of all rounds
(speed of learning). Differences are to loom under the same seeds, with 95 % intervals (Student's t).
"""

from __future__ import annotations

import argparse
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from fedloom.evaluate.targets import interval
from fedloom.method import Method
from fedloom.methods import METHODS
from fedloom.methods.feddyn import DynamicRegulariser
from fedloom.methods.loom import loom
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.ranked import Ranked
from fedloom.parts.repair.most_similar import MostSimilar
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

TRAINING = {"rate": 0.05, "epochs": 5, "batch": 10}


def contenders() -> dict[str, Method]:
    """loom, loom with one part replaced, and earlier methods."""
    full, stay = loom(), DynamicRegulariser(0.03)
    return {
        "loom": full,
        "loom, no stand-ins": loom(stand_ins=False),
        "loom, stand-ins by plain distance": replace(full, repair=MostSimilar(mask_aware=True)),
        "loom, no regulariser": replace(full, local=KeepOwn(freeze=True)),
        "loom, the rest zero, not frozen": replace(full, local=Chain((SubModel(), stay))),
        "loom, the rest trained too": replace(full, local=Chain((KeepOwn(), stay))),
        "loom, leading neurons": replace(full, mask=Ranked("ordered")),
        "loom, latest updates remembered": replace(full, aggregate=LatestUpdates()),
        "loom, alpha 0.01": loom(alpha=0.01),
        "loom, alpha 0.1": loom(alpha=0.1),
        "loom, fuse 1 (all 100 train)": loom(fuse=1.0),
        "loom, fuse 1, no stand-ins": loom(fuse=1.0, stand_ins=False),
        **{name: METHODS[name]() for name in ("fedspu", "federated-dropout", "fjord", "fedrolex", "heterofl")},
        "fedavg, whole models": METHODS["fedavg"](),
        "feddyn, whole models": METHODS["feddyn"](),
        "fedvarp, whole models": METHODS["fedvarp"](),
    }


def accuracies(name: str, seed: int, rounds: int) -> tuple[list[float], int]:
    """Accuracy after each round, and examples trained."""
    torch.set_num_threads(1)
    experiment = Experiment(
        rounds=rounds, seed=seed, training=TRAINING, fleet="equal", device="cpu",
        channel={"name": "bernoulli", "settings": {"up": 0.5}},
    )  # fmt: skip
    result = run(experiment, method=experiment.training.apply(contenders()[name]))
    return [row["accuracy"] for row in result.rounds], sum(row["examples_trained"] for row in result.rounds)


def shown(values: list[float]) -> str:
    """A mean with its interval, as text."""
    found = interval(values)
    return f"{found.mean:.3f}" + ("" if found.half is None else f" ± {found.half:.3f}")


def main() -> None:
    """Play all runs, print or write one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, CPU"
    about = (__doc__ or "").split("\n\n")[-1].replace("\n", " ").strip()
    text = [
        "# What each part of loom adds", "",
        f"`python benchmarks/loom.py --seeds {options.seeds} --rounds {options.rounds}`, {machine}.", "", about, "",
        "| method | late | late - loom's | all | all - loom's | examples trained |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            name: [pool.submit(accuracies, name, seed, options.rounds) for seed in range(options.seeds)]
            for name in contenders()
        }
        ours: list[tuple[float, float]] = []
        for name, futures in waiting.items():
            found = [future.result() for future in futures]
            means = [(sum(rows[-10:]) / len(rows[-10:]), sum(rows) / len(rows)) for rows, _ in found]
            ours = ours or means
            late, whole = ([mean[k] for mean in means] for k in (0, 1))
            apart = [[mean[k] - one[k] for mean, one in zip(means, ours)] for k in (0, 1)]
            less = [shown(values) if name != "loom" else "" for values in apart]
            work = sum(examples for _, examples in found) / len(found)
            line = f"| {name} | {shown(late)} | {less[0]} | {shown(whole)} | {less[1]} | {work / 1000:.0f} k |"
            text.append(line)
            print(line, file=sys.stderr, flush=True)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
