"""The engine that trains a cohort as matrices on one device, in chunks that fit its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fedloom.accel.precision import Precision
from fedloom.chance import Chance
from fedloom.core.types import Reply, State, Task, listed as on_device
from fedloom.engine.client import Chunk, Learnt, learn
from fedloom.engine.clients import Clients
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.facts import facts_of
from fedloom.engine.gradient.fastest import Chosen, fastest_gradient
from fedloom.engine.personal import personal_score
from fedloom.engine.plan import StepPlan, plan_steps
from fedloom.engine.sliced import SliceCounts, learn_sliced, whole_is_faster, widths
from fedloom.engine.steps import Start, Steps, take_steps
from fedloom.engine.storage.placement import client_bytes, training_budget

Trainer = Callable[[list[Chunk]], list[tuple[Learnt, State]]]  # trains the chunks of a round


class Local:
    """A cohort as matrices; within a chunk clients are in falling order of their steps."""

    def __init__(self, clients: Clients, chosen: Chosen, plan: StepPlan, chunk: int, steps: Steps = take_steps) -> None:
        """`chunk`: how many clients train at once, at most. `steps` takes their steps as the plan says."""
        self.clients, self.chosen, self.plan, self.chunk = clients, chosen, plan, chunk
        self.gradient = chosen.gradient
        self._steps = steps
        self._trainer: Trainer | None = None
        self._slice_counts = SliceCounts(clients.setting)
        self._widths: dict[int, tuple[int, ...]] = {}  # of each client's sub-model, where it never changes
        self._streams: list[torch.cuda.Stream] = []

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train the cohort, chunk by chunk; replies stand in the order of `ids`."""
        clients, listed = self.clients, ids.tolist()
        ids = ids.to(task.model.device, non_blocking=True) if task.ids is None else task.ids
        steps = clients.method.work.steps_of([clients.shards.sizes[i] for i in listed])
        width = self._widths_of(listed, task)
        rank = [(own, -taken) for own, taken in zip(width, steps)]
        order = sorted(range(len(listed)), key=rank.__getitem__)  # ties keep their order
        chunks = []
        for _, bucket in groupby(order, key=lambda place: width[place]):
            places = list(bucket)
            chunks += [places[a : a + self.chunk] for a in range(0, len(places), self.chunk)]
        lists = [[listed[p] for p in places] for places in chunks]
        facts = [(ids, own, places, task, chance, width[places[0]]) for own, places in zip(lists, chunks)]
        apart = len(chunks) == len(set(width)) and len(listed) <= self.chunk and clients.met(listed)
        if self._trainer is not None:
            gathered = [clients.gather(*each) for each in facts]
            learnt = self._trainer(gathered)
            replies = [clients.finish(chunk, *own, self.gradient, chance) for chunk, own in zip(gathered, learnt)]
        elif apart and len(chunks) > 1 and clients.data.x.is_cuda and clients.shards.resident:
            replies = self._abreast([partial(self._play, *each) for each in facts])
        else:
            replies = []
            for each, then in zip(facts, [*lists[1:], []]):
                clients.shards.prefetch(then)
                replies.append(self._play(*each))
        if order == sorted(order):
            whole = replies[0] if len(replies) == 1 else Reply.cat(replies)
        else:
            whole = Reply.cat(replies, [on_device(places, ids.device) for places in chunks])
        return whole._replace(ids=ids, arrived=task.authorised)  # the task's own tensors: no reply is lost here

    def personal(self, model: Tensor) -> Tensor | None:
        """The score of every client's own model [N]."""
        return personal_score(self.clients, self.gradient, model, self.chunk)

    def save(self) -> State:
        """The states of all clients that were met."""
        return self.clients.save()

    def load(self, state: State) -> None:
        """Put back what `save` gave."""
        self.clients.load(state)

    def describe(self) -> dict[str, Any]:
        """The plan of steps."""
        return {"engine": "local", "plan": self.plan.record()}

    @contextmanager
    def trained_by(self, trainer: Trainer) -> Iterator[None]:
        """Let `trainer` train this engine's chunks for a while, such as together with those of other runs."""
        self._trainer = trainer
        try:
            yield
        finally:
            self._trainer = None

    def learn(self, chunk: Chunk) -> tuple[Learnt, State]:
        """Train a chunk's rows; nothing else of the engine changes."""
        clients, task, gradient = self.clients, chunk.task, self.gradient
        partial_task = task.keep is not None and task.mask is not None
        neurons = clients.setting.neurons if partial_task else None
        frozen = partial_task and self.plan.parts == "frozen"
        compact = self._may_compact(task) and chunk.width == ()
        if frozen and gradient.stacked is not None and task.keep is not None and task.mask is not None:
            gradient = gradient.stacked.freezing(task.keep, task.mask)
        start = Start(
            clients.method, clients.setting, gradient, self.plan, chunk.data, task, chunk.state, {}, chunk.params,
            chunk.batches, neurons if frozen or compact else None, frozen or compact,
        )  # fmt: skip
        if self._cuts(task) and not compact:
            return learn_sliced(start, clients.setting, self._slice_counts.of(chunk.width, task), self._steps)
        return learn(start, self._steps)

    def _play(
        self, ids: Tensor, listed: list[int], places: list[int], task: Task, chance: Chance, width: tuple[int, ...]
    ) -> Reply:
        """One chunk by itself."""
        chunk = self.clients.gather(ids, listed, places, task, chance, width)
        return self.clients.finish(chunk, *self.learn(chunk), self.gradient, chance)

    def _abreast(self, plays: Sequence[Callable[[], Reply]]) -> list[Reply]:
        """Play chunks side by side on a GPU, each in a stream of its own: one small network leaves most of it idle."""
        device = self.clients.data.x.device
        here = torch.cuda.current_stream(device)
        while len(self._streams) < len(plays):
            self._streams.append(torch.cuda.Stream(device))
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
        method, setting, parts = self.clients.method, self.clients.setting, self.plan.parts
        apart = self._cuts(task) or (parts == "frozen" and task.keep is not None)
        if not apart or (parts == "compact" and self._may_compact(task)):
            return [()] * len(listed)
        if not (method.allocate.steady and method.mask.steady):
            own = widths(setting, task.keep)
        else:
            if not all(client in self._widths for client in listed):  # once: reading them waits for the device
                self._widths.update(zip(listed, widths(setting, task.keep)))
            own = [self._widths[client] for client in listed]
        one = parts == "sliced or compact" and whole_is_faster(own, setting.neurons.size) and self._may_compact(task)
        return [()] * len(own) if one else own

    def _cuts(self, task: Task) -> bool:
        """Whether this task makes really smaller networks."""
        return task.keep is not None and self.plan.parts in ("sliced", "compact", "sliced or compact")

    def _may_compact(self, task: Task) -> bool:
        """Whether networks of several sizes can be trained together for this task: hidden neurons alone are cut."""
        if self.plan.parts not in ("compact", "sliced or compact") or task.keep is None or task.mask is None:
            return False
        return task.keep.shape[1] == self.clients.setting.neurons.size > 0


def local_engine(
    clients: Clients,
    chunk: int | None = None,
    precision: Precision = "default",
    sliced: bool = True,
    chosen: Chosen | None = None,
    graphs: Graphs | None = None,
) -> Local:
    """The engine for these clients, with the fastest gradient and the plan of steps that fit them.

    `chunk`: clients trained at once; None: as many as fit. `sliced`: sub-models may be cut. `chosen`: a gradient that
    was chosen before for an equal network on the same data. `graphs`: takes steps in static buffers; by default a GPU's
    are captured, and a CPU has none.
    """
    device = clients.data.x.device
    chosen = chosen or fastest_gradient(clients.setting, clients.data, precision)
    if graphs is None and device.type == "cuda":
        graphs = Graphs()
    plan = plan_steps(facts_of(clients, chosen.gradient, chosen.slower, sliced, graphs is not None))
    if chunk is None:
        chunk = max(1, training_budget(device) // client_bytes(clients.method, clients.setting))
    return Local(clients, chosen, plan, chunk, graphs if graphs is not None and plan.captured else take_steps)
