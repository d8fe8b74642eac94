"""Directions of the five papers' claims on the embedded digits, 100 clients, three seeds.

    python benchmarks/directions.py [--seeds 3] [--jobs 2] [--out FILE.md] [fedumf feddd safari safari-10 ...]

Each direction compares a system with the method its paper beats, on the same data, fleet, losses and seeds. Settings
were written down before the first run and are the same for both sides: the small network, rate 0.05, 5 local epochs in
batches of 10 (SAFARI: Adam as in its paper). `late` is the mean accuracy of the last ten evaluations. A direction holds
if the mean difference over the seeds has the claimed sign; the interval is 95 %, Student's t.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedloom.evaluate.targets import interval, to_target
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from fedloom.runs.result import Result

TRAINING = {"rate": 0.05, "epochs": 5, "batch": 10}
Runs = dict[str, list[Result]]  # name -> a result per seed


class Direction(NamedTuple):
    """A claim, its runs and the figures that decide it."""

    claim: str
    experiments: dict[str, Experiment]
    figures: Callable[[Runs], list[tuple[str, list[float]]]]  # label -> values per seed, claimed to be above 0


def experiment(method: str, rounds: int = 100, settings: dict[str, Any] | None = None, **values: Any) -> Experiment:
    """An experiment on digits with the common settings."""
    common = {"data": "digits", "model": "mlp", "clients": 100, "rounds": rounds, "training": TRAINING}
    return Experiment(**{**common, "method": {"name": method, "settings": settings or {}}, **values})


def late(result: Result, what: str = "accuracy") -> float:
    """Mean accuracy of the last ten evaluations."""
    known = [row[what] for row in result.rounds if row[what] is not None][-10:]
    return sum(known) / len(known)


def gain(better: str, worse: str, what: str = "accuracy") -> Callable[[Runs], list[tuple[str, list[float]]]]:
    """Difference of two runs' late accuracies."""
    return lambda runs: [
        (f"late {what}: {better} - {worse}", [late(a, what) - late(b, what) for a, b in zip(runs[better], runs[worse])])
    ]


def fewer_rounds(better: str, *others: str) -> Callable[[Runs], list[tuple[str, list[float]]]]:
    """Rounds that one run saves, to targets that all reach under every seed."""

    def figures(runs: Runs) -> list[tuple[str, list[float]]]:
        found = []
        for target in (0.7, 0.8, 0.85, 0.9):
            reached = {name: [to_target(r.rounds, target) for r in runs[name]] for name in (better, *others)}
            if any(cost is None for costs in reached.values() for cost in costs):
                continue
            for other in others:
                saved = [b.rounds - a.rounds for a, b in zip(reached[better], reached[other])]  # type: ignore[union-attr]
                found.append((f"rounds to {target:g}: {other} - {better}", saved))
        return found

    return figures


def nearer(lossless: str, better: str, worse: str) -> Callable[[Runs], list[tuple[str, list[float]]]]:
    """How much closer one run stays to a run without losses, mean over all rounds."""

    def away(runs: Runs, name: str) -> list[float]:
        return [
            sum(abs(x["accuracy"] - y["accuracy"]) for x, y in zip(a.rounds, b.rounds)) / len(a.rounds)
            for a, b in zip(runs[lossless], runs[name])
        ]

    return lambda runs: [
        (
            f"mean distance from '{lossless}': {worse} - {better}",
            [b - a for a, b in zip(away(runs, better), away(runs, worse))],
        ),
        *gain(better, worse)(runs),
    ]


def safari_of(clients: int) -> dict[str, Experiment]:
    """SAFARI on two groups of clients: half of the replies lost, with and without stand-ins, and none lost."""
    common: dict[str, Any] = {"partition": "groups", "clients": clients, "training": {}, "rounds": 150}
    lossy = {"fleet": "equal", "channel": {"name": "bernoulli", "settings": {"up": 0.5}}}
    return {
        "nothing lost": experiment("safari", **common, fleet="equal"),
        "SAFARI": experiment("safari", **common, **lossy),
        "plain averaging": experiment("safari", **common, **lossy, settings={"compensate": False}),
    }


def directions() -> dict[str, Direction]:
    """All directions by the name of the system."""
    shards: dict[str, Any] = {"partition": "shards", "per_round": 10}
    three = {"partition": {"name": "n-classes", "settings": {"n": 3}}, "fleet": "table4"}
    personal = {"partition": "dirichlet", "split": (0.7, 0.0, 0.3), "per_round": 10}
    twice = {**TRAINING, "epochs": 10}
    return {
        "fedumf": Direction(
            "FedUMF needs fewer rounds than FedAvg to the same accuracy (at most 2 classes a client, 10 of 100 send)",
            {
                "FedUMF": experiment("fedumf", **shards),
                "FedAvg": experiment("fedavg", **shards),
                "FedAvg, twice the epochs": experiment("fedavg", **{**shards, "training": twice}),
            },
            fewer_rounds("FedUMF", "FedAvg", "FedAvg, twice the epochs"),
        ),
        "feddd": Direction(
            "FedDD at a budget of 60 % beats FedCS's fixed subset (3 classes a client, Table 4's devices)",
            {
                "FedDD": experiment("feddd", 60, **three),
                "FedCS": experiment("fedcs", 60, **three),
                "FedAvg, everyone": experiment("fedavg", 60, **three, per_round=100),
            },
            gain("FedDD", "FedCS"),
        ),
        "safari": Direction(
            "SAFARI, half of the replies lost, two groups, stays nearer to no loss than plain averaging (100 clients)",
            safari_of(100),
            nearer("nothing lost", "SAFARI", "plain averaging"),
        ),
        "safari-10": Direction(
            "The same with 10 clients, as in the paper",
            safari_of(10),
            nearer("nothing lost", "SAFARI", "plain averaging"),
        ),
        "fedspu": Direction(
            "FedSPU's personal accuracy beats ordered dropout (FjORD; Dirichlet 0.1, five tiers, 10 of 100 a round)",
            {"FedSPU": experiment("fedspu", **personal), "FjORD": experiment("fjord", **personal)},
            gain("FedSPU", "FjORD", "personal_accuracy"),
        ),
        "rafed": Direction(
            "RAM-Fed beats RA-Fed where everyone trains one region of four (Dirichlet 0.1)",
            {
                "RAM-Fed": experiment("ram-fed", settings={"level": "S"}),
                "RA-Fed": experiment("ra-fed", settings={"level": "S"}),
            },
            gain("RAM-Fed", "RA-Fed"),
        ),
        "rafed-10": Direction(
            "The same with 10 clients, as in the paper",
            {
                "RAM-Fed": experiment("ram-fed", clients=10, settings={"level": "S"}),
                "RA-Fed": experiment("ra-fed", clients=10, settings={"level": "S"}),
            },
            gain("RAM-Fed", "RA-Fed"),
        ),
    }


def shown(values: list[float], form: str = "{:.3f}") -> str:
    """A mean with its interval, as text."""
    found = interval(values)
    return form.format(found.mean) + ("" if found.half is None else f" ± {form.format(found.half)}")


def report(direction: Direction, runs: Runs) -> tuple[list[str], str]:
    """The figures of one direction as lines of Markdown, and whether the first of them holds."""
    lines = [
        "| method | late accuracy | late personal accuracy | best | examples trained, millions |",
        "|---|---|---|---|---|",
    ]
    for name, results in runs.items():
        own = [r for r in results if r.rounds[-1]["personal_accuracy"] is not None]
        lines.append(
            f"| {name} | {shown([late(r) for r in results])} "
            f"| {shown([late(r, 'personal_accuracy') for r in own]) if own else '-'} "
            f"| {shown([r.summary()['best_accuracy'] for r in results])} "
            f"| {shown([r.summary()['examples_trained'] / 1e6 for r in results])} |"
        )
    figures = direction.figures(runs)
    lines += [
        "",
        *(f"- {what}: {shown(values)} (seeds: {', '.join(f'{v:.3g}' for v in values)})" for what, values in figures),
    ]
    found = interval(figures[0][1]) if figures else None
    if found is None:
        return lines, "not shown, no target was reached by all"
    sure = "" if found.half is None or abs(found.mean) > found.half else " in the mean, within noise"
    return lines, ("holds" if found.mean > 0 else "does NOT hold") + sure


def played(chosen: Experiment) -> Result:
    """One run on one thread, since runs are played in parallel."""
    torch.set_num_threads(1)
    return replace(run(chosen), model=nn.Identity(), kept={})  # only figures travel back


def main() -> None:
    """Run the given directions and print or write the results."""
    known = directions()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *known], help="all if none is named")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, CPU"
    about = (__doc__ or "").split("\n\n")[-1].replace("\n", " ").strip()
    command = f"`python benchmarks/directions.py --seeds {options.seeds}`"
    text = ["# Directions of the five systems on digits", "", f"{command}, {machine}.", "", about]
    names = options.names or list(known)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            name: {
                title: [
                    pool.submit(played, Experiment(**{**chosen.model_dump(), "seed": seed, "device": "cpu"}))
                    for seed in range(options.seeds)
                ]
                for title, chosen in known[name].experiments.items()
            }
            for name in names
        }
        for name in names:
            runs: Runs = {}
            for title, futures in waiting[name].items():
                runs[title] = [future.result() for future in futures]
                print(f"{name}: {title}: {shown([late(r) for r in runs[title]])}", file=sys.stderr, flush=True)
            lines, verdict = report(known[name], runs)
            text += ["", f"## {known[name].claim}: {verdict}", "", *lines]
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
