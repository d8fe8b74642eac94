"""Training steps as CUDA graphs: a step is captured once per shape and replayed for every step of every round.

A replay costs one launch whatever the network, so the accelerator never waits for Python. All that changes from round
to round (weights, masks, batches, the learning rate, what the rule reads) is copied into static buffers.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from fedloom.engine.cuda.step_buffers import StepBuffers, is_uniform
from fedloom.engine.steps import Start

log = logging.getLogger("fedloom")

SHAPES = 32  # buffers kept at most; the least recently used go first
SPARE = 1.25  # a cohort may use buffers made for a cohort that is larger by at most this factor
PARTS = 8  # clients with steps left are rounded up to eighths of the cohort, so that few sizes are captured


class Graphs:
    """Takes a cohort's steps by replaying graphs; without `capture`, or where it fails, runs each step eagerly."""

    def __init__(self, capture: bool = True) -> None:
        self.capture = capture
        self._buffers: OrderedDict[Any, StepBuffers] = OrderedDict()

    def __call__(self, start: Start) -> tuple[Tensor, Tensor]:
        """Return the weights after all steps [C, P] and the summed losses [C]."""
        buffers = self._buffers_for(start)
        buffers.fill(start)
        try:
            self._replay(buffers, start.batches.active)
        except RuntimeError as problem:  # the network does something that cannot be captured
            if not self.capture:
                raise
            self.capture = False
            log.warning("training is not captured as a CUDA graph, which is slower: %s", str(problem).split("\n")[0])
            buffers.fill(start)
            self._replay(buffers, start.batches.active)
        return buffers.result(start.moments)

    def _buffers_for(self, start: Start) -> StepBuffers:
        """Buffers that this cohort fits into; new ones where there are none."""
        clients, steps, width = start.batches.examples.shape
        names = tuple(start.task.extras), tuple(start.state), tuple(start.moments)
        shapes = (width, start.first.shape[1], start.task.mask is None, start.held, *names, id(start.data.x))
        kind = (start.gradient.layout, shapes)
        for key, buffers in self._buffers.items():
            fits = clients <= buffers.clients <= SPARE * clients and steps <= buffers.steps
            if fits and key[:2] == kind:
                self._buffers.move_to_end(key)
                return buffers
        rounded = 1 << (steps - 1).bit_length()  # steps vary with the cohort: powers of two soon fit them all
        buffers = StepBuffers(start, rounded)
        self._buffers[(*kind, clients, rounded)] = buffers
        if len(self._buffers) > SHAPES:
            self._buffers.popitem(last=False)
        return buffers

    def _replay(self, buffers: StepBuffers, active: list[int]) -> None:
        """Take all steps, each with the clients that have steps left."""
        uniform = is_uniform(active, buffers.clients)
        for now in active:
            size = buffers.clients if uniform else -(-now * PARTS // buffers.clients) * buffers.clients // PARTS
            size = min(buffers.clients, max(size, now))
            if not self.capture:
                buffers.step(size, uniform)
                continue
            if (size, uniform) not in buffers.graphs:
                buffers.graphs[size, uniform] = self._captured(buffers, size, uniform)
            buffers.graphs[size, uniform].replay()

    def _captured(self, buffers: StepBuffers, size: int, uniform: bool) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream for what is initialised lazily, put back what that changed, then capture."""
        with torch.cuda.device(buffers.device):
            before = [value.clone() for value in buffers.changed_tensors()]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    buffers.step_index.zero_()  # else the second could read beyond the last step
                    buffers.step(size, uniform)
            torch.cuda.current_stream().wait_stream(side)
            for value, old in zip(buffers.changed_tensors(), before):
                value.copy_(old)
            graph = torch.cuda.CUDAGraph()
            buffers.pool = buffers.pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=buffers.pool, capture_error_mode="thread_local"):
                buffers.step(size, uniform)
        return graph
