"""An engineer's path: describe the devices, ask which method suits them, run that one.

    python examples/fleet.py --folder my-fleet

Sixty sensors on three kinds of links are written to a table. `plan` simulates a few methods on them, with replies as
float32 and as int8, and keeps those that reach the target and are beaten by no other in time, bytes and energy. The one
that moves the fewest bytes is run for real, into a run folder, under a deadline.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from fedloom import Experiment, run
from fedloom.studies.plan import Plan, plan

CANDIDATES = ("fedavg", "fedcs", "federated-dropout", "feddd")
KINDS = (  # how many, cycles per second, bit/s up, bit/s down, seconds of latency, probability that a message arrives
    (20, 1.5e9, 5e6, 2e7, 0.03, 0.999),  # wired
    (25, 1.2e9, 2.5e5, 1e6, 0.10, 0.97),  # LTE-M
    (15, 1.0e9, 2e4, 6e4, 2.0, 0.90),  # narrow-band
)


def describe(file: Path) -> int:
    """Write the table of devices, one row for each; how many there are."""
    rows = [one[1:] for one in KINDS for _ in range(one[0])]
    with file.open("w", newline="") as text:
        table = csv.writer(text)
        table.writerow(("client", "cycles", "up", "down", "latency", "reliability"))
        table.writerows((client, *row) for client, row in enumerate(rows))
    return len(rows)


def show(found: Plan) -> None:
    """What is worth a thought: options that nothing beats, and who missed the target."""
    print(f"to an accuracy of {found.target}:")
    for option in found.front:
        took = f"{option.rounds:4.0f} rounds {option.seconds / 60:8.1f} min {option.bytes / 1e6:7.2f} MB"
        print(f"  {option.name:28} {took} {option.joules / 1e3:7.2f} kJ")
    print("not in time:", ", ".join(contender.name for contender in found.missed) or "none")


def main() -> None:
    """Describe, plan, choose, run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("my-fleet"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds that a round may take at most")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    devices = given.folder / "devices.csv"
    experiment = Experiment(
        fleet=str(devices),
        clients=describe(devices),
        partition={"name": "dirichlet", "settings": {"alpha": 0.5}},
        channel={"name": "bernoulli", "settings": {"up": None, "down": None}},  # by each device's reliability
        rounds=given.rounds,
    )
    found = plan(experiment, given.target, CANDIDATES)
    show(found)
    chosen = found.best("bytes")
    if chosen is None:
        print("nothing reached the target; allow more rounds or a lower one")
        return
    print(f"\nfewest bytes: {chosen.name}; running it")
    values = chosen.experiment.model_dump() | {"world": {"deadline": given.deadline}}
    result = run(Experiment(**values), out=given.folder / "run")
    summary = result.summary()
    print(f"accuracy {summary['accuracy']:.3f} after {summary['virtual_seconds'] / 60:.1f} min, in {summary['run']}")


if __name__ == "__main__":
    main()
