"""A training step of a chain of linear layers for a cohort: one Triton kernel per product."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from fedloom.engine.cuda.convolution_kernels import tile_of
from fedloom.engine.cuda.mlp_kernels import MAX_OUTPUTS, forward_kernel, input_gradient_kernel, weight_step_kernel

if TYPE_CHECKING:
    from fedloom.core.types import Examples, Setting
    from fedloom.engine.cuda.step_buffers import StepBuffers
    from fedloom.engine.plain_layers import PlainLayer


Launch = Callable[..., None]


def _run(kernel: Any, grid: tuple[int, ...], *facts: Any, **how: Any) -> None:
    """Launch a kernel."""
    kernel[grid](*facts, **how)


def _compile_only(kernel: Any, grid: tuple[int, ...], *facts: Any, **how: Any) -> None:
    """Compile a kernel without a launch."""
    kernel.warmup(*facts, grid=grid, **how)


class MlpStep:
    """The layers' kernels, and buffers for what passes from one to the next."""

    def __init__(self, layers: tuple[PlainLayer, ...], buffers: StepBuffers) -> None:
        self.layers, self.buffers = layers, buffers
        weights = [buffers.tensors[f"{plain.name}.weight"] for plain in layers]
        clients, self.batch = buffers.clients, buffers.examples.shape[2]
        self.sizes = [(w.shape[2], w.shape[1]) for w in weights]  # inputs, outputs
        self.outs = [w.new_zeros(clients, self.batch, w.shape[1]) for w in weights]
        # the last layer's kernel writes the gradient by its outputs in their place
        self.grads = [torch.zeros_like(out) for out in self.outs[:-1]] + self.outs[-1:]
        self.losses = weights[0].new_zeros(clients, self.batch)
        self._launch: Launch = _run
        self._compile()

    def _compile(self) -> None:
        """Compile all kernels at the same time: one after another they take seconds."""
        if self.buffers.device.type != "cuda" or not hasattr(triton, "AsyncCompileMode"):
            return  # interpreted, or an older Triton, which compiles at the first launch
        self._launch = _compile_only
        with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool):
            self.step(self.buffers.clients)
        self._launch = _run

    def step(self, size: int) -> None:
        """Take one step of those of the first `size` clients that have a step left."""
        for layer in range(len(self.layers)):
            self._forward(layer, size)
        for layer in range(len(self.layers) - 1, 0, -1):
            self._input_gradient(layer, size)
        for layer in range(len(self.layers)):
            self._weight_step(layer, size)

    def _forward(self, layer: int, size: int) -> None:
        """Compute a layer's outputs, and the loss after the last layer."""
        plain, buffers, (inputs, outputs) = self.layers[layer], self.buffers, self.sizes[layer]
        last = layer == len(self.layers) - 1
        rows, columns = tile_of(self.batch, 64), tile_of(outputs, MAX_OUTPUTS if last else 32)
        w = buffers.tensors[f"{plain.name}.weight"]
        grid = (triton.cdiv(outputs, columns), size, triton.cdiv(self.batch, rows))
        self._launch(forward_kernel, grid,
            self._inputs(layer), buffers.examples, w, buffers.tensors[f"{plain.name}.bias"] if plain.bias else w,
            self.outs[layer], buffers.data.y, buffers.weight, self.losses, buffers.step_index, buffers.step_counts,
            *self._kept(layer), self.batch, *self._counts(layer), buffers.clients, **self._units(layer),
            PICKS=layer == 0, BIAS=plain.bias, RELU=plain.relu, LAST=last, PRECISION=precision(True),
            BM=rows, BN=columns, BK=tile_of(inputs, 32), num_warps=4, num_stages=3,
        )  # fmt: skip

    def _input_gradient(self, layer: int, size: int) -> None:
        """Compute the gradient of a layer's inputs."""
        inputs, outputs = self.sizes[layer]
        few = outputs <= 16
        rows, columns = tile_of(self.batch, 64), tile_of(inputs, 64 if few else 32)
        grid = (triton.cdiv(inputs, columns), size, triton.cdiv(self.batch, rows))
        self._launch(input_gradient_kernel, grid,
            self.grads[layer], self.buffers.tensors[f"{self.layers[layer].name}.weight"], self.outs[layer - 1],
            self.grads[layer - 1], self.buffers.step_index, self.buffers.step_counts, *self._kept(layer), self.batch,
            *self._counts(layer), **self._units(layer), RELU=self.layers[layer - 1].relu, PRECISION=precision(not few),
            BM=rows, BN=columns, BK=tile_of(outputs, 32), num_warps=4, num_stages=1 if few else 3,
        )  # fmt: skip

    def _weight_step(self, layer: int, size: int) -> None:
        """Step a layer's weight and bias."""
        plain, buffers, (inputs, outputs) = self.layers[layer], self.buffers, self.sizes[layer]
        names = f"{plain.name}.weight", f"{plain.name}.bias" if plain.bias else f"{plain.name}.weight"
        (w, b), momentum, masked = (
            [buffers.tensors[name] for name in names],
            bool(buffers.velocity),
            bool(buffers.movable),
        )
        velocities = [buffers.velocity.get(name, w) for name in names]  # placeholders where there is none
        movable = [buffers.movable.get(name, w) for name in names]
        rows, columns = tile_of(outputs, 32), tile_of(inputs, 128)
        tiles, optimiser = triton.cdiv(inputs, columns), buffers.method.optimiser
        grid = (tiles * triton.cdiv(outputs, rows), size)
        self._launch(weight_step_kernel, grid,
            self.grads[layer], self._inputs(layer), buffers.examples,
            w, velocities[0], movable[0], b, velocities[1], movable[1],
            w if buffers.scaling is None else buffers.scaling.rate_factors[names[0]], buffers.rate,
            buffers.step_index, buffers.step_counts,
            *self._kept(layer), self.batch, *self._counts(layer), buffers.clients,
            float(optimiser.momentum), float(optimiser.weight_decay),
            **self._units(layer),
            PICKS=layer == 0, BIAS=plain.bias, MOVABLE=masked, VELOCITY=momentum, SCALED=buffers.scaling is not None,
            PRECISION=precision(False), TILES=tiles,
            BM=rows, BN=columns, BK=tile_of(self.batch, 64 if masked else 32), num_warps=4, num_stages=1,
        )  # fmt: skip

    def _inputs(self, layer: int) -> Tensor:
        """A layer's inputs: examples, or the outputs of the layer before."""
        return self.buffers.data.x if layer == 0 else self.outs[layer - 1]

    def _kept(self, layer: int) -> list[Tensor]:
        """Inputs and outputs of the layer that each client keeps [C]; placeholders where all are kept."""
        compact = self.buffers.compact
        if compact is None:
            return [self.buffers.step_counts] * 2
        return [compact.kept[max(0, layer - 1)], compact.kept[min(layer, len(compact.kept) - 1)]]

    def _units(self, layer: int) -> dict[str, int]:
        """Units of inputs and outputs, and whether these are cut; the network's inputs and classes never are."""
        cut = self.buffers.compact is not None
        return units(self.sizes[layer]) | {"CUT_IN": cut and layer > 0, "CUT_OUT": cut and layer < len(self.layers) - 1}

    def _counts(self, layer: int) -> list[int]:
        """Inputs and outputs in units."""
        return [size // unit for size, unit in zip(self.sizes[layer], self._units(layer).values())]


def units(ends: tuple[int, ...]) -> dict[str, int]:
    """Powers of two, at most 16, that divide a layer's inputs and outputs."""
    return {name: min(16, size & -size) for name, size in zip(("IN_UNIT", "OUT_UNIT"), ends)}


def precision(three_products: bool) -> str:
    """Precision of products: three of TF32 numbers are as exact as one of float32, and faster for some kernels."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3" if three_products else "ieee"


def fits(layers: tuple[PlainLayer, ...], setting: Setting, data: Examples) -> str:
    """Why these kernels cannot take the steps; empty if they can."""
    (x, y), kind = data, next(setting.module.parameters()).dtype
    if not x.dtype == kind == torch.float32 or y.dtype != torch.int64:
        return f"examples are {x.dtype}, targets {y.dtype} and parameters {kind}; they need float32, int64 and float32"
    if not (x.is_contiguous() and y.is_contiguous()):
        return "examples do not lie in one block of memory"
    outputs = setting.module.get_parameter(f"{layers[-1].name}.weight").shape[0] if layers else 0
    return "" if outputs <= MAX_OUTPUTS else f"the network has {outputs} outputs; they take at most {MAX_OUTPUTS}"
