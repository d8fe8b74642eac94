"""One step of a cohort whose network is a chain of linear layers, on a GPU: a kernel of ours for each product."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from fedloom.engine.cuda.convolution_kernels import tile_of
from fedloom.engine.cuda.mlp_kernels import MOST, _back, _forward, _turn

if TYPE_CHECKING:
    from fedloom.core.types import Examples
    from fedloom.engine.cuda.step_buffers import Course
    from fedloom.engine.gradient.stacked import StackedGradient
    from fedloom.engine.stages import Stage


Launch = Callable[..., None]


def _run(kernel: Any, grid: tuple[int, ...], *facts: Any, **how: Any) -> None:
    kernel[grid](*facts, **how)


def _make(kernel: Any, grid: tuple[int, ...], *facts: Any, **how: Any) -> None:
    kernel.warmup(*facts, grid=grid, **how)


class Linked:
    """The layers' kernels, and places for what goes from one to the next."""

    def __init__(self, links: tuple[Stage, ...], course: Course) -> None:
        self.links, self.course = links, course
        weights = [course.tensors[f"{link.name}.weight"] for link in links]
        clients, self.batch = course.clients, course.examples.shape[2]
        self.sizes = [(w.shape[2], w.shape[1]) for w in weights]  # inputs, outputs
        self.outs = [w.new_zeros(clients, self.batch, w.shape[1]) for w in weights]
        self.grads = [torch.zeros_like(out) for out in self.outs[:-1]] + self.outs[-1:]  # the last layer gives its own
        self.losses = weights[0].new_zeros(clients, self.batch)
        self._launch: Launch = _run
        self._compile()

    def _compile(self) -> None:
        """All kernels side by side: one after another they take seconds."""
        if self.course.device.type != "cuda" or not hasattr(triton, "AsyncCompileMode"):
            return  # interpreted, or by an older Triton: compiled when they first run
        self._launch = _make
        with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool):
            self.step(self.course.clients)
        self._launch = _run

    def step(self, size: int) -> None:
        """Move the weights of the first `size` clients who have a step left to take."""
        for layer in range(len(self.links)):
            self._forward(layer, size)
        for layer in range(len(self.links) - 1, 0, -1):
            self._back(layer, size)
        for layer in range(len(self.links)):
            self._turn(layer, size)

    def _forward(self, layer: int, size: int) -> None:
        link, course, (inputs, outputs) = self.links[layer], self.course, self.sizes[layer]
        last = layer == len(self.links) - 1
        rows, columns = tile_of(self.batch, 64), tile_of(outputs, MOST if last else 32)
        w = course.tensors[f"{link.name}.weight"]
        grid = (triton.cdiv(outputs, columns), size, triton.cdiv(self.batch, rows))
        self._launch(_forward, grid,
            self._inputs(layer), course.examples, w, course.tensors[f"{link.name}.bias"] if link.bias else w,
            self.outs[layer], course.data.y, course.weight, self.losses, course.number, course.taken,
            *self._kept(layer), self.batch, *self._counts(layer), course.clients, **self._units(layer),
            PICKS=layer == 0, BIAS=link.bias, RELU=link.relu, LAST=last, PRECISION=precision(True),
            BM=rows, BN=columns, BK=tile_of(inputs, 32), num_warps=4, num_stages=3,
        )  # fmt: skip

    def _back(self, layer: int, size: int) -> None:
        """The gradient of the layer below."""
        inputs, outputs = self.sizes[layer]
        few = outputs <= 16
        rows, columns = tile_of(self.batch, 64), tile_of(inputs, 64 if few else 32)
        grid = (triton.cdiv(inputs, columns), size, triton.cdiv(self.batch, rows))
        self._launch(_back, grid,
            self.grads[layer], self.course.tensors[f"{self.links[layer].name}.weight"], self.outs[layer - 1],
            self.grads[layer - 1], self.course.number, self.course.taken, *self._kept(layer), self.batch,
            *self._counts(layer), **self._units(layer), RELU=self.links[layer - 1].relu, PRECISION=precision(not few),
            BM=rows, BN=columns, BK=tile_of(outputs, 32), num_warps=4, num_stages=1 if few else 3,
        )  # fmt: skip

    def _turn(self, layer: int, size: int) -> None:
        """The layer's own step."""
        link, course, (inputs, outputs) = self.links[layer], self.course, self.sizes[layer]
        names = f"{link.name}.weight", f"{link.name}.bias" if link.bias else f"{link.name}.weight"
        (w, b), heavy, held = [course.tensors[name] for name in names], bool(course.velocity), bool(course.may)
        speeds = [course.velocity.get(name, w) for name in names]  # not read where there is none
        may = [course.may.get(name, w) for name in names]
        rows, columns = tile_of(outputs, 32), tile_of(inputs, 128)
        tiles, optimiser = triton.cdiv(inputs, columns), course.method.optimiser
        grid = (tiles * triton.cdiv(outputs, rows), size)
        self._launch(_turn, grid,
            self.grads[layer], self._inputs(layer), course.examples, w, speeds[0], may[0], b, speeds[1], may[1],
            w if course.scaled is None else course.scaled.paces[names[0]], course.rate, course.number, course.taken,
            *self._kept(layer), self.batch, *self._counts(layer), course.clients,
            float(optimiser.momentum), float(optimiser.weight_decay),
            **self._units(layer),
            PICKS=layer == 0, BIAS=link.bias, MAY=held, HEAVY=heavy, SCALED=course.scaled is not None,
            PRECISION=precision(False), TILES=tiles,
            BM=rows, BN=columns, BK=tile_of(self.batch, 64 if held else 32), num_warps=4, num_stages=1,
        )  # fmt: skip

    def _inputs(self, layer: int) -> Tensor:
        return self.course.data.x if layer == 0 else self.outs[layer - 1]

    def _kept(self, layer: int) -> list[Tensor]:
        """How many of the layer's inputs and outputs each client keeps; not read where all are."""
        narrow = self.course.narrow
        if narrow is None:
            return [self.course.taken] * 2
        return [narrow.kept[max(0, layer - 1)], narrow.kept[min(layer, len(narrow.kept) - 1)]]

    def _units(self, layer: int) -> dict[str, int]:
        """In what units inputs and outputs are counted, and whether they are cut; examples and classes never are."""
        cut = self.course.narrow is not None
        return units(self.sizes[layer]) | {"CUT_IN": cut and layer > 0, "CUT_OUT": cut and layer < len(self.links) - 1}

    def _counts(self, layer: int) -> list[int]:
        """Inputs and outputs in units."""
        return [size // unit for size, unit in zip(self.sizes[layer], self._units(layer).values())]


def units(ends: tuple[int, ...]) -> dict[str, int]:
    """Powers of two that divide a layer's inputs and outputs."""
    return {name: min(16, size & -size) for name, size in zip(("IN_UNIT", "OUT_UNIT"), ends)}


def precision(thrice: bool) -> str:
    """Three products of TF32 numbers are as exact as one of float32 numbers; which is quicker was measured."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3" if thrice else "ieee"


def fits(links: tuple[Stage, ...], gradient: StackedGradient, data: Examples) -> bool:
    """Can these kernels take the steps?"""
    x, y = data
    last = gradient.setting.module.get_parameter(f"{links[-1].name}.weight")
    same = x.dtype == last.dtype == torch.float32 and y.dtype == torch.int64
    return same and x.is_contiguous() and y.is_contiguous() and last.shape[0] <= MOST
