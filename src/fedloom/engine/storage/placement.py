"""Where examples and client states lie: on the device that trains while they fit, else in host memory or in a file."""

from __future__ import annotations

import heapq
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fedloom.accel.machine import free_memory, size
from fedloom.core.types import Setting
from fedloom.engine.client import initial_state
from fedloom.engine.storage.activations import activation_bytes
from fedloom.engine.storage.backing import Place
from fedloom.errors import BadExperiment
from fedloom.method import Method

BUDGET = 2**30  # bytes that training clients may take on a CPU; a constant, so that runs repeat bit for bit
SPARE = 0.9  # the part of free memory that is planned with
REPLY = 16  # bytes per number of a cohort's replies, which lie on the device together: weights and masks, with copies


class Budget(NamedTuple):
    """Bytes that may be used; on a CPU the device is the host, so that `host` is 0."""

    device: int
    host: int
    disk: int


class Sizes(NamedTuple):
    """The sizes of a run, in bytes unless another unit is given."""

    examples: int  # of all training and test examples
    example: int
    shards: Sequence[int]  # number of examples of every client
    state: int  # the state of one client
    with_state: int  # clients that will ever have a state
    client: int  # to train one client
    reply: int  # that one client adds to the server's half of a round
    cohort: int  # clients a round, at most
    chunk: int  # clients that train at a time, if memory allows
    asked: bool = False  # whether the user chose the chunk
    copies: int = 1  # buffers for fetched examples: a GPU has two
    flight: int = 0  # of clients in flight, where rounds have no barrier
    fewer: str = "per_round"  # the setting that makes the cohort smaller


class Placement(NamedTuple):
    """Where examples and client states lie, and how many clients train at once."""

    device: str
    budget: int  # bytes of the device that were planned with
    examples: Place
    examples_bytes: int
    states: Place
    states_bytes: int  # at most
    chunk: int
    at_once: int  # clients trained together
    training_bytes: int  # about
    buffer: int  # examples of a chunk at most, where they are fetched
    flight_bytes: int = 0  # about
    crowded: bool = False  # whether clients in flight leave too little memory for all else; then that is placed without

    def __str__(self) -> str:
        """A summary in one line."""
        where = {"device": f"on {self.device}", "host": "in the host's memory"}
        where["file"] = f"in a file in {tempfile.gettempdir()}"
        states = f"client states up to {size(self.states_bytes)} {where[self.states]}, " if self.states_bytes else ""
        return (
            f"memory: examples {size(self.examples_bytes)} {where[self.examples]}, {states}"
            f"{self.at_once:,} clients at once in about {size(self.training_bytes)} (chunk {self.chunk:,})"
            + (f", clients in flight about {size(self.flight_bytes)}" if self.flight_bytes else "")
        )

    def record(self) -> dict[str, Any]:
        """Plain values for the run folder."""
        return self._asdict()


def training_budget(device: torch.device) -> int:
    """Bytes that all clients in training may take together."""
    return BUDGET if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory // 2


def client_bytes(method: Method, setting: Setting) -> int:
    """Bytes to train one client: a generous estimate of parameters, gradients and moments, and measured activations."""
    return 4 * 8 * setting.layout.total + activation_bytes(setting) * max(1, method.work.batch)


def flight_bytes(method: Method, setting: Setting, state: int) -> int:
    """Bytes of clients in flight, about: the models that they were sent and, where held, their replies and new states.

    Models of twice the mean staleness are kept, each with the counts of its numbers.
    """
    pace, total = method.pace, setting.layout.total
    slots = min(pace.slots, setting.fleet.size)
    models = min(slots, 1 + 2 * slots // pace.goal)
    masks = 0 if method.mask.sends_all else total
    held = REPLY * total + state if pace.holds_rows or not method.masks_known else masks
    return models * 6 * total + slots * held


def sizes_of(
    method: Method,
    setting: Setting,
    model: torch.Tensor,
    examples: int,
    shards: Sequence[int],
    rounds: int,
    chunk: int | None,
) -> Sizes:
    """The sizes of this run; `examples`: bytes of all examples, `shards`: every client's number of examples."""
    cohort, device = method.cohort_size(setting.fleet.size), setting.example.device
    state = sum(value.nbytes for value in initial_state(method, setting, model).values())
    client, budget = client_bytes(method, setting), training_budget(device)
    return Sizes(
        examples=examples,
        example=setting.example[0].nbytes + 8,  # a label is of int64
        shards=shards,
        state=state,
        with_state=min(setting.fleet.size, rounds * cohort + method.pace.slots),
        client=client + state,
        reply=REPLY * setting.layout.total,
        cohort=cohort,
        chunk=chunk or max(1, budget // client),
        asked=chunk is not None,
        copies=2 if device.type == "cuda" else 1,
        flight=flight_bytes(method, setting, state),
        fewer="per_round" if method.pace.barrier else "pace.buffer",
    )


def budget_of(device: torch.device, memory: float | None, loaded: int) -> Budget:
    """Free memory; `memory` (GiB) replaces the device's. `loaded` bytes of examples lie on the host already."""
    disk, host = shutil.disk_usage(tempfile.gettempdir()).free, free_memory()
    given = None if memory is None else int(memory * 2**30)
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # reserved by torch
        free = torch.cuda.mem_get_info(device)[0] + idle if given is None else given
        return Budget(int(SPARE * free), int(SPARE * host), int(SPARE * disk))
    return Budget(int(SPARE * (host + loaded)) if given is None else given, 0, int(SPARE * disk))


def place(sizes: Sizes, budget: Budget, device: str = "cpu") -> Placement:
    """Place all on the device if it fits; else half of it is for training, the rest for examples, then states."""
    free = budget.device - sizes.cohort * sizes.reply
    _check_one(sizes, budget, free)
    crowded = sizes.flight + sizes.client > free
    free -= 0 if crowded else sizes.flight
    chunk, total = sizes.chunk, sizes.state * sizes.with_state
    most = min(chunk, sizes.cohort)
    if not sizes.asked and most * sizes.client + sizes.examples + total > free:
        chunk = max(1, min(chunk, free // 2 // sizes.client))
        most = min(chunk, sizes.cohort)
    if most * sizes.client > free:
        raise BadExperiment(
            f"chunk is {chunk}, and training {most} clients at once takes about {size(most * sizes.client)} of the "
            f"{size(max(0, free))} that are left of {device}; chunk={free // sizes.client} fits."
        )
    left, host, disk = free - most * sizes.client, budget.host, budget.disk
    examples, room = _place(sizes.examples, left, host, disk), 0
    if examples != "device":
        fits = _fetching(sizes, most, free)
        if fits < most and sizes.asked:
            raise BadExperiment(
                f"chunk is {chunk}, and the examples of {most} clients do not fit next to their training into "
                f"{size(free)} of {device}; chunk={fits} fits."
            )
        chunk, most = (chunk, most) if fits == most else (fits, fits)
        room = _examples(sizes, most)
        left = free - most * sizes.client - sizes.copies * room * sizes.example
    if examples is None:
        raise BadExperiment(
            f"the examples take {size(sizes.examples)}, and neither {device} ({size(left)} free for them), the host "
            f"({size(host)}) nor '{tempfile.gettempdir()}' ({size(disk)}) has room; set TMPDIR to a larger disk."
        )
    left -= sizes.examples if examples == "device" else 0
    host -= sizes.examples if examples == "host" else 0
    disk -= sizes.examples if examples == "file" else 0
    states = _place(total, left, host, disk)
    if states is None:
        fit = max(left, host, disk) // sizes.state
        raise BadExperiment(
            f"the states of {sizes.with_state:,} clients take {size(total)}, {size(sizes.state)} each, and neither "
            f"{device}, the host nor '{tempfile.gettempdir()}' has room; {fit:,} clients fit."
        )
    training = sizes.cohort * sizes.reply + most * sizes.client
    return Placement(
        device,
        budget.device,
        examples,
        sizes.examples,
        states,
        total,
        chunk,
        most,
        training,
        room,
        sizes.flight,
        crowded,
    )


def _check_one(sizes: Sizes, budget: Budget, free: int) -> None:
    """Refuse a run that cannot train even one client at a time."""
    if sizes.client <= free:
        return
    need = sizes.cohort * sizes.reply + sizes.client
    fit = max(0, budget.device - sizes.client) // sizes.reply
    advice = f"{sizes.fewer}={fit} fits" if fit else "take a smaller model or smaller batches"
    raise BadExperiment(
        f"{sizes.cohort} clients a round, trained one at a time, take about {size(need)}, and "
        f"{size(budget.device)} may be used; {advice}, or give it at least memory={need / 2**30:.3g} (GiB)."
    )


def _place(wanted: int, device: int, host: int, disk: int) -> Place | None:
    """The nearest place with room for `wanted` bytes."""
    rooms: tuple[tuple[Place, int], ...] = (("device", device), ("host", host), ("file", disk))
    return next((place for place, room in rooms if wanted <= room), None)


def _examples(sizes: Sizes, clients: int) -> int:
    """The largest number of examples that a chunk of `clients` clients can have."""
    return sum(heapq.nlargest(clients, sizes.shards))


def _fetching(sizes: Sizes, most: int, free: int) -> int:
    """The largest number of clients that can train at once where their examples are fetched to the device."""

    def taken(clients: int) -> int:
        return clients * sizes.client + sizes.copies * _examples(sizes, clients) * sizes.example

    low, high = 0, most
    while low < high:  # the most that fits, by halving
        middle = (low + high + 1) // 2
        low, high = (middle, high) if taken(middle) <= free else (low, middle - 1)
    if not low:
        raise BadExperiment(
            f"one client with its {max(sizes.shards):,} examples takes about {size(taken(1))}, and {size(free)} are "
            f"left for it; deal the data to more clients, or give it more memory."
        )
    return low
