"""Networks of convolutions and linear layers in a row, trained on CPUs by code of our own (`fedloom/native`).

One call takes all steps of all clients. What torch spends beside its products, on calls, on memory that it asks for
anew and on gradients that pooling and ReLU cut off, is most of a small model's time; here memory is laid out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.types import Batch, Setting
from fedloom.engine.client import Feed
from fedloom.engine.cpu.native import library
from fedloom.engine.stages import Stage, stages_of
from fedloom.errors import BadExperiment
from fedloom.layout import Layout, flatten
from fedloom.neurons.map import NeuronMap

MOST, PARTS = 32, 4  # layers, and threads that can share a client (native/net.h)
LARGE = 2**20  # numbers of a convolution from which torch is quicker: they no longer stay near
WIDE = 2**18  # numbers of a linear layer from which torch's products are quicker, where threads need not share a client
PIECE = 32  # examples that a thread looks at, one after another


def descend_compiled(
    stages: tuple[Stage, ...],
    layout: Layout,
    first: Tensor,
    batches: Iterable[Batch],
    rate: float,
    shrink: float,
    momentum: float = 0.0,
    keep: Tensor | None = None,
    neurons: NeuronMap | None = None,
) -> tuple[Tensor, Tensor] | None:
    """All steps of `w <- shrink * w - rate * g` from `first` [C, P]: weights [C, P] and summed losses [C].

    `momentum`: of velocities that begin at zero. `keep` [C, K]: the `neurons` that alone are trained. None: the
    examples, or this machine, are not such that it can be done.
    """
    if not isinstance(batches, Feed):
        return None
    (x, y), plan, (clients, numbers) = batches.data, batches.batches, first.shape
    plain = x.dtype == first.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()
    if not plain or y.dtype != torch.int64 or not y.is_contiguous() or len(stages) > MOST:
        return None
    if momentum and shrink != 1 and rate == 0:  # decay is a part of velocities by way of the rate
        return None
    if stages[0].padding is None and clients >= torch.get_num_threads() and max(layout.sizes) > WIDE:
        return None
    trained = None if keep is None or neurons is None else _trained_first(stages, keep, neurons)
    given, native = _given(stages, layout, x.shape[1:], None if trained is None else trained[1]), library()
    if given is None or native is None or (trained is not None and 0 in trained[1]):
        return None
    last, losses = first.clone(memory_format=torch.contiguous_format), torch.zeros(clients, dtype=torch.float64)
    order, real, steps = (t.contiguous() for t in (plan.examples, plan.real, plan.steps))
    shape, wrong = (given.data_ptr(), len(given), order.shape[2]), 0
    for some, threads in _shares(clients, torch.get_num_threads()):
        count, teams = some.stop - some.start, threads if some.stop - some.start >= threads else 1
        each = native.fedloom_room(*shape, momentum != 0, threads // teams)
        room = torch.empty(teams * each, dtype=torch.uint8)
        wrong |= native.fedloom_walk(
            *shape, count, order.shape[1], last[some].data_ptr(), numbers,
            None if trained is None else trained[0][some].data_ptr(), x.data_ptr(), x[0].numel(), y.data_ptr(),
            order[some].data_ptr(), real[some].data_ptr(), steps[some].data_ptr(), rate, shrink, momentum,
            losses[some].data_ptr(), room.data_ptr(), each, threads,
        )  # fmt: skip
    if wrong:
        raise BadExperiment(f"a label is not among the model's {given[-1, 2]} classes, which count from 0.")
    return last, losses.to(first.dtype)


def compiled_outputs(setting: Setting, layout: Layout, params: Tensor, x: Tensor) -> Tensor | None:
    """What networks [C, P] say of their own examples [C, B, ...]; None: torch is as quick, or it cannot be done."""
    plain = x.dtype == params.dtype == torch.float32 and x.device.type == params.device.type == "cpu"
    stages = stages_of(setting)
    if not plain or stages is None or x.numel() == 0 or len(stages) > MOST:
        return None
    if stages[0].padding is None or not _right(setting, stages):  # torch's large products are as quick
        return None
    return _outputs(stages, layout, params, x)


def _outputs(stages: tuple[Stage, ...], layout: Layout, params: Tensor, x: Tensor) -> Tensor | None:
    given, native = _given(stages, layout, x.shape[2:], None), library()
    if given is None or native is None:
        return None
    x, params, threads = x.contiguous(), params.contiguous(), torch.get_num_threads()
    (clients, count), features = x.shape[:2], x[0, 0].numel()
    out = x.new_empty(clients, count, int(given[-1, 2]))
    shape = given.data_ptr(), len(given), min(count, PIECE)
    each = native.fedloom_room(*shape, 0, 1)
    room = torch.empty(threads * each, dtype=torch.uint8)
    native.fedloom_outputs(
        *shape, clients, count, params.data_ptr(), params.shape[1], x.data_ptr(), features, out.data_ptr(),
        room.data_ptr(), each, threads,
    )  # fmt: skip
    return out


_tried: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _right(setting: Setting, stages: tuple[Stage, ...]) -> bool:
    """Was the network read rightly? Its own outputs for two examples are compared, once."""
    if setting.module not in _tried:
        module, layout = setting.module.eval(), setting.layout
        model, x = flatten(module, layout).float(), setting.example.float()
        with torch.no_grad():
            theirs = functional_call(module, layout.split(model), (x,))
        ours = _outputs(stages, layout, model[None], x[None])
        _tried[setting.module] = ours is None or torch.allclose(ours[0], theirs, rtol=1e-3, atol=1e-4)
    return _tried[setting.module]


def _shares(clients: int, threads: int) -> Iterator[tuple[slice, int]]:
    """Which clients are trained at once, and by how many threads: each by one while there are enough, then by all."""
    even = clients // threads * threads
    if even:
        yield slice(0, even), threads
    if even < clients:
        yield slice(even, clients), min(threads, max(clients - even, PARTS))


def _trained_first(stages: tuple[Stage, ...], keep: Tensor, neurons: NeuronMap) -> tuple[Tensor, tuple[int, ...]]:
    """Every layer's neurons, each client's kept ones first [C, all], and how many of each layer are kept."""
    rows = {tensor.name: tensor.along[0] for tensor in neurons.tensors}
    padded, kept = neurons.padded(keep), []
    for stage in stages:
        which = rows[f"{stage.name}.weight"]
        assert which is not None  # layers have neurons
        kept.append(padded[:, neurons.lists[which]])
    order = torch.cat([own.byte().argsort(dim=1, descending=True, stable=True) for own in kept], 1)
    return order, tuple(torch.stack([own[0].sum() for own in kept]).tolist())


@lru_cache(maxsize=64)  # of all that a fleet's clients train, again in every round
def _given(stages: tuple[Stage, ...], layout: Layout, shape: torch.Size, kept: tuple[int, ...] | None) -> Tensor | None:
    """What the compiled code is told of each layer, in the order of `Given` in native/net.h; None: it does not fit.

    `kept`: how many neurons of each layer are trained.
    """
    at = dict(zip(layout.names, accumulate(layout.sizes, initial=0)))
    shapes = dict(zip(layout.names, layout.shapes))
    images = stages[0].padding is not None
    if images and len(shape) != 3:
        return None
    channels, height, width = shape if images else (shape.numel(), 1, 1)
    rows, below = [], channels  # of the layer before, how many are trained
    for place, stage in enumerate(stages):
        outputs, inputs, *kernel = shapes[f"{stage.name}.weight"]
        moving = outputs if kept is None else kept[place]
        conv, (down, right) = stage.padding is not None, stage.padding or (0, 0)
        high, wide = kernel or (1, 1)
        large = conv and outputs * inputs * high * wide > LARGE
        if large or inputs != (channels if conv else channels * height * width):
            return None
        rows.append([
            conv, inputs, outputs, height, width, high, wide, down, right, stage.pool, stage.relu, stage.bias,
            at[f"{stage.name}.weight"], at.get(f"{stage.name}.bias", 0),
            moving, below * inputs // channels,
        ])  # fmt: skip
        channels, below = outputs, moving
        height, width = (height + 2 * down - high + 1, width + 2 * right - wide + 1) if conv else (1, 1)
        height, width = (height // 2, width // 2) if stage.pool else (height, width)
        if min(height, width) < 1:
            return None
    return torch.tensor(rows, dtype=torch.int64)
