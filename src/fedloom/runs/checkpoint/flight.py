"""A flight as tensors: the tasks that no step has closed yet, and the versions of the model that they refer to.

Tasks are a table. Of matrices with a row for each task, such as masks and trained weights, the rows of these tasks are
saved, and those that several tasks share once. The queue of events follows from the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedloom.core.flight import Asked, Flight, Version, Wave
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.method import Method

Row = tuple[Tensor, int]  # a matrix, and which of its rows
SECONDS = ("asked", "end", "takes")  # columns of tasks in double precision
NUMBERS = ("serial", "client", "base", "wave", "training", "foreseen", "fate", "ended", "holds_slot")


def save_flight(flight: Flight) -> State:
    """All of a flight but the model as it is now; models are views, all else is copied."""
    now, tasks = flight.version, list(flight.tasks.values())
    versions = {task.base: task.wave.version for task in tasks}
    kept = [now, *versions.values()]
    waves, trainings = _numbers(task.wave for task in tasks), _numbers(task.trained for task in tasks)
    seconds = [(task.asked, task.end, task.wave.ends[task.row]) for task in tasks]
    numbers = [
        (t.serial, t.client, t.base, wave, training, t.foreseen, t.fate, t.ended, t.holds_slot)
        for t, wave, training in zip(tasks, waves, trainings)
    ]
    saved = {
        "seconds": torch.tensor([flight.now, flight.since], dtype=torch.float64),
        "next_serial": torch.tensor(flight.next_serial),
        "refilled": torch.tensor(flight.refilled),
        "waiting": torch.tensor([task.serial for task in flight.waiting], dtype=torch.int64),
        "versions": torch.tensor([(one.number, one.moves) for one in kept]),
        **{f"model.{number}": one.model for number, one in versions.items()},
        **{f"counts.{one.number}": one.counts for one in kept if one.counts is not None},
        "tasks.seconds": torch.tensor(seconds, dtype=torch.float64).view(-1, len(SECONDS)),
        "tasks.numbers": torch.tensor(numbers, dtype=torch.int64).view(-1, len(NUMBERS)),
    }
    rows = [_rows_of(task) for task in tasks]
    for name in {name: None for own in rows for name in own}:
        saved |= _saved_rows(name, [own.get(name) for own in rows])
    return saved


def load_flight(flight: Flight, saved: State, method: Method, setting: Setting) -> None:
    """Put a saved flight into one that has just begun from the model as it is now."""
    model, device = flight.version.model, flight.version.model.device
    versions = {}
    for number, moves in saved["versions"].tolist():
        sent, counts = (saved.get(f"{what}.{number}") for what in ("model", "counts"))
        sent = model if sent is None else sent.to(device, copy=True)
        versions[number] = Version(number, sent, moves, None if counts is None else counts.to(device, copy=True))
    column = {
        **dict(zip(SECONDS, saved["tasks.seconds"].T.tolist())),
        **dict(zip(NUMBERS, saved["tasks.numbers"].T.tolist())),
    }
    rows, clients = _Rows(saved, device), torch.tensor(column["client"], dtype=torch.int64, device=device)
    waves, replies = {}, {}
    for number, places in _groups(column["wave"]).items():
        version, own = versions[column["base"][places[0]]], rows.of("task.", places)
        task = _task(method, setting, version, clients[places], own)
        ends, fates = ([column[name][place] for place in places] for name in ("takes", "foreseen"))
        waves[number] = Wave(version, task, own["facts"], ends, fates, own.get("pieces"))
    for number, places in _groups(column["training"]).items():
        replies[number] = None if number < 0 else _reply(clients[places], rows.of("reply.", places))
    row, place = _ranks(column["wave"]), _ranks(column["training"])
    tasks = [
        Asked(
            column["serial"][n], column["client"][n], waves[column["wave"][n]], row[n], column["asked"][n],
            column["end"][n], column["fate"][n], bool(column["ended"][n]), bool(column["holds_slot"][n]),
            replies[column["training"][n]], place[n],
        )
        for n in range(len(clients))
    ]  # fmt: skip
    flight.version = versions[saved["versions"].tolist()[0][0]]
    flight.now, flight.since = saved["seconds"].tolist()
    flight.next_serial, flight.refilled = int(saved["next_serial"]), bool(saved["refilled"])
    flight.take_up(tasks, saved["waiting"].tolist(), method.pace.timeout)


def _rows_of(task: Asked) -> dict[str, Row]:
    """What belongs to a task, of its wave's matrices, and of those in which its reply is a row."""
    wave, sent, reply = task.wave, task.wave.task, task.trained
    found = {"share": sent.share, "facts": wave.facts, "mask": sent.mask, "keep": sent.keep, "pieces": wave.pieces}
    found |= {f"extras.{name}": value for name, value in sent.extras.items()}
    rows = {f"task.{name}": (value, task.row) for name, value in found.items() if value is not None}
    if reply is None:
        return rows
    found = {"params": reply.params, "arrived": reply.arrived, "mask": reply.mask}
    found |= {f"extras.{name}": value for name, value in reply.extras.items()}
    found |= {f"report.{name}": value for name, value in reply.report.items()}
    return rows | {f"reply.{name}": (value, task.place) for name, value in found.items() if value is not None}


def _task(method: Method, setting: Setting, version: Version, clients: Tensor, rows: State) -> Task:
    """The tasks of clients that were asked together, as they were sent."""
    return Task(
        model=version.model,
        mask=rows.get("mask"),
        keep=rows.get("keep"),
        share=rows["share"],
        authorised=torch.ones_like(clients, dtype=torch.bool),
        extras=_inside("extras.", rows),
        round=version.number + 1,
        rate=method.optimiser.rate_at(version.number + 1),
        base_rate=method.optimiser.rate,
        trained=setting.layout.trained,
        ids=clients,
        all_send=True,
    )


def _reply(clients: Tensor, rows: State) -> Reply:
    """The replies of clients that were trained together."""
    return Reply(
        clients, rows["params"], rows.get("mask"), _inside("extras.", rows), _inside("report.", rows), rows["arrived"]
    )


def _saved_rows(name: str, rows: Sequence[Row | None]) -> State:
    """A row for each task that has one; those that lie at one place in memory once. Bits are packed."""
    found: dict[int, int] = {}
    whose: list[int] = []
    kept: list[Tensor] = []
    for row in rows:
        value = None if row is None else row[0][row[1]]
        if value is not None and found.setdefault(value.data_ptr(), len(kept)) == len(kept):
            kept.append(value)
        whose.append(-1 if value is None else found[value.data_ptr()])
    saved = {f"rows.{name}": torch.stack(kept), f"whose.{name}": torch.tensor(whose)}
    if kept[0].dtype == torch.bool and kept[0].dim():
        bits = np.packbits(saved[f"rows.{name}"].cpu().numpy(), axis=-1)
        saved |= {f"rows.{name}": torch.from_numpy(bits), f"width.{name}": torch.tensor(kept[0].shape[-1])}
    return saved


class _Rows:
    """Rows of tasks by name."""

    def __init__(self, saved: State, device: torch.device) -> None:
        self._rows: State = {}
        self._whose: State = {}
        for name, rows in _inside("rows.", saved).items():
            if f"width.{name}" in saved:
                bits = np.unpackbits(rows.numpy(), axis=-1, count=int(saved[f"width.{name}"]))
                rows = torch.from_numpy(bits).view(torch.bool)
            self._rows[name], self._whose[name] = rows.to(device, copy=True), saved[f"whose.{name}"]

    def of(self, kind: str, places: list[int]) -> State:
        """The rows, of names that begin with `kind`, of some tasks that were asked or trained together."""
        found: State = {}
        for name, rows in self._rows.items():
            whose = self._whose[name][places]
            if not name.startswith(kind) or whose[0] < 0:
                continue
            first, at = int(whose[0]), whose.to(rows.device)
            shared = len(rows) < len(self._whose[name]) and bool((whose == first).all())
            own = rows[first : first + 1].expand(len(places), *rows.shape[1:]) if shared else rows[at]
            found[name.removeprefix(kind)] = own
        return found


def _inside(kind: str, state: State) -> State:
    """What has names that begin with `kind`, without that."""
    return {name.removeprefix(kind): value for name, value in state.items() if name.startswith(kind)}


def _numbers(things: Iterable[object | None]) -> list[int]:
    """Number things in the order in which they first come; -1 for None."""
    found: dict[int, int] = {}
    return [-1 if thing is None else found.setdefault(id(thing), len(found)) for thing in things]


def _groups(numbers: Sequence[int]) -> dict[int, list[int]]:
    """The places of every number."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers):
        found[number].append(place)
    return found


def _ranks(numbers: Sequence[int]) -> list[int]:
    """How often each number came before."""
    seen: dict[int, int] = defaultdict(int)
    ranks = []
    for number in numbers:
        ranks.append(seen[number])
        seen[number] += 1
    return ranks
