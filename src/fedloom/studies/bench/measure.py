"""Time of a round: rounds back to back as in a run, with one wait at the end of each cycle."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, Task
from fedloom.engine.protocol import Engine
from fedloom.evaluate.score import Score, evaluate
from fedloom.round import play_round
from fedloom.runs.build import Prepared, prepare
from fedloom.runs.threads import threads_for
from fedloom.studies.bench.flops import count
from fedloom.studies.bench.limits import PeakMemory, wait
from fedloom.studies.bench.workloads import Workload

WARM = 12  # uncounted rounds: graphs are captured, and methods that treat the first or tenth round apart are past it
MOST = 100  # rounds in a cycle at most


@dataclass(frozen=True)
class Measured:
    """One workload on one engine; times are in milliseconds per round."""

    workload: str
    engine: str
    clients: int  # in the cohort
    steps: int  # of all clients in the cohort
    round_ms: float  # select, order of batches, training, aggregation and evaluation: the median over cycles
    fastest_ms: float
    slowest_ms: float
    training_ms: float  # order of batches and training alone
    first_ms: float  # the first round, with compilation and capture
    steps_per_second: float  # of the whole round
    flops_per_second: float  # of training alone, like the next
    bytes_per_second: float
    peak_bytes: int | None
    accuracy: float  # after the last round, on synthetic data
    rounds: int  # in a cycle
    cycles: int


class Play:
    """A workload's run, played round by round."""

    def __init__(self, run: Prepared, seed: int) -> None:
        self.inputs, self.seed, self.number = run.inputs, seed, 0
        assert run.trainer is not None
        self.trainer: Engine = run.trainer
        self.model: Tensor = run.inputs.model
        self.memory = run.inputs.method.init(run.inputs.setting, run.inputs.model)
        self.score: Score | None = None
        self.last: tuple[Task, Reply] | None = None

    def round(self) -> None:
        """Play one round and evaluate its model, without waiting for the device."""
        inputs = self.inputs
        self.number += 1
        self.model, self.memory, task, reply = play_round(
            inputs.method, self.memory, self.model, inputs.setting, self.trainer, self.chance()
        )
        self.last = task, reply
        self.score = evaluate(inputs.setting, self.model, inputs.test, inputs.outputs)

    def train(self) -> None:
        """Repeat the last round's training with other batches."""
        assert self.last is not None
        self.number += 1
        task, reply = self.last
        self.trainer.train(reply.ids, task, self.chance())

    def chance(self) -> Chance:
        """The chance of the current round."""
        return Chance(self.seed, self.number, self.model.device)


def measure(
    name: str,
    workload: Workload,
    engine: str = "local",
    device: str = "auto",
    cycles: int = 5,
    seconds: float = 5.0,
    seed: int = 0,
    tell: Callable[[str], None] = lambda state: None,
    own_threads: bool = True,
) -> Measured:
    """Play a workload for about `seconds`, at least one cycle.

    With `own_threads=False` the number of threads stays as it is, where a run would choose one.
    """
    tell("preparing")
    run = prepare(workload.experiment(engine, device, seed), data=workload.data(seed))
    place = run.inputs.model.device
    peak_memory = PeakMemory(place)
    before = torch.get_num_threads()
    with threads_for([run.inputs]):
        if not own_threads:
            torch.set_num_threads(before)
        play = Play(run, seed)
        tell("first round")
        first = _time(play.round, 1, place)
        warm = time.perf_counter()
        each = first
        for _ in range(WARM):
            if time.perf_counter() - warm > 0.2 * seconds:
                break
            each = _time(play.round, 1, place)
        rounds = max(1, min(MOST, int(seconds / 2 / cycles / each)))
        whole = _cycles(play.round, rounds, cycles, 0.6 * seconds, place, lambda n: tell(f"cycle {n} of {cycles}"))
        training = _cycles(play.train, rounds, cycles, 0.2 * seconds, place, lambda n: tell("training alone"))
        peak = peak_memory.bytes()
    assert play.last is not None
    assert play.score is not None
    task, reply = play.last
    counts = count(run, task, reply)
    return Measured(
        workload=name,
        engine=engine,
        clients=len(reply.ids),
        steps=counts.steps,
        round_ms=1000 * median(whole),
        fastest_ms=1000 * min(whole),
        slowest_ms=1000 * max(whole),
        training_ms=1000 * median(training),
        first_ms=1000 * first,
        steps_per_second=counts.steps / median(whole),
        flops_per_second=counts.flops / median(training),
        bytes_per_second=counts.bytes / median(training),
        peak_bytes=peak,
        accuracy=float(play.score.metrics["accuracy"]),
        rounds=rounds,
        cycles=len(whole),
    )


def _time(call: Callable[[], None], rounds: int, device: torch.device) -> float:
    """Seconds per round of rounds back to back."""
    wait(device)
    began = time.perf_counter()
    for _ in range(rounds):
        call()
    wait(device)
    return (time.perf_counter() - began) / rounds


def _cycles(
    call: Callable[[], None],
    rounds: int,
    cycles: int,
    seconds: float,
    device: torch.device,
    tell: Callable[[int], None],
) -> list[float]:
    """Seconds per round of `cycles` cycles, or of fewer if `seconds` are over."""
    began, taken = time.perf_counter(), []
    for number in range(1, cycles + 1):
        tell(number)
        taken.append(_time(call, rounds, device))
        if time.perf_counter() - began > seconds:
            break
    return taken
