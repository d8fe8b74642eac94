"""Really smaller networks: clients that keep equally many neurons train together on tensors of just that size."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.core.types import Setting, State, Task
from fedloom.engine.client import Learnt, learn
from fedloom.engine.steps import Start, Steps
from fedloom.neurons.extract import slice_index, slice_shapes, slices
from fedloom.neurons.map import NeuronMap
from fedloom.parts.upload.as_sent import AsSent


def widths(setting: Setting, keep: Tensor | None) -> list[tuple[int, ...]]:
    """How many neurons of every group each client keeps."""
    assert keep is not None
    counts = [keep[:, span].sum(1) for _, span in setting.neurons.spans(keep.shape[1])]
    return [tuple(row) for row in torch.stack(counts, 1).tolist()]


def many(own: list[tuple[int, ...]], neurons: int) -> bool:
    """Are there so many sizes, of so many neurons, that one bucket of whole networks with zeros takes less time?"""
    return len(set(own)) > 2 and 3 * sum(map(sum, own)) >= len(own) * neurons


class SlicePlaces:
    """How many entries every list of the neurons' map keeps, for each width of sub-models met so far."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._counts = setting, dict[tuple[int, ...], tuple[int, ...]]()

    def of(self, width: tuple[int, ...], task: Task) -> tuple[int, ...]:
        """The counts for clients of this width; reading them from the task's keep waits for the device once."""
        if width not in self._counts:
            assert task.keep is not None
            self._counts[width] = tuple(slices(self._setting.neurons, task.keep)[1])
        return self._counts[width]


def learn_sliced(start: Start, setting: Setting, counts: tuple[int, ...], steps: Steps) -> tuple[Learnt, State]:
    """Cut, train, put back. Clients must keep equally many neurons of every group, each its own.

    `counts`: how many entries of every list of the neurons' map are kept.
    """
    task, state = start.task, start.state
    assert task.keep is not None
    assert start.gradient.stacked is not None
    (index,), shapes = _placed((task.keep,), setting.neurons, counts), slice_shapes(setting.neurons, counts)  # [C, p]
    total = setting.layout.total
    layout = setting.layout._replace(shapes=shapes)

    places = {total: index, setting.layout.trained: index[:, : layout.trained]}  # moments are of trained numbers only

    def sized(value: Tensor) -> Tensor | None:
        """Where a sub-model's numbers lie in rows of this length; None: the rows are not of the model's numbers."""
        return places.get(value.shape[1]) if value.dim() == 2 else None

    def cut(values: State) -> State:
        return {name: v if (at := sized(v)) is None else v.gather(1, at) for name, v in values.items()}

    def back(small: Tensor, whole: Tensor) -> Tensor:
        if (at := sized(whole)) is None:
            return small
        return whole.clone(memory_format=torch.contiguous_format).scatter_(1, at, small)

    part = task._replace(mask=None, extras=cut(task.extras), trained=layout.trained)
    small = start._replace(
        gradient=start.gradient.stacked.of_shapes(layout),
        task=part,
        state=cut(state),
        first=start.first.gather(1, index),
    )
    learnt, new = learn(small, steps)
    none = torch.zeros((), dtype=task.model.dtype, device=index.device).expand(len(index), total)
    sent = back(learnt.sent, none)
    first = (
        sent if isinstance(start.method.upload, AsSent) else back(learnt.first, none)
    )  # as large as all else: only if read
    extras = {name: back(v, none) if v.shape[1:] == index.shape[1:] else v for name, v in learnt.extras.items()}
    kept = {name: back(v, state[name]) for name, v in new.items()}
    return Learnt(first, sent, extras, learnt.losses), kept


def _place(keeps: tuple[Tensor, ...], neurons: NeuronMap, counts: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Where the kept numbers lie [C, p]."""
    return (slice_index(neurons, keeps[0], counts)[0],)


_placed = Captured(_place)
