"""What stands still while a cohort's steps are replayed: its weights and all that the steps read, each in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedloom.core.optimiser import Sgd
from fedloom.core.rows import rows
from fedloom.core.types import Batch, State, column
from fedloom.engine.client import Start
from fedloom.engine.cuda.momentum import move
from fedloom.engine.cuda.row_scaling import Scaled
from fedloom.engine.gradient.products import Step
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.engine.ways import links_of, ways

if TYPE_CHECKING:
    from fedloom.engine.cuda.compact import Narrow
    from fedloom.engine.cuda.mlp_step import Linked


def even(active: list[int], clients: int) -> bool:
    """Does everyone take every step?"""
    return all(now == clients for now in active)


class Course:
    """Buffers for cohorts of up to `clients` and courses of up to `steps`, and the step itself."""

    def __init__(self, start: Start, steps: int) -> None:
        method, gradient, data, task, state, moments, first, batches, held = start
        self.method, self.gradient, self.data = method, gradient, data
        self.clients, _, width = batches.examples.shape
        self.steps, self.device = steps, first.device
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self.pool: Any = None  # memory of these graphs, of which none runs beside another
        rule, optimiser = method.local, method.optimiser
        # the step is fused into the backward pass; what the mask holds in place is put back afterwards
        self.fused, self.heavy = ways(method, gradient)
        self.apart = self.fused or self.heavy  # every tensor by itself
        self.narrow = self._narrow(start) if held else None
        stacked = gradient if isinstance(gradient, StackedGradient) and self.apart else None
        self.scaled = Scaled(stacked.layout, first) if stacked and rule.traits.scales else None
        self.corrects = rule.traits.corrects and self.scaled is None
        self.held = rule.trains(task) is not None and self.narrow is None
        self.rate = torch.zeros((), dtype=torch.float64, device=self.device)
        self.round = torch.zeros((), dtype=torch.int64, device=self.device)
        self.task = task._replace(
            model=task.model.clone(),
            rate=self.rate,  # type: ignore[arg-type]  # rules compute with it and never ask for its value
            round=self.round,  # type: ignore[arg-type]
            mask=None if task.mask is None or self.apart else _like(task.mask),
            keep=None if task.keep is None else _like(task.keep),
            share=_like(task.share),
            authorised=_like(task.authorised),
            extras={name: _like(value) for name, value in task.extras.items()} if self.corrects else {},
            ids=None if task.ids is None else _like(task.ids),
        )
        self.state = {name: _like(value) for name, value in state.items()} if self.corrects else {}
        kept = moments or ({} if self.apart else optimiser.begin(first[:, : task.trained]))
        self.moments = {name: _like(value) for name, value in kept.items()}
        self.first = _like(first) if self.corrects or (self.held and not self.apart) else None
        self.params = first.new_zeros(0) if self.apart else _like(first)
        self.tensors: dict[str, Tensor] = {}
        if self.narrow is not None:
            self.tensors = self.narrow.tensors
            assert isinstance(gradient, StackedGradient)
            self.gradient = gradient.keeping(self.narrow.counts)
        elif stacked is not None:  # so that products can take steps in place
            self.tensors = {name: _like(t) for name, t in stacked.layout.split(first).items()}
        self.may: dict[str, Tensor] = {}  # where a mask holds numbers in place: which may move, and what the rest are
        self.old: dict[str, Tensor] = {}
        self.rest: dict[str, Tensor] = {}  # which may not, where that is zero
        if self.apart and self.held:
            self.may = {name: torch.zeros_like(t, dtype=torch.bool) for name, t in self.tensors.items()}
            self.old = {} if rule.traits.cuts else {name: torch.zeros_like(t) for name, t in self.tensors.items()}
            self.rest = {name: torch.zeros_like(m) for name, m in self.may.items()} if rule.traits.cuts else {}
        light = optimiser.momentum == 0 and links_of(method, gradient, data) is not None
        names = stacked.layout.parameters if stacked and self.heavy and not light else ()
        self.velocity = {name: torch.zeros_like(self.tensors[name]) for name in names}
        self.losses = first.new_zeros(self.clients)
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)  # of the step
        self.taken = torch.zeros_like(batches.steps)  # [C] how many steps each takes
        self.examples = torch.zeros((steps, self.clients, width), dtype=torch.int64, device=self.device)
        self.weight = first.new_zeros((steps, self.clients, width))
        self.keys = torch.zeros((steps, self.clients), dtype=torch.int64, device=self.device)
        self.linked = self._linked()
        if self.linked is not None:  # its kernels do not move what may not
            self.old, self.rest = {}, {}

    def _linked(self) -> Linked | None:
        """Kernels for the whole step, where the network is a chain of linear layers."""
        links = links_of(self.method, self.gradient, self.data)
        if links is None:
            return None
        from fedloom.engine.cuda.mlp_step import Linked

        return Linked(links, self)

    def _narrow(self, start: Start) -> Narrow:
        """Ways to leave out the neurons that clients do not keep."""
        from fedloom.engine.cuda.compact import Narrow

        assert isinstance(self.gradient, StackedGradient)
        clear = links_of(self.method, self.gradient, self.data) is None  # kernels for chains never read the rest
        return Narrow(self.gradient.setting.neurons, self.gradient.layout, start.first, clear)

    def moving(self) -> list[Tensor]:
        """What a step changes."""
        return [
            *self.tensors.values(),
            *self.velocity.values(),
            self.params,
            self.losses,
            self.number,
            *self.moments.values(),
            *(() if self.linked is None else (self.linked.losses,)),
        ]

    def fill(self, start: Start) -> None:
        """A round's values in their places; rows beyond the cohort take no step."""
        task, first, batches = start.task, start.first, start.batches
        here, some = slice(len(first)), slice(batches.examples.shape[1])
        self.cohort = len(first)
        self.rate.fill_(task.rate)
        if not self.apart:  # else no step reads the task
            for name in ("mask", "keep", "share", "authorised", "ids"):
                _put(getattr(self.task, name), getattr(task, name))
            self.task.model.copy_(task.model)
            self.round.fill_(task.round)
        for mine, given in ((self.task.extras, task.extras), (self.state, start.state), (self.moments, start.moments)):
            for name, value in mine.items():
                if name in given:
                    _put(value, given[name])
                else:
                    value.zero_()  # moments that begin anew
        _put(self.first, first)
        if self.tensors:
            assert isinstance(self.gradient, StackedGradient)
            trains, layout = self.method.local.trains(task) if self.held else None, self.gradient.layout
            if self.scaled is not None:
                self.scaled.begin(self.method.local.scales(task, self.scaled.at, first.dtype), first)
            if self.narrow is not None and task.keep is not None:
                self.narrow.begin(task.keep, first, self.scaled)
            else:
                begin = layout.split(first) if self.scaled is None else self.scaled.products()
                _copy(self.tensors, begin)
                _copy(self.old, begin)
            if trains is not None:
                _copy(self.may, layout.split(trains))
            for name, value in self.rest.items():
                torch.logical_not(self.may[name], out=value)
        else:
            self.params[here] = first
        if self.velocity:
            torch._foreach_zero_(list(self.velocity.values()))
        weight = batches.real.to(first.dtype)
        weight /= weight.sum(2, keepdim=True)
        (self.losses if self.linked is None else self.linked.losses).zero_()
        self.number.zero_()
        if len(first) < self.clients:
            self.taken.zero_()
        self.taken[here] = batches.steps
        self.examples[some, here] = batches.examples.transpose(0, 1)
        self.weight[some, here] = weight.transpose(0, 1)
        if self.linked is None:
            self.keys[some, here] = batches.keys.transpose(0, 1)

    def step(self, size: int, alike: bool) -> None:
        """One step of the first `size` clients; unless all are `alike`, some of them have no step left to take."""
        if self.linked is not None:
            self.linked.step(size)
            self.number += 1
            return
        now = slice(size)
        index, weight, keys = (
            value.index_select(0, self.number)[0, now] for value in (self.examples, self.weight, self.keys)
        )
        works = self.taken[now] > self.number
        if not alike:
            weight = weight * works[:, None]
        x = self.data.x.index_select(0, index.flatten()).unflatten(0, index.shape)
        batch = Batch(x, self.data.y[index], weight, keys)
        way = self._fused if self.fused else self._heavy if self.heavy else self._plain
        losses = way(now, batch, works, alike)
        self.losses[now] += losses
        self.number += 1

    def _fused(self, now: slice, batch: Batch, works: Tensor, alike: bool) -> Tensor:
        """The step as part of the backward pass. Without weight a gradient is zero; decay and statistics are not."""
        assert isinstance(self.gradient, StackedGradient)
        layout, decay = self.gradient.layout, self.method.optimiser.weight_decay
        here = {name: value[now] for name, value in self.tensors.items()}
        names = list(layout.names if decay else layout.names[len(layout.parameters) :])
        before = {} if alike else {name: here[name].clone() for name in names}
        step = Step(self.rate, 1 - self.rate * decay if decay else 1.0)
        losses = self.gradient.advance(here, batch, step)
        for name, old in before.items():
            here[name].copy_(torch.where(works.view(-1, *(1,) * (old.dim() - 1)), here[name], old))
        for name in self.may:
            self._hold(name, here[name], now)
        return losses

    def _heavy(self, now: slice, batch: Batch, works: Tensor, alike: bool) -> Tensor:
        """A step with momentum, tensor by tensor; of what is not trained only the mask and the rows decide."""
        assert isinstance(self.gradient, StackedGradient)
        assert isinstance(self.method.optimiser, Sgd)
        momentum, decay = self.method.optimiser.momentum, self.method.optimiser.weight_decay
        here = {name: value[now] for name, value in self.tensors.items()}
        rest = [name for name in here if name not in self.velocity]
        before = {} if alike else {name: here[name].clone() for name in rest}
        losses, grads = self.gradient.slopes(here, batch)
        for name, grad in grads.items():
            may = self.may[name][now] if self.may else None
            speed = self.velocity[name][now]
            if self.scaled is not None:
                grad = self.scaled.slowed(name, grad)
            move(here[name], grad, speed, None if alike else works, may, self.rate, momentum, decay)
        for name, old in before.items():
            here[name].copy_(torch.where(column(works, old), here[name], old))
        for name in rest if self.may else ():
            self._hold(name, here[name], now)
        return losses

    def _hold(self, name: str, here: Tensor, now: slice) -> None:
        """Put back what may not move; where the rest of the network is not there, that is zero."""
        if name in self.old:
            torch.where(self.may[name][now], here, self.old[name][now], out=here)
        else:
            here.masked_fill_(self.rest[name][now], 0)

    def _plain(self, now: slice, batch: Batch, works: Tensor, alike: bool) -> Tensor:
        """Differentiate, correct, move, as `client.walk` does."""
        rule, trained, part = self.method.local, self.task.trained, self.task.rows(now)
        here, moments, first = self.params[now], rows(self.moments, now), self.params[now]
        if self.first is not None:
            first = self.first[now]
        before = [] if alike else [value.clone() for value in (here, *moments.values())]
        seen = rule.view(part, here)
        grads, losses = self.gradient(seen, batch)
        if seen is not here:
            here[:, trained:] = seen[:, trained:]  # running statistics moved in what ran
        if self.corrects:
            grads = rule.correct(part, rows(self.state, now), first, here, grads)
        trains = rule.trains(part)
        may = None if trains is None else trains[:, :trained]
        self.method.optimiser.step(moments, here[:, :trained], grads[:, :trained], part.rate, may)
        for value, old in zip((here, *moments.values()), before):
            value.copy_(torch.where(works.view(-1, *(1,) * (old.dim() - 1)), value, old))
        return losses

    def result(self, moments: State) -> tuple[Tensor, Tensor]:
        """The cohort's weights and summed losses, copied; kept moments are written into those given."""
        for name, value in moments.items():
            value.copy_(self.moments[name][: len(value)])
        if not self.tensors:
            params = self.params[: self.cohort].clone()
            trains = self.method.local.trains(self.task.rows(slice(self.cohort)))
            if trains is not None and self.first is not None:  # running statistics outside the mask stay too
                params = torch.where(trains, params, self.first[: self.cohort])
            return params, self.losses[: self.cohort].clone()
        assert isinstance(self.gradient, StackedGradient)
        if self.narrow is not None:
            last = self.narrow.end(self.cohort, self.scaled)
        else:
            mine = {name: _first(t, self.cohort) for name, t in self.tensors.items()}
            last = self.gradient.layout.join(mine if self.scaled is None else self.scaled.end(mine), 1)
        if self.linked is not None:
            return last, self.linked.losses[: self.cohort].sum(1)
        return last, self.losses[: self.cohort].clone()


def _like(value: Tensor) -> Tensor:
    """A place for such a value; expanded ones get memory of their own."""
    return torch.zeros_like(value, memory_format=torch.contiguous_format)


def _copy(places: State, values: State) -> None:
    """The first rows of many places; one call, since on a GPU calls are what this costs."""
    if places:
        count = len(next(iter(values.values())))
        torch._foreach_copy_([_first(place, count) for place in places.values()], [values[name] for name in places])


def _first(place: Tensor, count: int) -> Tensor:
    """The first rows of a place; it is all of them more often than not."""
    return place if len(place) == count else place[:count]


def _put(place: Tensor | None, value: Tensor | None) -> None:
    """The first rows of a place."""
    if place is not None and value is not None:
        place[: len(value)] = value
