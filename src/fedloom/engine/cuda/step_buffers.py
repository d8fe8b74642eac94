"""Static buffers for a captured training step: the cohort's weights and everything that a step reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedloom.core.rows import rows
from fedloom.core.types import Batch, State, column
from fedloom.engine.cuda.momentum import momentum_step
from fedloom.engine.cuda.row_scaling import RowScaling
from fedloom.engine.feed import gather, weights
from fedloom.engine.gradient.products import Step
from fedloom.engine.steps import Start

if TYPE_CHECKING:
    from fedloom.engine.cuda.compact import Compact
    from fedloom.engine.cuda.mlp_step import MlpStep


def is_uniform(active: list[int], clients: int) -> bool:
    """Whether every client takes every step."""
    return all(now == clients for now in active)


class StepBuffers:
    """Buffers for at most `clients` clients and `steps` steps, and the training step that reads and writes them."""

    def __init__(self, start: Start, steps: int) -> None:
        method, gradient, data, task, first, batches = (
            start.method, start.gradient, start.data, start.task, start.first, start.batches,
        )  # fmt: skip
        self.method, self.gradient, self.data = method, gradient, data
        self.goal, self.transform = start.setting.goal, start.setting.transform
        self.weighs_late = self.goal.weigh is not None and self.transform is not None  # what it made of targets counts
        self.clients, _, width = batches.examples.shape
        self.steps, self.device = steps, first.device
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self.pool: Any = None  # memory shared by these graphs: no two of them run at the same time
        rule, optimiser = method.local, method.optimiser
        self.way = start.plan.steps[0]  # fused: numbers that a mask holds are put back after the step
        self.per_tensor = self.way != "autograd"  # one buffer per tensor, not one [C, P]
        self.compact = self._make_compact(start) if start.held else None
        stacked = gradient.stacked if self.per_tensor else None
        self.scaling = RowScaling(stacked.layout, first) if stacked and rule.traits.scales else None
        self.corrects = rule.traits.corrects and self.scaling is None
        self.masked = rule.trains(task) is not None and self.compact is None
        self.rate = torch.zeros((), dtype=torch.float64, device=self.device)
        self.round = torch.zeros((), dtype=torch.int64, device=self.device)
        self.task = task._replace(
            model=task.model.clone(),
            rate=self.rate,  # type: ignore[arg-type]  # rules compute with it and never read its value on the host
            round=self.round,  # type: ignore[arg-type]
            mask=None if task.mask is None or self.per_tensor else _buffer_like(task.mask),
            keep=None if task.keep is None else _buffer_like(task.keep),
            share=_buffer_like(task.share),
            authorised=_buffer_like(task.authorised),
            extras={name: _buffer_like(value) for name, value in task.extras.items()} if self.corrects else {},
            ids=None if task.ids is None else _buffer_like(task.ids),
        )
        self.state = {name: _buffer_like(value) for name, value in start.state.items()} if self.corrects else {}
        kept = start.moments or ({} if self.per_tensor else optimiser.begin(first[:, : task.trained]))
        self.moments = {name: _buffer_like(value) for name, value in kept.items()}
        self.first = _buffer_like(first) if self.corrects or (self.masked and not self.per_tensor) else None
        self.params = first.new_zeros(0) if self.per_tensor else _buffer_like(first)
        self.tensors: dict[str, Tensor] = {}
        if self.compact is not None:
            self.tensors = self.compact.tensors
            assert stacked is not None
            self.gradient = stacked = stacked.keeping(self.compact.counts)
        elif stacked is not None:  # so that products can take steps in place
            self.tensors = {name: _buffer_like(t) for name, t in stacked.layout.split(first).items()}
        self.movable: dict[str, Tensor] = {}  # where a mask holds numbers: True for those that a step changes
        self.held_values: dict[str, Tensor] = {}  # what the others are put back to
        self.zeroed: dict[str, Tensor] = {}  # `~movable`, where the others are put back to zero
        if self.per_tensor and self.masked:
            self.movable = {name: torch.zeros_like(t, dtype=torch.bool) for name, t in self.tensors.items()}
            cuts = rule.traits.cuts
            self.held_values = {} if cuts else {name: torch.zeros_like(t) for name, t in self.tensors.items()}
            self.zeroed = {name: torch.zeros_like(m) for name, m in self.movable.items()} if cuts else {}
        moving = self.way == "momentum" or (self.way == "kernels" and optimiser.momentum > 0)
        names = stacked.layout.parameters if stacked and moving else ()
        self.velocity = {name: torch.zeros_like(self.tensors[name]) for name in names}
        self.losses = first.new_zeros(self.clients)
        self.step_index = torch.zeros(1, dtype=torch.int64, device=self.device)  # of the next step
        self.step_counts = torch.zeros_like(batches.steps)  # [C] steps that each client takes
        self.examples = torch.zeros((steps, self.clients, width), dtype=torch.int64, device=self.device)
        self.weight = first.new_zeros((steps, self.clients, width))
        self.keys = torch.zeros((steps, self.clients), dtype=torch.int64, device=self.device)
        self.stacked = stacked
        self.mlp_step = self._make_mlp_step(start) if self.way == "kernels" else None
        if self.mlp_step is not None:  # its kernels leave held numbers alone
            self.held_values, self.zeroed = {}, {}

    def _make_mlp_step(self, start: Start) -> MlpStep:
        """Kernels for the whole step of linear layers in a row."""
        from fedloom.engine.cuda.mlp_step import MlpStep

        return MlpStep(start.plan.layers, self)

    def _make_compact(self, start: Start) -> Compact:
        """Buffers in which the neurons that a client keeps come first, so that kernels leave out the others."""
        from fedloom.engine.cuda.compact import Compact

        assert start.neurons is not None
        clear = self.way != "kernels"  # kernels for whole steps never read beyond the kept neurons
        return Compact(start.neurons, start.gradient.layout, start.first, clear)

    def changed_tensors(self) -> list[Tensor]:
        """Tensors that a step changes."""
        return [
            *self.tensors.values(),
            *self.velocity.values(),
            self.params,
            self.losses,
            self.step_index,
            *self.moments.values(),
            *(() if self.mlp_step is None else (self.mlp_step.losses,)),
        ]

    def fill(self, start: Start) -> None:
        """Copy a round's values into the buffers; rows beyond the cohort take no step."""
        task, first, batches = start.task, start.first, start.batches
        here, some = slice(len(first)), slice(batches.examples.shape[1])
        self.cohort = len(first)
        self.rate.fill_(task.rate)
        if not self.per_tensor:  # else no step reads the task
            for name in ("mask", "keep", "share", "authorised", "ids"):
                _fill_rows(getattr(self.task, name), getattr(task, name))
            self.task.model.copy_(task.model)
            self.round.fill_(task.round)
        for mine, given in ((self.task.extras, task.extras), (self.state, start.state), (self.moments, start.moments)):
            for name, value in mine.items():
                if name in given:
                    _fill_rows(value, given[name])
                else:
                    value.zero_()  # moments that start from zero every round
        _fill_rows(self.first, first)
        if self.tensors:
            trains, layout = self.method.local.trains(task) if self.masked else None, self.gradient.layout
            if self.scaling is not None:
                self.scaling.begin(self.method.local.scales(task, self.scaling.at, first.dtype), first)
            if self.compact is not None and task.keep is not None:
                self.compact.begin(task.keep, first, self.scaling)
            else:
                begin = layout.split(first) if self.scaling is None else self.scaling.products()
                _copy_rows(self.tensors, begin)
                _copy_rows(self.held_values, begin)
            if trains is not None:
                _copy_rows(self.movable, layout.split(trains))
            for name, value in self.zeroed.items():
                torch.logical_not(self.movable[name], out=value)
        else:
            self.params[here] = first
        if self.velocity:
            torch._foreach_zero_(list(self.velocity.values()))
        weight = batches.real
        if not self.weighs_late:
            weight = weights(self.goal, self.data.y[batches.examples], weight, first.dtype)
        (self.losses if self.mlp_step is None else self.mlp_step.losses).zero_()
        self.step_index.zero_()
        if len(first) < self.clients:
            self.step_counts.zero_()
        self.step_counts[here] = batches.steps
        self.examples[some, here] = batches.examples.transpose(0, 1)
        self.weight[some, here] = weight.transpose(0, 1)
        if self.mlp_step is None:
            self.keys[some, here] = batches.keys.transpose(0, 1)

    def step(self, size: int, uniform: bool) -> None:
        """Take one step of the first `size` clients; unless `uniform`, some of them have no step left to take."""
        if self.mlp_step is not None:
            self.mlp_step.step(size)
            self.step_index += 1
            return
        now = slice(size)
        index, weight, keys = (
            value.index_select(0, self.step_index)[0, now] for value in (self.examples, self.weight, self.keys)
        )
        stepping = self.step_counts[now] > self.step_index
        x, y = gather(self.data, index, weight, keys, self.transform)
        if self.weighs_late:
            weight = weights(self.goal, y, weight, weight.dtype)
        if not uniform:
            weight = weight * stepping[:, None]
        batch = Batch(x, y, weight, keys)
        take = {"fused": self._fused_step, "momentum": self._momentum_step}.get(self.way, self._plain_step)
        losses = take(now, batch, stepping, uniform)
        self.losses[now] += losses
        self.step_index += 1

    def _fused_step(self, now: slice, batch: Batch, stepping: Tensor, uniform: bool) -> Tensor:
        """Step inside the backward pass; without weight a gradient is zero, but decay and statistics are put back."""
        assert self.stacked is not None
        layout, decay = self.stacked.layout, self.method.optimiser.weight_decay
        here = {name: value[now] for name, value in self.tensors.items()}
        names = list(layout.names if decay else layout.names[len(layout.parameters) :])
        before = {} if uniform else {name: here[name].clone() for name in names}
        step = Step(self.rate, 1 - self.rate * decay if decay else 1.0)
        losses = self.stacked.advance(here, batch, step)
        for name, old in before.items():
            here[name].copy_(torch.where(stepping.view(-1, *(1,) * (old.dim() - 1)), here[name], old))
        for name in self.movable:
            self._restore(name, here[name], now)
        return losses

    def _momentum_step(self, now: slice, batch: Batch, stepping: Tensor, uniform: bool) -> Tensor:
        """Step with momentum, tensor by tensor; running statistics have no velocity and are put back afterwards."""
        assert self.stacked is not None
        momentum, decay = self.method.optimiser.momentum, self.method.optimiser.weight_decay
        here = {name: value[now] for name, value in self.tensors.items()}
        rest = [name for name in here if name not in self.velocity]
        before = {} if uniform else {name: here[name].clone() for name in rest}
        losses, grads = self.stacked.slopes(here, batch)
        for name, grad in grads.items():
            movable = self.movable[name][now] if self.movable else None
            speed = self.velocity[name][now]
            if self.scaling is not None:
                grad = self.scaling.scale_gradient(name, grad)
            momentum_step(here[name], grad, speed, None if uniform else stepping, movable, self.rate, momentum, decay)
        for name, old in before.items():
            here[name].copy_(torch.where(column(stepping, old), here[name], old))
        for name in rest if self.movable else ():
            self._restore(name, here[name], now)
        return losses

    def _restore(self, name: str, here: Tensor, now: slice) -> None:
        """Put back numbers that the mask holds: to what they were, or to zero where the rest of the network is cut."""
        if name in self.held_values:
            torch.where(self.movable[name][now], here, self.held_values[name][now], out=here)
        else:
            here.masked_fill_(self.zeroed[name][now], 0)

    def _plain_step(self, now: slice, batch: Batch, stepping: Tensor, uniform: bool) -> Tensor:
        """Differentiate, correct and step, as `engine.steps` does without buffers."""
        rule, trained, part = self.method.local, self.task.trained, self.task.rows(now)
        here, moments, first = self.params[now], rows(self.moments, now), self.params[now]
        if self.first is not None:
            first = self.first[now]
        before = [] if uniform else [value.clone() for value in (here, *moments.values())]
        seen = rule.view(part, here)
        moving = None if seen is here else seen[:, trained:] == here[:, trained:]  # statistics that are not scaled
        grads, losses = self.gradient(seen, batch)
        if moving is not None:  # in what ran
            here[:, trained:] = torch.where(moving, seen[:, trained:], here[:, trained:])
        if self.corrects:
            grads = rule.correct(part, rows(self.state, now), first, here, grads)
        trains = rule.trains(part)
        movable = None if trains is None else trains[:, :trained]
        self.method.optimiser.step(moments, here[:, :trained], grads[:, :trained], part.rate, movable)
        for value, old in zip((here, *moments.values()), before):
            value.copy_(torch.where(stepping.view(-1, *(1,) * (old.dim() - 1)), value, old))
        return losses

    def result(self, moments: State) -> tuple[Tensor, Tensor]:
        """Copies of the cohort's weights [C, P] and summed losses [C]; kept moments are written into `moments`."""
        for name, value in moments.items():
            value.copy_(self.moments[name][: len(value)])
        if not self.tensors:
            params = self.params[: self.cohort].clone()
            trains = self.method.local.trains(self.task.rows(slice(self.cohort)))
            if trains is not None and self.first is not None:  # running statistics outside the mask stay as well
                params = torch.where(trains, params, self.first[: self.cohort])
            return params, self.losses[: self.cohort].clone()
        if self.compact is not None:
            last = self.compact.end(self.cohort, self.scaling)
        else:
            mine = {name: _first_rows(t, self.cohort) for name, t in self.tensors.items()}
            last = self.gradient.layout.join(mine if self.scaling is None else self.scaling.end(mine), 1)
        if self.mlp_step is not None:
            return last, self.mlp_step.losses[: self.cohort].sum(1)
        return last, self.losses[: self.cohort].clone()


def _buffer_like(value: Tensor) -> Tensor:
    """A buffer of zeros for values like this one; an expanded value gets memory for every row."""
    return torch.zeros_like(value, memory_format=torch.contiguous_format)


def _copy_rows(buffers: State, values: State) -> None:
    """Fill the first rows of many buffers in one call: on a GPU the number of calls decides the time."""
    if buffers:
        count = len(next(iter(values.values())))
        torch._foreach_copy_(
            [_first_rows(buffer, count) for buffer in buffers.values()], [values[name] for name in buffers]
        )


def _first_rows(buffer: Tensor, count: int) -> Tensor:
    """The first `count` rows of a buffer, without a view where that is all of them (as it mostly is)."""
    return buffer if len(buffer) == count else buffer[:count]


def _fill_rows(buffer: Tensor | None, value: Tensor | None) -> None:
    """Fill the first rows of a buffer; nothing where either is None."""
    if buffer is not None and value is not None:
        buffer[: len(value)] = value
