"""Engines on one machine: `Local` trains a cohort as matrices, `Loop` one client after another (the oracle)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Examples, Reply, Setting, State, Task, listed as on_device
from fedloom.core.work import Batches
from fedloom.engine.client import Gradient, Learnt, Walk, beside, initial_state, judged, learn, narrowed, reply_of
from fedloom.engine.cuda.graphs import Replays
from fedloom.engine.gradient.fastest import fastest_gradient
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.engine.sliced import learn_sliced, many, widths
from fedloom.engine.storage.backing import Place
from fedloom.engine.storage.client_states import ClientStates
from fedloom.engine.storage.shards import Shards
from fedloom.engine.ways import links_of, narrows
from fedloom.errors import RunStopped
from fedloom.method import Method
from fedloom.neurons.extract import slices

BUDGET = 2**30  # bytes a chunk of clients may take on a CPU; a constant, so that runs repeat bit for bit


def budget(device: torch.device) -> int:
    """Bytes that clients in training may take."""
    return BUDGET if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory // 2


class Chunk(NamedTuple):
    """Clients about to be trained together, in falling order of their steps."""

    ids: Tensor  # [C]
    listed: list[int]  # the same on the host
    data: Examples  # in which `batches` count
    task: Task
    params: Tensor  # [C, P] what came down
    state: State
    batches: Batches
    width: tuple[int, ...]  # how many neurons of every group each of them keeps, where that matters


Together = Callable[[list[Chunk]], list[tuple[Learnt, State]]]  # trains a round's chunks beside those of other runs


class Local:
    """A cohort as matrices on one device, in chunks that fit a budget; clients stand in order of their steps."""

    def __init__(
        self,
        method: Method,
        setting: Setting,
        data: Examples,
        shards: Shards,
        chunk: int | None = None,
        gradient: Gradient | None = None,
        sliced: bool = True,
        held: tuple[Examples, Shards] | None = None,
        walk: Walk | None = None,
        states: Place = "device",
    ) -> None:
        self.sliced, self.held = sliced, held  # what clients keep back to try their models on
        self.walk = Replays() if walk is None and data.x.device.type == "cuda" else walk
        self.method, self.setting, self.data, self.shards = method, setting, data, shards
        self.gradient = gradient or fastest_gradient(setting, data)
        self.states = ClientStates(setting.fleet.size, data.x.device, states)
        self.chunk = chunk or self._fitting()
        self.together: Together | None = None
        self._newborn: State | None = None  # the latest client's state at first contact; of those met before, its names
        self._widths: dict[int, tuple[int, ...]] = {}  # of each client's sub-model, where that stands still
        self._streams: list[torch.cuda.Stream] = []
        self._counts: dict[tuple[int, ...], tuple[int, ...]] = {}

    def __call__(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train the cohort, chunk by chunk; replies stand in the order of `ids`."""
        listed = ids.tolist()
        ids = ids.to(task.model.device, non_blocking=True) if task.ids is None else task.ids
        steps = self.method.work.steps_of([self.shards.sizes[i] for i in listed])
        width = self._widths_of(listed, task)
        rank = [(own, -taken) for own, taken in zip(width, steps)]
        order = sorted(range(len(listed)), key=rank.__getitem__)  # ties keep their order
        chunks = []
        for _, bucket in groupby(order, key=lambda place: width[place]):
            places = list(bucket)
            chunks += [places[a : a + self.chunk] for a in range(0, len(places), self.chunk)]
        lists = [[listed[p] for p in places] for places in chunks]
        facts = [(ids, own, places, task, chance, width[places[0]]) for own, places in zip(lists, chunks)]
        apart = len(chunks) == len(set(width)) and len(listed) <= self.chunk and self._met(listed)
        if self.together is not None:
            gathered = [self._gather(*each) for each in facts]
            replies = [self._finish(c, *learnt, chance) for c, learnt in zip(gathered, self.together(gathered))]
        elif apart and len(chunks) > 1 and self.data.x.is_cuda and self.shards.resident:
            replies = self._abreast([partial(self._play, *each) for each in facts])
        else:
            replies = []
            for each, then in zip(facts, [*lists[1:], []]):
                self.shards.soon(then)
                replies.append(self._play(*each))
        if order != sorted(order):
            whole = Reply.cat(replies, [on_device(places, ids.device) for places in chunks])
        else:
            whole = replies[0] if len(replies) == 1 else Reply.cat(replies)
        return whole._replace(ids=ids, arrived=task.authorised)  # the very tensors of the task: nobody is lost here

    def _met(self, listed: list[int]) -> bool:
        """Has every one of them a state, if clients have one at all?"""
        return self._newborn == {} or self.states.met(listed)

    def _abreast(self, plays: Sequence[Callable[[], Reply]]) -> list[Reply]:
        """Buckets side by side on a GPU, each in a stream of its own: small networks alone leave most of it idle."""
        here = torch.cuda.current_stream(self.data.x.device)
        while len(self._streams) < len(plays):
            self._streams.append(torch.cuda.Stream(self.data.x.device))
        replies = []
        for stream, play in zip(self._streams, plays):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                replies.append(play())
        for stream, _ in zip(self._streams, plays):
            here.wait_stream(stream)
        return replies

    def _widths_of(self, listed: list[int], task: Task) -> list[tuple[int, ...]]:
        """How many neurons of every group each client keeps, where that decides who is trained together."""
        if not (self._cuts(task) or self._freezes(task)) or self._narrows(task):
            return [()] * len(listed)
        if not (self.method.allocate.steady and self.method.mask.steady):
            own = widths(self.setting, task.keep)
        else:
            if not all(client in self._widths for client in listed):  # once: reading them waits for the device
                self._widths.update(zip(listed, widths(self.setting, task.keep)))
            own = [self._widths[client] for client in listed]
        one = many(own, self.setting.neurons.size) and self._may_narrow(task) and self._zeros
        return [()] * len(own) if one else own

    @cached_property
    def _zeros(self) -> bool:
        """Do kernels leave out what is zero?"""
        return narrows(self.method, self.gradient, self.data)

    def _counts_of(self, width: tuple[int, ...], task: Task) -> tuple[int, ...]:
        """The same in the numbers of every tensor's axes."""
        if width not in self._counts:
            assert task.keep is not None
            self._counts[width] = tuple(slices(self.setting.neurons, task.keep)[1])
        return self._counts[width]

    def _play(
        self, ids: Tensor, listed: list[int], places: list[int], task: Task, chance: Chance, width: tuple[int, ...]
    ) -> Reply:
        """One chunk by itself."""
        chunk = self._gather(ids, listed, places, task, chance, width)
        return self._finish(chunk, *self.learn(chunk), chance)

    def _gather(
        self, ids: Tensor, listed: list[int], places: list[int], task: Task, chance: Chance, width: tuple[int, ...]
    ) -> Chunk:
        """All that one chunk's training reads: states, batches and what each client chooses to train."""
        whole = places == list(range(len(ids)))
        if not whole:
            at = on_device(places, ids.device)
            ids, task = ids[at], task.rows(at)
        if self.method.local.traits.keeps_network:
            task = beside(self.setting, task)
        sizes = [self.shards.sizes[i] for i in listed]
        if self._newborn is None or not self._met(listed):
            self._newborn = initial_state(self.method, self.setting, task.model)
        state = self.states.get(listed, self._newborn)
        data, rows = self.shards.hand(self.data, ids, listed)
        batches = self.method.work.plan(ids, rows, sizes, chance)
        if self.method.local.traits.chooses:
            task, state = narrowed(self.method, self.setting, ids, task, state, data, rows, chance)
        return Chunk(ids, listed, data, task, task.model.expand(len(ids), -1), state, batches, width)

    def learn(self, chunk: Chunk) -> tuple[Learnt, State]:
        """Train a chunk's rows; nothing else of the engine changes."""
        task, gradient, state, batches = chunk.task, self.gradient, chunk.state, chunk.batches
        narrow = self._may_narrow(task) and chunk.width == ()
        if self._cuts(task) and isinstance(gradient, StackedGradient) and not narrow:
            counts = self._counts_of(chunk.width, task)
            return learn_sliced(
                self.method, self.setting, gradient, chunk.data, task, chunk.params, state, batches, self.walk, counts
            )
        held = self._freezes(task)
        if held and isinstance(gradient, StackedGradient) and task.keep is not None and task.mask is not None:
            gradient = gradient.freezing(task.keep, task.mask)
        return learn(self.method, gradient, chunk.data, task, chunk.params, state, batches, held or narrow, self.walk)

    def _finish(self, chunk: Chunk, learnt: Learnt, state: State, chance: Chance) -> Reply:
        """Keep the states, and answer."""
        report: State = {}
        if self.method.local.traits.judges:
            report, state = self._judge(chunk.ids, chunk.listed, chunk.task, learnt, state, chunk.batches)
        self.states.put(chunk.listed, state)
        return reply_of(self.method, self.setting, chunk.ids, chunk.task, learnt, state, chunk.batches, chance, report)

    def _judge(
        self, ids: Tensor, listed: list[int], task: Task, learnt: Learnt, state: State, batches: Batches
    ) -> tuple[State, State]:
        """Trained models tried on what their clients kept back."""
        assert self.held is not None
        data, shards = self.held
        data, held = shards.hand(data, ids, listed)
        count = on_device([shards.sizes[i] for i in listed], ids.device)
        return judged(self.method, self.setting, self.gradient, task, learnt, state, batches, data, held, count)

    def _cuts(self, task: Task) -> bool:
        """Are really smaller networks trained? Only where the rule leaves the rest out and the graph is ours to run."""
        stacked = isinstance(self.gradient, StackedGradient)
        return self.sliced and stacked and task.keep is not None and self.method.local.traits.cuts

    def _narrows(self, task: Task) -> bool:
        """Are networks of several sizes trained side by side, by kernels that leave out what a client has not?"""
        return self._may_narrow(task) and links_of(self.method, self.gradient, self.data) is not None

    def _may_narrow(self, task: Task) -> bool:
        """Are hidden neurons cut, by steps that are replayed?"""
        if not self._cuts(task) or task.mask is None or not isinstance(self.walk, Replays):
            return False
        return task.keep is not None and task.keep.shape[1] == self.setting.neurons.size > 0

    def _freezes(self, task: Task) -> bool:
        """Does the whole network run of which only the sent neurons are trained? Then other gradients are left out."""
        stacked = isinstance(self.gradient, StackedGradient) and self.walk is None
        return self.sliced and stacked and task.keep is not None and self.method.local.traits.freezes

    def _fitting(self) -> int:
        """How many clients fit the budget."""
        return max(1, budget(self.data.x.device) // client_bytes(self.method, self.setting))


def client_bytes(method: Method, setting: Setting) -> int:
    """What training one client takes: weights, gradients, moments and activations, generously counted."""
    return 4 * (8 * setting.layout.total + 40 * setting.example[0].numel() * max(1, method.work.batch))


class Loop(Local):
    """One client after another, in plain eager PyTorch; an error says whose it was."""

    def __init__(
        self,
        method: Method,
        setting: Setting,
        data: Examples,
        shards: Shards,
        held: tuple[Examples, Shards] | None = None,
        states: Place = "device",
    ) -> None:
        super().__init__(method, setting, data, shards, 1, PlainGradient(setting), held=held, states=states)

    def _play(
        self, ids: Tensor, listed: list[int], places: list[int], task: Task, chance: Chance, width: tuple[int, ...]
    ) -> Reply:
        try:
            return super()._play(ids, listed, places, task, chance, width)
        except Exception as problem:
            raise RunStopped(f"client {listed[0]} failed in round {task.round}: {problem}") from problem
