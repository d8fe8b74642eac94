"""Cost of examples and client states that are not on the device: equal rounds from three places.

    python benchmarks/placement.py [--device auto] [--clients 1000] [--per-round 200] [--chunk 50] [--samples 600]
                                   [--model 2nn] [--method scaffold] [--rounds 8]

Synthetic images of 28x28. For each place: milliseconds per round (median, without the first three), the device's peak
memory on a GPU, and the largest difference from the model trained with everything on the device, which should be 0. On
a CPU `host` is a copy within memory.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Examples, Fleet, Setting
from fedloom.engine.clients import Clients
from fedloom.engine.local import local_engine
from fedloom.engine.storage.backing import Place
from fedloom.engine.storage.offload import offload
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import flatten, layout_of
from fedloom.models import build
from fedloom.round import play_round
from fedloom.runs.experiment import Experiment

WARM = 3


def played(options: argparse.Namespace, device: torch.device, place: Place) -> tuple[Tensor, list[float], int]:
    """The model after all rounds, milliseconds of each round, and peak memory in bytes."""
    torch.manual_seed(0)
    total = options.clients * options.samples
    data = Examples(torch.rand(total, 1, 28, 28), torch.randint(0, 10, (total,)))
    home = device if place == "device" else torch.device("cpu")
    shards = Shards(list(torch.randperm(total).split(options.samples)), home)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    example = data.x[:2].to(device)
    data = Examples(*(values.to(home) for values in data))
    data, shards = offload(data, shards, device, place, options.chunk * options.samples)
    module = build(options.model, (1, 28, 28), 10).to(device)
    layout = layout_of(module)
    labels = torch.ones(options.clients, 10, dtype=torch.int64, device=device)
    setting = Setting(Fleet(torch.tensor(shards.sizes, device=device), labels), module, layout, classes(), example)
    training = {"epochs": 1, "batch": 50}
    method = Experiment(method=options.method, per_round=options.per_round, training=training).build_method()
    engine = local_engine(Clients(method, setting, data, shards, states=place), options.chunk)
    model = flatten(module, layout)
    memory, times = method.init(setting, model), []
    for number in range(1, options.rounds + 1):
        began = time.perf_counter()
        model, memory, _, _ = play_round(method, memory, model, setting, engine, Chance(0, number, device))
        model.sum().item()  # waits for the device
        times.append(1000 * (time.perf_counter() - began))
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return model, times[WARM:], peak


def main() -> None:
    """Measure all places in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, number in (("clients", 1000), ("per-round", 200), ("chunk", 50), ("samples", 600), ("rounds", 8)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--model", default="2nn")
    parser.add_argument("--method", default="scaffold")
    options = parser.parse_args()
    device = torch.device(options.device)
    first: Tensor | None = None
    for place in ("device", "host", "file"):
        model, times, peak = played(options, device, place)
        first = model if first is None else first
        apart = float((model - first).abs().max())
        print(f"{place:7s} {statistics.median(times):9.1f} ms a round   peak {peak / 1e9:6.2f} GB   apart {apart:.1e}")


if __name__ == "__main__":
    main()
