"""Lanes: threads that train one client after another, each with a copy of the network, on one thread of torch's own.

Torch lets other Python threads run while it computes. Networks whose layers are too small or too many for several cores
train quicker so: every core has a client to itself. What a client becomes does not depend on the number of lanes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedloom.core.goal import Transform
from fedloom.core.types import Batch, Examples, Setting
from fedloom.data.augment import mixes
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.trial import largest_difference, trial, trial_of
from fedloom.layout import copied

T = TypeVar("T")
U = TypeVar("U")
LIKE = 0.1  # how far float32 gradients may differ, relative to the largest: norms of 4 examples amplify rounding
AHEAD = 2  # clients that wait for every lane: their examples and states are read already


class Stopped(Exception):
    """The round is over before this client has trained."""


class OneClient(PlainGradient):
    """Plain gradients for clients that train alone, which stop where the round stops."""

    def __init__(self, setting: Setting, channels_last: bool = False, stop: threading.Event | None = None) -> None:
        """`channels_last`: an image's channels lie side by side in memory, as convolutions on CPUs like it."""
        super().__init__(setting)
        self._channels_last, self._stop = channels_last, stop

    def _differentiate(self, tensors: dict[str, Tensor], batch: Batch, row: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """One client's gradients, by parameter, and its loss."""
        if self._stop is not None and self._stop.is_set():
            raise Stopped
        if self._channels_last:
            batch = batch._replace(x=batch.x.movedim(2, -1).contiguous().movedim(-1, 2))
            kernels = {name: value for name, value in tensors.items() if value.dim() == 4}
            tensors.update((n, value.contiguous(memory_format=torch.channels_last)) for n, value in kernels.items())
        return super()._differentiate(tensors, batch, row)


class Lanes:
    """As many lanes as torch has threads when a round begins, or one with all of torch's threads."""

    def __init__(self, setting: Setting, channels_last: bool = False, apart: bool = True, most: int = 2**10) -> None:
        """`apart`: every core has a lane of its own. `most`: lanes that fit into memory."""
        self._setting, self._channels_last = setting, channels_last
        self._apart, self._most = apart, most
        self._stop, self._guard = threading.Event(), threading.Lock()
        self._lanes: list[OneClient] = []

    @property
    def first(self) -> OneClient:
        """The lane that trains where there is only one."""
        return self._take(1)[0]

    def each(self, train: Callable[[OneClient, T], U], work: Iterable[T]) -> Generator[tuple[T, U]]:
        """Do all the work, in order; each piece with its result. `train` is called in the lanes' threads."""
        threads = torch.get_num_threads()
        if not self._apart or min(threads, self._most) < 2:
            lane = self.first
            with self._counted([lane]):
                for piece in work:
                    yield piece, train(lane, piece)
            return
        lanes = self._take(min(threads, self._most))
        torch.set_num_threads(1)  # also for threads that are made now
        try:
            with self._counted(lanes):
                yield from self._abreast(lanes, train, work)
        finally:
            torch.set_num_threads(threads)

    def _abreast(
        self, lanes: list[OneClient], train: Callable[[OneClient, T], U], work: Iterable[T]
    ) -> Generator[tuple[T, U]]:
        """Do the work in threads; an error in one, or in the caller, ends them all."""
        free: SimpleQueue[OneClient] = SimpleQueue()
        for lane in lanes:
            free.put(lane)

        def do(piece: T) -> U:
            lane = free.get()
            try:
                return train(lane, piece)
            finally:
                free.put(lane)

        self._stop.clear()
        waiting: deque[tuple[T, Future[U]]] = deque()
        pool = ThreadPoolExecutor(len(lanes), "fedloom-lane", initializer=torch.set_num_threads, initargs=(1,))
        try:
            for piece in work:
                waiting.append((piece, pool.submit(do, piece)))
                while len(waiting) > (1 + AHEAD) * len(lanes):
                    first, done = waiting.popleft()
                    yield first, done.result()
            while waiting:
                first, done = waiting.popleft()
                yield first, done.result()
        except BaseException:
            self._stop.set()
            self._lanes.clear()  # a network that was stopped midway is not used again
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _take(self, count: int) -> list[OneClient]:
        """The first lanes; new ones are made as they are needed."""
        while len(self._lanes) < count:
            own, transform = self._setting, self._setting.transform
            if self._apart:
                alone = None if transform is None else _OneAtATime(transform, self._guard)
                own = replace(own, module=copied(own.module), transform=alone)
                if "neurons" in vars(self._setting):  # the map is known and need not be traced again
                    vars(own)["neurons"] = self._setting.neurons
            self._lanes.append(OneClient(own, self._channels_last, self._stop))
        return self._lanes[:count]

    @contextmanager
    def _counted(self, lanes: list[OneClient]) -> Iterator[None]:
        """Add up what the lanes' networks count, such as the batches that batch norm has seen."""
        main = _counts(self._setting) if self._apart else {}
        copies = [_counts(lane.setting) for lane in lanes]
        for own in copies:
            for name, value in main.items():
                own[name].copy_(value)
        yield
        for name, value in main.items():
            value += torch.stack([own[name] - value for own in copies]).sum(0)


def why_not_channels_last(setting: Setting, data: Examples) -> str:
    """Why images cannot lie with their channels side by side; empty if they can, with the same gradients."""
    if data.x.dim() != 4 or not any(isinstance(layer, nn.Conv2d) for layer in setting.module.modules()):
        return "and the network has no convolutions over images"
    if setting.module not in _tried:
        _tried[setting.module] = _compared(setting, data)
    return _tried[setting.module]


_tried: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def _compared(setting: Setting, data: Examples) -> str:
    """Compare the gradients of two clients with those of images as they are.

    In float64 they must be the same but for rounding: the network's code then does the same whichever way images lie.
    Torch has other code for the type that clients train in: there they may be as far from the exact ones as those of
    images as they are, or `LIKE`, where norms of few examples make much of little.
    """
    exact, dtype, tolerance = trial_of(setting)
    own = setting.module.get_parameter(setting.layout.parameters[0]).dtype
    ways = ((exact, False, dtype), (exact, True, dtype), (setting, False, own), (setting, True, own))
    found = []
    for tried, last, kind in ways:
        params, batch = trial(tried, data, kind)
        try:
            found.append((*OneClient(tried, last)(params, batch), params))
        except Exception as problem:  # noqa: BLE001  such as a `view` in the network's own code
            return f"and the network refuses it ({str(problem).strip().splitlines()[0]})"
    right, same, plain, ours = found
    code, usual, difference = (largest_difference(zip(some, right)) for some in (same, plain, ours))
    if code > tolerance:
        return f"and gradients then differ by {code:.1e} in {dtype}"
    return "" if difference <= max(LIKE, 3 * usual) else f"and gradients then differ by {difference:.1e}"


def _counts(setting: Setting) -> dict[str, Tensor]:
    """Whole numbers that a network counts by itself."""
    found = setting.module.named_buffers()
    return {name: value for name, value in found if value.dtype == torch.int64 and name.endswith("tracked")}


class _OneAtATime:
    """A transform for several threads: one that draws from torch's own generator cannot share it."""

    def __init__(self, transform: Transform, guard: threading.Lock) -> None:
        self.transform, self.mixes, self._guard = transform, mixes(transform), guard

    def __call__(self, *args: Any) -> Any:
        """The transformed examples."""
        with self._guard:
            return self.transform(*args)
