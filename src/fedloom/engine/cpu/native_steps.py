"""Training and evaluation of layers in a row on CPUs, by the C code in `native`.

One call takes all steps of all clients. Most of a small model's time in torch goes into calls, into new memory,
and into gradients that pooling and ReLU cut off; here memory is laid out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ctypes import byref
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.goal import Head
from fedloom.core.optimiser import Optimiser, Sgd
from fedloom.core.rule import Shift
from fedloom.core.types import Examples, Setting
from fedloom.core.work import Batches
from fedloom.engine.cpu.blocks import Block, blocks
from fedloom.engine.cpu.native import library, why_no_library
from fedloom.engine.cpu.native.head import head_facts, target_dtype, why_not_goal
from fedloom.engine.cpu.native.move import Moves, trial_moves
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.trial import largest_difference, trial
from fedloom.engine.plain_layers import PlainLayer, plain_layers
from fedloom.errors import BadExperiment
from fedloom.layout import Layout, flatten
from fedloom.neurons.map import NeuronMap

if TYPE_CHECKING:
    from fedloom.engine.steps import Start

MOST, PARTS = 32, 4  # layers, and threads that can share a client (native/net.h)
LARGE = 2**20  # numbers of a convolution from which torch is faster: they no longer stay in the cache
SGD = Sgd()
PIECE = 32  # examples that a thread evaluates, one after another


def native_steps(start: Start) -> tuple[Tensor, Tensor] | None:
    """All steps of all clients: parameters [C, P], summed losses [C]. Moments that are kept change in place.

    None: the sizes of this chunk do not suit the C code, or a client's transformed examples are too large for a block.
    """
    rule, goal, transform = start.method.local, start.setting.goal, start.setting.transform
    if goal.head is None:
        return None
    parts: Iterable[Block] | None = [Block(slice(len(start.first)), start.data, start.batches)]
    if transform is not None:
        parts = blocks(start.data, start.batches, transform, torch.get_num_threads())
    network = start.plan.layers, start.gradient.layout, goal.head
    shift = rule.shift(start.task, start.state, start.first) if rule.traits.shifts else Shift()
    free = None if start.held else rule.trains(start.task)
    moves = Moves(start.method.optimiser, start.task.rate, shift, start.moments, free)
    keep = None if start.neurons is None else start.task.keep
    found = []
    for some, data, batches in parts or ():
        kept = None if keep is None else keep[some]
        taken = descend_native(*network, start.first[some], data, batches, moves.rows(some), kept, start.neurons)
        if taken is None:
            return None
        found.append(taken)
    if len(found) < 2:
        return found[0] if found else None
    params, losses = (torch.cat(values) for values in zip(*found))
    return params, losses


def descend_native(
    layers: tuple[PlainLayer, ...],
    layout: Layout,
    head: Head,
    first: Tensor,
    data: Examples,
    batches: Batches,
    moves: Moves,
    keep: Tensor | None = None,
    neurons: NeuronMap | None = None,
) -> tuple[Tensor, Tensor] | None:
    """All steps from `first` [C, P] as `moves` says: parameters [C, P] and summed losses [C].

    `keep` [C, K]: the only `neurons` that are trained. None: the sizes do not suit the C code.
    """
    (x, y), (clients, numbers) = data, first.shape
    trained = None if keep is None or neurons is None else _trained_first(layers, keep, neurons)
    given, native = _given(layers, layout, x.shape[1:], None if trained is None else trained[1]), library()
    if given is None or native is None or (trained is not None and 0 in trained[1]):
        return None
    facts = head_facts(head, y, int(given[-1, 2]))
    if facts is None or x.dtype != torch.float32:
        return None
    last, losses = first.clone(memory_format=torch.contiguous_format), torch.zeros(clients, dtype=torch.float64)
    order, real, steps = (t.contiguous() for t in (batches.examples, batches.real, batches.steps))
    shape, wrong = (given.data_ptr(), len(given), order.shape[2]), 0
    for some, threads in _split(clients, torch.get_num_threads()):
        count, teams = some.stop - some.start, threads if some.stop - some.start >= threads else 1
        own = moves.rows(some).facts(count, steps[some], order.shape[1])
        each = native.fedloom_room(*shape, moves.uses, threads // teams)
        room = torch.empty(teams * each, dtype=torch.uint8)
        wrong |= native.fedloom_walk(
            *shape, count, order.shape[1], last[some].data_ptr(), numbers,
            None if trained is None else trained[0][some].data_ptr(), x.data_ptr(), x[0].numel(), byref(facts),
            order[some].data_ptr(), real[some].data_ptr(), steps[some].data_ptr(), byref(own),
            losses[some].data_ptr(), room.data_ptr(), each, threads,
        )  # fmt: skip
    if wrong:
        raise BadExperiment(f"a label is not among the model's {given[-1, 2]} classes, which count from 0.")
    return last, losses.to(first.dtype)


_refused: WeakKeyDictionary[nn.Module, dict[tuple[Head, Optimiser, bool], str]] = WeakKeyDictionary()


def why_not_native(setting: Setting, data: Examples, optimiser: Optimiser = SGD, shifts: bool = False) -> str:
    """Why the C code cannot train this network on these examples; empty if it can.

    `shifts`: a local rule adds its shift to gradients.
    """
    if data.x.device.type != "cpu":
        return f"it runs on CPUs, and examples are on {data.x.device}"
    if why := why_no_library() or why_not_goal(setting.goal, setting.transform):
        return why
    head = setting.goal.head
    assert head is not None
    wanted = target_dtype(head)
    if data.x.dtype != torch.float32 or data.y.dtype != wanted:
        needs = f"it needs float32 and {wanted}".replace("torch.", "")
        return f"examples are {data.x.dtype} with targets {data.y.dtype}; {needs}"
    if next(setting.module.parameters()).dtype != torch.float32:
        return "parameters are float64; it computes in float32"
    if not (data.x.is_contiguous() and data.y.is_contiguous()):
        return "examples do not lie in one block of memory"
    refused, key = _refused.setdefault(setting.module, {}), (head, optimiser, shifts)
    if key not in refused:
        refused[key] = _compared(setting, head, data, optimiser, shifts)
    return refused[key]


def _compared(setting: Setting, head: Head, data: Examples, optimiser: Optimiser, shifts: bool) -> str:
    """Why the C code cannot be used, from one step of two clients compared with plain PyTorch; empty if it can.

    What is more than plain SGD is compared over two steps, so that moments and the way from the start count.
    The C code computes in float32, in which another one of two numbers may be the larger than in float64.
    """
    layers = plain_layers(setting)
    if layers is None or len(layers) > MOST:
        return f"it takes at most {MOST} layers in a row"
    outputs = setting.module.get_parameter(f"{layers[-1].name}.weight").shape[0]
    if head_facts(head, data.y, outputs) is None:
        return f"targets {tuple(data.y.shape)} or class weights do not suit the network's {outputs} outputs"
    params, batch = trial(setting, data)
    slopes, losses = PlainGradient(setting)(params.clone(), batch)
    flat = Examples(batch.x.flatten(0, 1).to(data.x.dtype), batch.y.flatten(0, 1).to(data.y.dtype))

    def natively(moves: Moves, steps: int) -> tuple[Tensor, Tensor] | None:
        real = (batch.weight > 0).unsqueeze(1)
        order, real = (t.expand(-1, steps, -1) for t in (torch.arange(real.numel()).view_as(real), real))
        keys = batch.keys[:, None].expand(-1, steps)
        batches = Batches(order, real, torch.full((2,), steps), [2] * steps, keys, torch.ones(2).long())
        return descend_native(layers, setting.layout, head, params.float(), flat, batches, moves)

    done = natively(Moves(Sgd(rate=1.0), 1.0), 1)
    if done is None:
        return "its layers are larger than the C code is good for"
    difference = largest_difference(((params - done[0], slopes), (done[1], losses)))
    if difference <= 1e-2 and (shifts or type(optimiser) is not Sgd or not optimiser.plain):
        moves = trial_moves(optimiser, params, slopes, shifts)
        moments = {name: value.float() for name, value in moves.moments.items()}
        done = natively(replace(moves, moments=moments), 2)
        assert done is not None
        now = params.clone()
        for _ in range(2):
            grads = moves.shift.added(params, now, PlainGradient(setting)(now.clone(), batch)[0])
            moves.optimiser.step(moves.moments, now, grads, moves.rate, None)
        kept = [(moments[name], value) for name, value in moves.moments.items()]
        difference = largest_difference([(params - done[0], params - now), *kept])
    return "" if difference <= 1e-2 else f"it differs from plain PyTorch by {difference:.1e}"


def native_outputs(setting: Setting, layout: Layout, params: Tensor, x: Tensor) -> Tensor | None:
    """Outputs of networks [C, P] for their own examples [C, B, ...]; None: torch is as fast, or C cannot do it."""
    plain = x.dtype == params.dtype == torch.float32 and x.device.type == params.device.type == "cpu"
    layers = plain_layers(setting)
    if not plain or layers is None or x.numel() == 0 or len(layers) > MOST:
        return None
    if layers[0].padding is None or not _agrees(setting, layers):  # torch's large products are as quick
        return None
    return _outputs(layers, layout, params, x)


def _outputs(layers: tuple[PlainLayer, ...], layout: Layout, params: Tensor, x: Tensor) -> Tensor | None:
    """`native_outputs` without its checks; None: the layers do not fit, or there is no compiled code."""
    given, native = _given(layers, layout, x.shape[2:], None), library()
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


_agreed: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _agrees(setting: Setting, layers: tuple[PlainLayer, ...]) -> bool:
    """Whether the C code gives the network's own outputs for two examples; compared once."""
    if setting.module not in _agreed:
        module, layout = setting.module.eval(), setting.layout
        model, x = flatten(module, layout).float(), setting.example.float()
        with torch.no_grad():
            theirs = functional_call(module, layout.split(model), (x,))
        ours = _outputs(layers, layout, model[None], x[None])
        _agreed[setting.module] = ours is None or torch.allclose(ours[0], theirs, rtol=1e-3, atol=1e-4)
    return _agreed[setting.module]


def _split(clients: int, threads: int) -> Iterator[tuple[slice, int]]:
    """Clients that are trained at once, and their threads: one per client, but all for those that are left over."""
    even = clients // threads * threads
    if even:
        yield slice(0, even), threads
    if even < clients:
        yield slice(even, clients), min(threads, max(clients - even, PARTS))


def _trained_first(layers: tuple[PlainLayer, ...], keep: Tensor, neurons: NeuronMap) -> tuple[Tensor, tuple[int, ...]]:
    """Every layer's neurons, each client's kept ones first [C, all], and the number that is kept of each layer."""
    rows = {tensor.name: tensor.along[0] for tensor in neurons.tensors}
    padded, kept = neurons.padded(keep), []
    for layer in layers:
        which = rows[f"{layer.name}.weight"]
        assert which is not None  # layers have neurons
        kept.append(padded[:, neurons.lists[which]])
    order = torch.cat([own.byte().argsort(dim=1, descending=True, stable=True) for own in kept], 1)
    return order, tuple(torch.stack([own[0].sum() for own in kept]).tolist())


@lru_cache(maxsize=64)  # the parts that a fleet's clients train recur every round
def _given(
    layers: tuple[PlainLayer, ...], layout: Layout, shape: torch.Size, kept: tuple[int, ...] | None
) -> Tensor | None:
    """A row of facts for each layer, in the order of `Given` in native/net.h; None: the network does not fit.

    `kept`: the number of neurons of each layer that are trained.
    """
    at = dict(zip(layout.names, accumulate(layout.sizes, initial=0)))
    shapes = dict(zip(layout.names, layout.shapes))
    images = layers[0].padding is not None
    if images and len(shape) != 3:
        return None
    channels, height, width = shape if images else (shape.numel(), 1, 1)
    rows, below = [], channels  # trained channels of the layer before
    for place, layer in enumerate(layers):
        outputs, inputs, *kernel = shapes[f"{layer.name}.weight"]
        moving = outputs if kept is None else kept[place]
        conv, (down, right) = layer.padding is not None, layer.padding or (0, 0)
        high, wide = kernel or (1, 1)
        large = conv and outputs * inputs * high * wide > LARGE
        if large or inputs != (channels if conv else channels * height * width):
            return None
        rows.append([
            conv, inputs, outputs, height, width, high, wide, down, right, layer.pool, layer.relu, layer.bias,
            at[f"{layer.name}.weight"], at.get(f"{layer.name}.bias", 0),
            moving, below * inputs // channels,
        ])  # fmt: skip
        channels, below = outputs, moving
        height, width = (height + 2 * down - high + 1, width + 2 * right - wide + 1) if conv else (1, 1)
        height, width = (height // 2, width // 2) if layer.pool else (height, width)
        if min(height, width) < 1:
            return None
    return torch.tensor(rows, dtype=torch.int64)
