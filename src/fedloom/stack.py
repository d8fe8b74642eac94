"""Many runs at once: those that train alike advance round by round, and their clients are trained together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from fedloom.client import Learnt, initial_state
from fedloom.data.load import load
from fedloom.engine.joined import Answer, Joint, training, why_apart
from fedloom.engine.local import Chunk, Local, budget
from fedloom.experiment import Experiment
from fedloom.run import Result, Watch, play, run, threads_for
from fedloom.simulation import Simulation, prepare
from fedloom.strand import Strand
from fedloom.types import State

T = TypeVar("T")
CACHE = 2**23  # bytes of weights in training up to which stacking gains on a CPU; measured, see benchmarks/stacked.py

Clock = Callable[[], float]


def run_all(
    experiments: Sequence[Experiment],
    watches: Sequence[Watch | None],
    stack: bool = True,
    tell: Callable[[str], None] | None = None,
) -> list[Result]:
    """The results in order. Runs on the same data that train alike are stacked, as many as fit, unless told not to.

    Args:
        experiments: what to run.
        watches: called with every round's row, one for each.
        stack: False runs one after another.
        tell: called with what is trained together, and what is not and why.
    """
    results: dict[int, Result] = {}
    told: set[str] = set()
    waiting = list(range(len(experiments)))
    while waiting:
        company = [n for n in waiting if _alike(experiments[waiting[0]], experiments[n])] if stack else waiting[:1]
        if len(company) == 1:
            results[company[0]] = run(experiments[company[0]], watch=watches[company[0]])
        else:
            some = [experiments[n] for n in company]
            worlds, why = _prepared(some)
            company = company[: len(worlds)]
            note = _note(some[: len(worlds)], why)
            if tell is not None and note not in told:
                tell(note)
            told.add(note)
            found = play_together(some[: len(worlds)], worlds, [watches[n] for n in company])
            results.update(zip(company, found))
        waiting = [n for n in waiting if n not in results]
    return [results[n] for n in range(len(experiments))]


def play_together(
    experiments: Sequence[Experiment], worlds: Sequence[Simulation], watches: Sequence[Watch | None]
) -> list[Result]:
    """Play prepared runs side by side."""
    with threads_for(worlds):
        return in_step(
            [
                (world.engine, partial(play, experiment, world, None, watch))
                for experiment, world, watch in zip(experiments, worlds, watches)
            ]
        )


def in_step(calls: Sequence[tuple[Local, Callable[[Clock], T]]]) -> list[T]:
    """What calls return that have rounds played by these engines; they are given a clock of their own.

    Whenever all that are not over have asked for training, it is done for all. One error ends all, as does Ctrl-C.
    """
    joint = Joint()
    strands = [_strand(engine, call) for engine, call in calls]
    try:
        asking = [(n, strand.begin()) for n, strand in enumerate(strands)]
        while asked := [(n, chunks) for n, chunks in asking if chunks is not None]:
            answers = joint([(calls[n][0], chunks) for n, chunks in asked])
            asking = [(n, strands[n].answer(answer)) for (n, _), answer in zip(asked, answers)]
    finally:
        for strand in strands:
            strand.abandon()  # those that are not over
    return [strand.result for strand in strands]


def _strand(engine: Local, call: Callable[[Clock], T]) -> Strand[list[Chunk], Answer, T]:
    """A call whose engine asks for its training instead of doing it."""

    def whole(strand: Strand[list[Chunk], Answer, T]) -> T:
        def together(chunks: list[Chunk]) -> list[tuple[Learnt, State]]:
            answer = strand.ask(chunks)
            strand.charge(answer.seconds)
            return answer.learnt

        engine.together = together
        return call(strand.clock)

    return Strand(whole)


def _alike(one: Experiment, other: Experiment) -> bool:
    """Might these be trained together? Whether they can, their networks decide."""
    same = all(getattr(one, key) == getattr(other, key) for key in ("data", "model", "device", "execution", "chunk"))
    local = one.engine == other.engine == "local"
    return one is other or (same and local and training(one.build_method()) == training(other.build_method()))


def _prepared(experiments: Sequence[Experiment]) -> tuple[list[Simulation], str]:
    """As many of these runs as are trained together, and why not more."""
    data = load(experiments[0].data.name, **experiments[0].data.settings)
    first = prepare(experiments[0], data=data)
    room, why = room_beside(first)
    return [first, *(prepare(one, data=data, beside=first) for one in experiments[1:room])], why


def room_beside(world: Simulation) -> tuple[int, str]:
    """How many runs like this one to train together, and what bounds it."""
    engine, setting = world.engine, world.setting
    if (why := why_apart(engine)) is not None:
        return 1, why
    own = initial_state(world.method, setting, world.model).values()
    server = [value for slot in world.method.init(setting, world.model).values() for value in slot.values()]
    kept = setting.fleet.size * sum(value.nbytes for value in own) + sum(value.nbytes for value in server)
    rooms = {
        "more do not fit into memory": budget(world.model.device) // max(1, kept),
        "more would be more clients than are trained at a time": engine.chunk // world.cohort,
    }
    if world.model.device.type == "cpu":
        weights = world.cohort * world.model.nbytes
        rooms["with more its clients' weights would not stay in the processor's cache"] = CACHE // weights
    why = min(rooms, key=lambda name: rooms[name])
    return max(1, rooms[why]), why


def _note(experiments: Sequence[Experiment], why: str) -> str:
    """What is trained together."""
    names = ", ".join(dict.fromkeys(one.method.name for one in experiments))
    if len(experiments) == 1:
        return f"runs of {names} are trained one by one: {why}"
    return f"{len(experiments)} runs are trained together: {names}"
