"""Training of sub-models as really smaller networks; clients that keep equally many neurons train together."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.core.types import Setting, State, Task
from fedloom.engine.client import Learnt, learn
from fedloom.engine.steps import Start, Steps
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.slicing import slice_index, slice_shapes, slices


def widths(setting: Setting, keep: Tensor | None) -> list[tuple[int, ...]]:
    """The number of neurons that each client keeps of every group."""
    assert keep is not None
    counts = [keep[:, span].sum(1) for _, span in setting.neurons.spans(keep.shape[1])]
    return [tuple(row) for row in torch.stack(counts, 1).tolist()] if counts else [()] * len(keep)


def whole_is_faster(own: list[tuple[int, ...]], neurons: int) -> bool:
    """Whether one bucket of whole networks with zeros is faster: clients have many sizes and keep many neurons."""
    return len(set(own)) > 2 and 3 * sum(map(sum, own)) >= len(own) * neurons


class SliceCounts:
    """The number of entries that are kept of every list of the neurons' map, cached by a sub-model's width."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._counts = setting, dict[tuple[int, ...], tuple[int, ...]]()

    def of(self, width: tuple[int, ...], task: Task) -> tuple[int, ...]:
        """The counts for clients of this width; reading them from the task's keep waits for the device once."""
        if width not in self._counts:
            assert task.keep is not None
            self._counts[width] = tuple(slices(self._setting.neurons, task.keep)[1])
        return self._counts[width]


def learn_sliced(start: Start, setting: Setting, counts: tuple[int, ...], steps: Steps) -> tuple[Learnt, State]:
    """Cut sub-models out, train them, put them back. Clients keep equally many neurons of every group, each its own.

    `counts`: the number of entries that are kept of every list of the neurons' map.
    """
    task, state = start.task, start.state
    assert task.keep is not None
    (index,), shapes = _placed((task.keep,), setting.neurons, counts), slice_shapes(setting.neurons, counts)  # [C, p]
    total = setting.layout.total
    layout = setting.layout._replace(shapes=shapes)

    places = {total: index, setting.layout.trained: index[:, : layout.trained]}  # moments are of trained numbers only

    def places_of(value: Tensor) -> Tensor | None:
        """Places of a sub-model's numbers in rows of this length; None: the rows do not hold the model's numbers."""
        return places.get(value.shape[1]) if value.dim() == 2 else None

    def cut(values: State) -> State:
        return {name: v if (at := places_of(v)) is None else v.gather(1, at) for name, v in values.items()}

    def back(small: Tensor, whole: Tensor) -> Tensor:
        if (at := places_of(whole)) is None:
            return small
        return whole.clone(memory_format=torch.contiguous_format).scatter_(1, at, small)

    part = task._replace(mask=None, extras=cut(task.extras), trained=layout.trained)
    small = start._replace(
        gradient=start.gradient.of_shapes(layout, counts),
        task=part,
        state=cut(state),
        first=start.first.gather(1, index),
    )
    learnt, new = learn(small, steps)
    none = torch.zeros((), dtype=task.model.dtype, device=index.device).expand(len(index), total)
    sent = back(learnt.sent, none)
    first = (
        sent if start.method.upload.sends_what_came else back(learnt.first, none)
    )  # as large as all else: only if read
    extras = {name: back(v, none) if v.shape[1:] == index.shape[1:] else v for name, v in learnt.extras.items()}
    kept = {name: back(v, state[name]) for name, v in new.items()}
    return Learnt(first, sent, extras, learnt.losses), kept


def _place(keeps: tuple[Tensor, ...], neurons: NeuronMap, counts: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The places of the kept numbers [C, p]."""
    return (slice_index(neurons, keeps[0], counts)[0],)


_placed = Captured(_place)
