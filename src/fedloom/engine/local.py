"""The engine that trains a cohort as matrices on one device, in chunks that fit its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any, get_args

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
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.lanes import Lanes, OneClient, why_not_channels_last
from fedloom.engine.personal import personal_score
from fedloom.engine.plan import ClientWay, StepPlan, plan_steps
from fedloom.engine.sliced import SliceCounts, learn_sliced, whole_is_faster, widths
from fedloom.engine.steps import Start, Steps, take_steps
from fedloom.engine.storage.placement import client_bytes, training_budget
from fedloom.errors import BadExperiment

Measured = tuple[tuple[str, float], ...]  # ways, and milliseconds of a client's step
Pick = Callable[["Engines"], tuple[ClientWay, Measured]]
Trainer = Callable[[list[Chunk]], list[tuple[Learnt, State]]]  # trains the chunks of a round


class Local:
    """A cohort as matrices; within a chunk clients are in falling order of their steps."""

    def __init__(
        self,
        clients: Clients,
        chosen: Chosen,
        plan: StepPlan,
        chunk: int,
        steps: Steps = take_steps,
        lanes: Lanes | None = None,
        turned: Callable[[ClientWay], Local] | None = None,
    ) -> None:
        """`chunk`: how many clients train at once, at most. `steps` takes their steps as the plan says.

        `lanes` train clients one by one, where the plan says so. `turned` makes this engine for another such way.
        """
        self.clients, self.chosen, self.plan, self.chunk, self.lanes = clients, chosen, plan, chunk, lanes
        self.turned = turned
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
        width, most = self._widths_of(listed, task), self.chunk if self.lanes is None else 1
        rank = [(own, -taken) for own, taken in zip(width, steps)]
        order = sorted(range(len(listed)), key=rank.__getitem__)  # ties keep their order
        chunks = []
        for _, bucket in groupby(order, key=lambda place: width[place]):
            places = list(bucket)
            chunks += [places[a : a + most] for a in range(0, len(places), most)]
        lists = [[listed[p] for p in places] for places in chunks]
        facts = [(ids, own, places, task, chance, width[places[0]]) for own, places in zip(lists, chunks)]
        apart = len(chunks) == len(set(width)) and len(listed) <= self.chunk and clients.met(listed)
        if self._trainer is not None:
            gathered = [clients.gather(*each) for each in facts]
            learnt = self._trainer(gathered)
            replies = [clients.finish(chunk, *own, self.gradient, chance) for chunk, own in zip(gathered, learnt)]
        elif self.lanes is not None:
            replies = self._in_lanes(self.lanes, facts, chance)
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

    def settle(self, ids: list[int]) -> None:
        """New states of clients whose tasks have ended."""
        self.clients.settle(ids)

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

    def learn(self, chunk: Chunk, lane: OneClient | None = None) -> tuple[Learnt, State]:
        """Train a chunk's rows, in a lane if there is one; nothing else of the engine changes."""
        if lane is None and self.lanes is not None:
            lane = self.lanes.first
        clients, task = self.clients, chunk.task
        gradient: Gradient = self.gradient if lane is None else lane
        setting = clients.setting if lane is None else lane.setting
        partial_task = task.keep is not None and task.mask is not None
        neurons = clients.setting.neurons if partial_task else None
        frozen = partial_task and self.plan.parts == "frozen"
        compact = self._may_compact(task) and chunk.width == ()
        if frozen and gradient.stacked is not None and task.keep is not None and task.mask is not None:
            gradient = gradient.stacked.freezing(task.keep, task.mask)
        start = Start(
            clients.method, setting, gradient, self.plan, chunk.data, task, chunk.state, {}, chunk.params,
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

    def _in_lanes(self, lanes: Lanes, facts: Sequence[tuple[Any, ...]], chance: Chance) -> list[Reply]:
        """Every client by itself. Examples and states are read, and replies made, in order and in this thread."""

        def gathered() -> Iterator[Chunk]:
            for each, (_, then, *_) in zip(facts, [*facts[1:], (None, [])]):
                self.clients.shards.prefetch(then)
                yield self.clients.gather(*each)

        with closing(lanes.each(lambda lane, chunk: self.learn(chunk, lane), gathered())) as done:
            return [self.clients.finish(chunk, *learnt, self.gradient, chance) for chunk, learnt in done]

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


@dataclass(frozen=True)
class Engines:
    """The engines that differ in nothing but how clients share the cores."""

    clients: Clients
    chosen: Chosen
    chunk: int
    sliced: bool = True
    graphs: Graphs | None = None

    def ways(self) -> list[ClientWay]:
        """The ways that fit; without measuring the first is taken."""
        return [way for way in get_args(ClientWay) if not self.why_not(way)]

    def why_not(self, way: ClientWay) -> str:
        """Why clients cannot train this way; empty if they can."""
        clients, gradient = self.clients, self.chosen.gradient
        if way == "together":
            return "and this network's clients train one by one" if gradient.kind == "one by one" else ""
        if gradient.kind == "one by one" and way == "in-turn":
            return ""
        if clients.data.x.device.type != "cpu":
            return "which is for CPUs"
        if gradient.low:
            return "and products that round to bfloat16 are of clients together"
        if self._together.parts == "frozen":
            return "and what a client was not sent is frozen, which is of clients together"
        if way.startswith("per-core") and not clients.shards.resident:
            return "and examples are fetched for one client after another"
        return why_not_channels_last(clients.setting, clients.data) if way.endswith("channels-last") else ""

    @cached_property
    def _together(self) -> StepPlan:
        """The plan of clients that train together, with the fastest gradient."""
        captured, slower = self.graphs is not None, self.chosen.slower
        return plan_steps(facts_of(self.clients, self.chosen.gradient, slower, self.sliced, captured))

    @property
    def known(self) -> bool:
        """Whether nothing need be measured: the C code and a GPU's kernels are fastest."""
        return self.clients.data.x.is_cuda or self._together.steps[0] == "native" or len(self.ways()) == 1

    def by(self, way: ClientWay, measured: Measured = (), clients: Clients | None = None) -> Local:
        """The engine whose clients train this way; `clients` may stand in for its own."""
        if way == "together":
            lanes, plan, steps = None, self._together, take_steps if self.graphs is None else self.graphs
            steps = steps if self._together.captured else take_steps
        else:
            steps, apart, last = take_steps, way.startswith("per-core"), way.endswith("channels-last")
            lanes = Lanes(self.clients.setting, last, apart, self.chunk)
            slower = self.chosen.slower
            if (kind := self.chosen.gradient.kind) != "one by one":
                slower = (*slower, (kind, f"clients train {way}"))
            plan = plan_steps(facts_of(self.clients, OneClient(self.clients.setting), slower, self.sliced))
        plan = replace(plan, clients=way, measured=measured)
        return Local(clients or self.clients, self.chosen, plan, self.chunk, steps, lanes, self.fitting)

    def fitting(self, way: ClientWay) -> Local:
        """The engine whose clients train this way, if they can."""
        if why := self.why_not(way):
            raise BadExperiment(f"way is '{way}', {why}; these fit: {', '.join(self.ways())}, or auto.")
        return self.by(way)


def local_engine(
    clients: Clients,
    chunk: int | None = None,
    precision: Precision = "default",
    sliced: bool = True,
    chosen: Chosen | None = None,
    graphs: Graphs | None = None,
    way: ClientWay | None = None,
    pick: Pick | None = None,
) -> Local:
    """The engine for these clients, with the fastest gradient and the plan of steps that fit them.

    `chunk`: clients trained at once; None: as many as fit. `sliced`: sub-models may be cut. `chosen`: a gradient that
    was chosen before for an equal network on the same data. `graphs`: takes steps in static buffers; by default a GPU's
    are captured, and a CPU has none. `way`: how clients share the cores; None: as `pick` chooses among the ways that
    fit, or the first of them.
    """
    device = clients.data.x.device
    chosen = chosen or fastest_gradient(clients.setting, clients.data, precision)
    if graphs is None and device.type == "cuda":
        graphs = Graphs()
    if chunk is None:
        chunk = max(1, training_budget(device) // client_bytes(clients.method, clients.setting))
    engines = Engines(clients, chosen, chunk, sliced, graphs)
    if way is not None:
        return engines.fitting(way)
    return engines.by(engines.ways()[0]) if pick is None or engines.known else engines.by(*pick(engines))
