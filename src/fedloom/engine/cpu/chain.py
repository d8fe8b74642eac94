"""Plain chains of linear layers on a CPU, trained without autograd, whose calls take longer than small products do.

Forwards and backwards are written out, and a weight takes its step inside the product of its gradient. The calls of a
step are made ready once, with the tensors that they read and write. Of a frozen network all activations are computed,
and then only the gradients that what moves needs (see `blocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from fedloom.core.types import Batch
from fedloom.engine.client import Feed, Stretch
from fedloom.engine.cpu.blocks import Blocks
from fedloom.engine.stages import Stage
from fedloom.layout import Layout

AHEAD = 2**19  # numbers of examples that are gathered at once: a call for many steps, where these are small
KEPT = 2**18  # numbers of outputs whose losses are computed at once

Call = Callable[..., Tensor]


def chain_of(stages: tuple[Stage, ...] | None) -> tuple[Stage, ...] | None:
    """The network's layers, if all it has is linear layers with or without ReLU."""
    return None if stages is None or any(stage.padding is not None for stage in stages) else stages


def descend_chain(
    links: tuple[Stage, ...],
    layout: Layout,
    first: Tensor,
    batches: Iterable[Batch],
    rate: float,
    shrink: float,
    blocks: Blocks | None = None,
    momentum: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """All steps of `w <- shrink * w - rate * g` from `first` [C, P]: weights [C, P] and summed losses [C].

    `blocks`: what moves of every layer of a frozen network. `momentum`: of velocities that begin at zero.
    """
    total = first.new_zeros(len(first))
    last = first.clone(memory_format=torch.contiguous_format) if blocks is None and len(first) == 1 else None
    with torch.inference_mode():  # nothing is recorded, which saves a part of every call
        if blocks is not None:
            tensors = blocks.sort(layout, first)
        else:
            tensors = _apart(layout, first) if last is None else layout.split(last)
        speeds = {name: torch.zeros_like(t) for name, t in tensors.items()} if momentum else None
        run: _Run | None = None
        for stretch in _stretches(batches, tensors[f"{links[-1].name}.weight"].shape[1]):
            shape = stretch.y.shape[1:]
            if run is None or run.shape != shape:
                sizes = None if blocks is None else blocks.sizes
                run = _Run(links, tensors, speeds, shape, rate, shrink, momentum, sizes)
            total[: shape[0]] += run.walk(stretch)
    # outside, so that others may record what they do with them
    if last is None:
        last = layout.join(tensors, 1) if blocks is None else blocks.put_back(layout, first, tensors)
    return last, total


def _stretches(batches: Iterable[Batch], classes: int) -> Iterator[Stretch]:
    """Many steps at once, or one by one."""
    if isinstance(batches, Feed):
        return batches.stretches(KEPT // classes, AHEAD)
    return (Stretch(iter((b.x.unsqueeze(0),)), b.y.unsqueeze(0), b.weight.unsqueeze(0)) for b in batches)


def _apart(layout: Layout, first: Tensor) -> dict[str, Tensor]:
    """Every tensor of the models by itself."""
    return {name: t.clone(memory_format=torch.contiguous_format) for name, t in layout.split(first).items()}


def _some(t: Tensor, many: int | None, axis: int = -1) -> Tensor:
    """The first so many along an axis; None: all."""
    return t if many is None or many == t.shape[axis] else t.narrow(axis, 0, many)


class _Run:
    """Steps of the first so many clients; a client that is alone has plain products instead of batched ones."""

    def __init__(
        self,
        links: tuple[Stage, ...],
        tensors: dict[str, Tensor],
        speeds: dict[str, Tensor] | None,
        shape: torch.Size,
        rate: float,
        shrink: float,
        momentum: float,
        sizes: list[tuple[int | None, int | None]] | None,
    ) -> None:
        self.shape, self.alone = shape, shape[0] == 1
        weights, biases = self._split(links, tensors)
        # what gradients are added to: with momentum velocities, after which weights move
        moved, moved_biases = (weights, biases) if speeds is None else self._split(links, speeds)
        beta, alpha = (shrink, -rate) if speeds is None else (momentum, 1.0)
        self.after: list[Call] = []
        lead, batch = ((), shape[1]) if self.alone else (shape[:1], shape[1])
        outs, slopes = ([w.new_empty(*lead, batch, w.shape[-2]) for w in weights[:-1]] for _ in range(2))
        # the last layer's lie classes first, by which products and softmax are quicker
        self.slope, self.chances = (weights[-1].new_empty(*lead, weights[-1].shape[-2], batch) for _ in range(2))
        slopes.append(self.slope.mT)
        # forwards: what reads the examples waits for them, and the last layer for the place of its outputs
        last: Callable[..., None] = partial(self._outputs, weights[-1], biases[-1])
        self.up: list[Call] = []
        if outs:
            self.enter, *self.up = self._product(None, weights[0].mT, biases[0], outs[0])
            last = partial(last, outs[-1].mT)
        for place, (link, w, b) in enumerate(zip(links[:-1], weights, biases)):
            self.up += self._product(outs[place - 1], w.mT, b, outs[place]) if place else []
            self.up += [outs[place].relu_] if link.relu else []
        self.last, self.deep = last, bool(outs)
        # backwards: the gradient of a layer's inputs comes before its weight takes the step
        many = sizes or [(None, None)] * len(links)  # rows and columns that move, the first ones; None: all
        if len(links) > 1 and (lane := many[1][1]) is not None:  # neurons of the first layer that gradients reach
            slopes[0] = slopes[0].new_empty(*lead, batch, lane)
        self.down: list[Call] = []
        for place in reversed(range(len(links))):
            (r, c), w, b, g = many[place], weights[place], biases[place], slopes[place]
            own = _some(g, r)
            goal, bias = _some(_some(moved[place], c), r, -2), moved_biases[place]
            move = partial(self._mover(goal), own.mT, beta=beta, alpha=alpha)
            if place:
                x, below = outs[place - 1], slopes[place - 1]
                reached = below.shape[-1]
                self.down += self._product(g, _some(w, reached), None, below)
                self.down.append(partial(move, _some(x, c)))
            self.down += [] if bias is None else self._bias_step(_some(bias, r), own, beta, alpha)
            if speeds is not None:
                self.after += self._swing(_some(_some(w, c), r, -2), goal, rate, shrink)
                self.after += (
                    [] if b is None or bias is None else self._swing(_some(b, r), _some(bias, r), rate, shrink)
                )
            if place and links[place - 1].relu:
                through = torch.ops.aten.threshold_backward.grad_input
                self.down.append(partial(through, below, _some(x, reached), 0, grad_input=below))
        self.leave = move  # waits for the examples

    def _split(self, links: tuple[Stage, ...], tensors: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Weights [C, o, i] and biases [C, 1, o]."""
        biases = [self._own(tensors[f"{link.name}.bias"].unsqueeze(1)) if link.bias else None for link in links]
        return [self._own(tensors[f"{link.name}.weight"]) for link in links], biases

    def _own(self, t: Tensor) -> Tensor:
        return t[0] if self.alone else t[: self.shape[0]]

    def _mover(self, t: Tensor) -> Call:
        """A tensor's own product that is added to it in place."""
        return t.addmm_ if self.alone else t.baddbmm_

    def _product(self, x: Tensor | None, w: Tensor, b: Tensor | None, out: Tensor) -> list[Call]:
        """`x w + b`, ready to be called; without `x` the first is called with that."""
        if b is not None and self.alone:
            call: Call = partial(torch.addmm, b, mat2=w, out=out)
        else:
            call = partial(torch.mm if self.alone else torch.bmm, mat2=w, out=out)
        calls = [call if x is None else partial(call, x)]
        return calls if b is None or self.alone else [*calls, partial(out.add_, b)]  # quicker than one batched call

    def _outputs(self, w: Tensor, b: Tensor | None, x: Tensor, out: Tensor) -> None:
        """What the last layer makes of its inputs [C, i, B], classes first."""
        if self.alone and b is not None:
            torch.addmm(b.mT, w, x, out=out)
        else:
            (torch.mm if self.alone else torch.bmm)(w, x, out=out)
            if b is not None:
                out.add_(b.mT)

    @staticmethod
    def _swing(w: Tensor, speed: Tensor, rate: float, shrink: float) -> list[Call]:
        """The step by a velocity, which decay is a part of."""
        decay = [] if shrink == 1 else [partial(speed.add_, w, alpha=(1 - shrink) / rate)]
        return [*decay, partial(w.add_, speed, alpha=-rate)]

    def _bias_step(self, b: Tensor, g: Tensor, beta: float, alpha: float) -> list[Call]:
        """`beta * b + alpha * sum`, in place, of biases [C, 1, o] and the examples' gradients [C, B, o]."""
        if self.alone:
            return [partial(b[0].addmv_, g.mT, g.new_ones(len(g)), beta=beta, alpha=alpha)]
        whole = g.new_empty(b.shape)  # sums are quicker than batched products of one row
        return [
            partial(torch.sum, g, 1, keepdim=True, out=whole),
            *([] if beta == 1 else [partial(b.mul_, beta)]),
            partial(b.add_, whole, alpha=alpha),
        ]

    def walk(self, stretch: Stretch) -> Tensor:
        """Take the steps. Summed losses of the clients [C]."""
        weight = stretch.weight.unsqueeze(-2).to(self.slope.dtype)
        outputs = weight.new_empty(*weight.shape[:2], *self.slope.shape[-2:])  # [S, C, classes, B]
        pull = torch.zeros_like(outputs).scatter_(-2, stretch.y.unsqueeze(-2), -weight)  # minus the target's weight
        steps = zip(*(self._each(values) for values in (outputs, pull, weight)))
        for some in stretch.x:
            for x, (out, target, share) in zip(self._each(some.flatten(3)), steps):
                if self.deep:
                    self.enter(x)
                    for call in self.up:
                        call()
                    self.last(out)
                else:
                    self.last(x.mT, out)
                torch.softmax(out, -2, out=self.chances)
                torch.addcmul(target, self.chances, share, out=self.slope)
                for call in self.down:
                    call()
                self.leave(x)
                for call in self.after:
                    call()
        return (torch.log_softmax(outputs, -2) * pull).sum((0, 2, 3))

    def _each(self, values: Tensor) -> tuple[Tensor, ...]:
        """Each step's of [S, C, ...]."""
        return (values[:, 0] if self.alone else values).unbind(0)
