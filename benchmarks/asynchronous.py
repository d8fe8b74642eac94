"""Cost of rounds without a barrier: a step, while many clients are in flight, against a round; and the queue alone.

    python benchmarks/asynchronous.py [--steps 20] [--in-flight 1000] [--buffer 100] [--method fedavg] [steps queue]

`steps`: 784-200-200-10, 12 steps of 50 examples a client, a fleet of four times as many clients as are in flight, all
there, on a simulated mobile network. A run with a barrier, of as many clients a round as the buffer takes, and one
without are played in turn, a round and a step each; medians after those asked first have come back.
`queue`: clients that take an exponential time each are asked and come back, with nothing trained; events a second.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from dataclasses import replace

import numpy as np
import torch

from fedloom.accel.kept_memory import kept_memory
from fedloom.core.flight import ARRIVED, Asked, Flight, Version, Wave
from fedloom.core.types import Task
from fedloom.parts.pace.buffered import Buffered
from fedloom.runs.build import Prepared, prepare
from fedloom.runs.checkpoint.snapshot import Progress
from fedloom.runs.experiment import Experiment
from fedloom.runs.one_round import play_one
from fedloom.runs.play import ledger_of
from fedloom.runs.threads import threads_for
from fedloom.step import begin_flight
from fedloom.studies.bench.workloads import Workload

FLEET = {"name": "mobile-4g", "settings": {"availability": 1.0}}  # so that both train as many clients
TASKS = 50_000  # that come back in the queue alone
ROUNDS = 10**6  # no run comes to its end, and none is evaluated
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Turn:
    """A run that is played a round at a time."""

    def __init__(self, experiment: Experiment, prepared: Prepared) -> None:
        method, setting, model = prepared.inputs.method, prepared.inputs.setting, prepared.inputs.model
        self.experiment, self.prepared, self.ledger = experiment, prepared, ledger_of(prepared.inputs)
        flight = None if method.pace.barrier else begin_flight(method, setting, model)
        self.at = Progress(0, model, method.init(setting, model), flight)
        self.took: dict[str, list[float]] = {name: [] for name in CLOCKS}

    def play(self) -> None:
        """One round or step."""
        began = {name: clock() for name, clock in CLOCKS.items()}
        self.at = play_one(self.experiment, self.prepared, self.ledger, self.at)
        for name, clock in CLOCKS.items():
            self.took[name].append(clock() - began[name])


def steps(options: argparse.Namespace) -> None:
    """Rounds and steps in turn."""
    fleet = 4 * options.in_flight
    values = {"method": options.method, "fleet": FLEET, "rounds": ROUNDS, "evaluate_every": ROUNDS}
    load = Workload("", clients=fleet, per_round=options.buffer, samples=50, steps=12, values=values)
    pace = {"buffer": options.buffer, "in_flight": options.in_flight, "hold": options.hold}
    stale = {"name": "change", "settings": {"discount": "polynomial"}}
    without = {**values, "pace": {"name": "buffered", "settings": pace}, "stale": stale}
    kinds = [
        load.experiment("local", "cpu", 0),
        replace(load, per_round=None, values=without).experiment("local", "cpu", 0),
    ]
    data = load.data(0)
    barrier = prepare(kinds[0], data=data)
    free = prepare(kinds[1], data=data, sibling=barrier)
    turns = [Turn(kinds[0], barrier), Turn(kinds[1], free)]
    warm = 2 * options.in_flight // options.buffer
    with threads_for([barrier.inputs]), kept_memory():
        for _ in range(warm + options.steps):
            for turn in turns:
                turn.play()
    rows = [turn.ledger.rounds()[warm:] for turn in turns]
    trained = [statistics.mean(row["clients"] for row in of) for of in rows]
    print(f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{options.method}, {options.in_flight:,} in flight, buffer {options.buffer}, hold={options.hold}, "
          f"mean staleness {statistics.mean(row['staleness_mean'] for row in rows[1]):.2f}")  # fmt: skip
    print(f"clients of a round {trained[0]:.1f}, closed by a step {trained[1]:.1f}")
    for name in CLOCKS:
        theirs, ours = (turn.took[name][warm:] for turn in turns)
        for word, of in (("median", statistics.median), ("mean", statistics.mean)):  # steps train in waves, or not
            print(f"{name:9s} {word:6s} round {1000 * of(theirs):7.1f} ms   step {1000 * of(ours):7.1f} ms   "
                  f"ratio {of(ours) / of(theirs):.2f}")  # fmt: skip


def queue(options: argparse.Namespace) -> None:
    """Tasks are asked, come back and are closed, as `play_step` does it; nothing is trained."""
    fleet, pace, none = 4 * options.in_flight, Buffered(options.buffer, options.in_flight), torch.zeros(1)
    task = Task(none, None, None, none, none.bool(), {}, 1, 0.1, 0.1, 1)
    seconds = np.random.default_rng(0).exponential(1.0, TASKS + fleet).tolist()
    took = []
    for _ in range(5):
        flight = Flight(fleet, Version(0, none), options.in_flight)
        began = time.process_time()
        while flight.version.number < TASKS // options.buffer:
            wave, free = (
                Wave(flight.version, task, none, [], [ARRIVED] * fleet),
                iter(flight.free.nonzero()[0].tolist()),
            )
            while (taken := pace.due({}, flight, False)) is None:
                while pace.wish({}, flight, flight.free).clients:
                    client, serial = next(free), flight.next_serial
                    flight.add(Asked(serial, client, wave, client, flight.now, flight.now + seconds[serial]))
                flight.advance(flight.next_event())
                flight.happen(pace)
            flight.close(flight.closing(taken, pace.recall), Version(flight.version.number + 1, none))
            flight.end_interval()
        took.append(time.process_time() - began)
        events = flight.next_serial + TASKS  # asked, and come back
    print(f"queue: {events:,} events, {events / statistics.median(took):,.0f} a second of processor time")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["steps", "queue"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--buffer", type=int, default=100)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--hold", choices=["rows", "bases"], default="rows")
    options = parser.parse_args()
    for what in options.what:
        {"steps": steps, "queue": queue}[what](options)


if __name__ == "__main__":
    main()
