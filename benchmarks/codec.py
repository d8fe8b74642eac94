"""Speed of writing and reading messages: float32 on one core, models of 1, 4 and 16 million numbers.

    python benchmarks/codec.py [--cycles 9] [--json FILE] [WIDTH ...]

The model is 784-WIDTH-WIDTH-10. `message` is gigabytes of message per second, `model` gigabytes of the model that it
comes from; they are equal if everything is sent. For each, encode then decode. Medians over the cycles, in processor
seconds, so that other work on the machine counts little. Freed memory stays with the process, as in a run.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fedloom.accel.kept_memory import kept_memory
from fedloom.chance import Chance
from fedloom.codec import AnyKeep, AnyMask, Codec, Expected, Frame, ModelPart, Stamp, base_hash
from fedloom.layout import flatten, layout_of
from fedloom.neurons.trace import neuron_map

WIDTHS = (650, 1600, 3600)


def seconds(call: Callable[[], object], cycles: int) -> float:
    """Median seconds of some calls, after an uncounted one."""
    times = []
    for _ in range(cycles + 1):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times[1:])


def measure(width: int, cycles: int) -> dict[str, dict[str, float]]:
    """Gigabytes per second of each way to send a part of one model."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    layout, neurons = layout_of(module), neuron_map(module, torch.zeros(2, 1, 28, 28))
    frame, model = Frame(layout, neurons), flatten(module, layout)
    hashing = seconds(lambda: base_hash(model), cycles)
    stamp = Stamp("benchmark", 1, 1, base_hash(model))
    print(f"{layout.total:,} numbers; base hash, once a round: {1000 * hashing:.0f} ms")
    keep = torch.rand(neurons.size) < 0.5
    key = Chance(0, 1).key("codec", 1)
    ways = {
        "dense": ("float32", ModelPart(), ModelPart()),
        "neurons 0.5": ("float32", ModelPart(keep=keep), AnyKeep(1.0)),
        "neurons 0.5, asked": (
            "float32",
            ModelPart(neurons.expand(keep), keep, known=True),
            ModelPart(neurons.expand(keep), keep),
        ),
        "rows 0.5": ("float32", ModelPart(keep=keep, rows=True), AnyKeep(1.0, rows=True)),
        "mask 0.5": ("float32", ModelPart(torch.rand(layout.total) < 0.5), AnyMask(1.0)),
        "mask 0.05": ("float32", ModelPart(torch.rand(layout.total) < 0.05), AnyMask(1.0)),
        "dense float16": ("float16", ModelPart(), ModelPart()),
        "dense bfloat16": ("bfloat16", ModelPart(), ModelPart()),
        "dense int8": ("int8", ModelPart(), ModelPart()),
    }
    found = {}
    for name, (values, part, policy) in ways.items():
        codec = Codec(values=values)  # type: ignore[arg-type]
        data = codec.encode(frame, stamp, model, part, key=key)
        expected = Expected(frame, stamp, policy, (codec.kind,))
        writing = seconds(lambda: codec.encode(frame, stamp, model, part, key=key), cycles)  # noqa: B023
        reading = seconds(lambda: codec.decode(data, expected), cycles)  # noqa: B023
        found[name] = {
            "megabytes": len(data) / 1e6,
            "message_encode": len(data) / writing / 1e9,
            "message_decode": len(data) / reading / 1e9,
            "model_encode": 4 * layout.total / writing / 1e9,
            "model_decode": 4 * layout.total / reading / 1e9,
        }
        size, *rates = (f"{number:6.2f}" for number in found[name].values())
        print(f"  {name:20s} {size} MB   message {rates[0]} {rates[1]}   model {rates[2]} {rates[3]}")
    return found


def main() -> None:
    """Measure the given widths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--cycles", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = f"{platform.processor() or platform.machine()}, 1 thread, torch {torch.__version__}"
    print(machine)
    with kept_memory():
        results = {str(width): measure(width, options.cycles) for width in options.widths}
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "gigabytes_per_second": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
