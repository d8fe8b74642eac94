"""A method of one's own in one file: clients whose updates agree with the last step of the model count more.

    python examples/own_method.py

With data that differ, some clients pull the model sideways. This server remembers the model's last step and weighs
every client's update by how well it points the same way: `exp(sharpness * cosine)`. With `sharpness = 0` all count the
same. It is a part of a few lines; everything else of the method is FedAvg's. It is an example, not a recommendation.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom import BadExperiment, Experiment, Method, Reply, Setting
from fedloom.parts import Aggregate, State
from fedloom.studies.compare import compare


@dataclass(frozen=True)
class Agreement(Aggregate):
    """The mean of the updates, weighed by how far they agree with the model's last step."""

    sharpness: float = 1.0

    def __post_init__(self) -> None:
        if self.sharpness < 0:
            raise BadExperiment(f"sharpness is {self.sharpness}; expected 0 or more.")

    def init(self, setting: Setting, model: Tensor) -> State:
        """No step was taken yet."""
        return {"step": torch.zeros_like(model)}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Those who did not arrive count nothing; if nobody did, the model stays."""
        updates = reply.params - model  # [C, P]
        cosine = torch.cosine_similarity(updates, memory["step"][None], dim=1)  # 0 before the first step
        weight = torch.exp(self.sharpness * cosine) * reply.arrived
        step = weight @ updates / weight.sum().clamp(min=1e-12)
        return model + step, {"step": step}


def agreement(sharpness: float = 1.0) -> Method:
    """FedAvg with that server; `sharpness` says how much agreement counts."""
    return Method(aggregate=Agreement(sharpness))


def main() -> None:
    """Compare it with FedAvg, seed by seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    named: dict[str, Any] = {"fedavg": "fedavg"}
    for sharpness in (0.0, 1.0, 4.0):
        settings = {"sharpness": sharpness}
        named[f"agreement {sharpness:g}"] = {"name": f"{__file__}:agreement", "settings": settings}
    experiments = {name: Experiment(method=method, rounds=given.rounds) for name, method in named.items()}
    found = compare(experiments, range(given.seeds))
    print(f"{'method':12} {'accuracy':>9} {'+-':>6} {'best':>6}")
    for contender in found:
        last, best = contender.score(), contender.best()
        print(f"{contender.name:12} {last.mean:9.3f} {last.half or 0:6.3f} {best.mean:6.3f}")  # +-: of a 95 % interval


if __name__ == "__main__":
    main()
