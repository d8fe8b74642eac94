"""Functions of tensors replayed as CUDA graphs when shapes recur: one launch instead of many."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("fedloom")

SHAPES = 16  # graphs kept per function at most; the least recently used go first
Made = tuple[Tensor, ...]


@dataclass
class _Graph:
    """A captured graph with its static inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    inputs: Made
    outputs: Made
    fixed: tuple[Any, ...]  # references that keep alive what the graph reads
    last: torch.cuda.Stream  # stream of the last call


class Captured:
    """Calls `make(inputs, *fixed)`, which must be pure and must not read a tensor's value on the host.

    `inputs` may hold other values at every call. `fixed` is part of the graph: numbers, strings and tuples are compared
    by value, other objects by identity. The first call with a shape runs eagerly: shapes that never recur cost nothing.
    """

    def __init__(self, make: Callable[..., Made]) -> None:
        self.make = make
        self._graphs: OrderedDict[Any, _Graph | None] = OrderedDict()  # None: called once, not captured yet
        self._lock = RLock()
        self._able = True

    def __call__(self, inputs: Made, *fixed: Any) -> Made:
        """Return the function's results, in tensors that belong to the caller."""
        somewhere = inputs[0].is_cuda and inputs[0].numel() > 0  # a network without neurons has no work to capture
        if not somewhere or not self._able or torch.cuda.is_current_stream_capturing():
            return self.make(inputs, *fixed)
        marks = tuple(one if isinstance(one, int | float | str | tuple) else id(one) for one in fixed)
        key = (tuple((i.shape, i.dtype, i.device) for i in inputs), marks)
        with self._lock, torch.no_grad():
            if key not in self._graphs:
                self._keep(key, None)
                return self.make(inputs, *fixed)
            found = self._graphs[key]
            if found is None:
                try:
                    found = self._captured(inputs, fixed)
                except RuntimeError as problem:  # the function does something that cannot be captured
                    self._able = False
                    name = getattr(self.make, "__name__", "a step")
                    log.warning("%s is not captured as a CUDA graph, which is slower: %s", name, problem)
                    return self.make(inputs, *fixed)
            self._keep(key, found)
            self._follow(found)
            torch._foreach_copy_(found.inputs, inputs, non_blocking=True)
            found.graph.replay()
            return tuple(value.clone() for value in found.outputs)

    def _follow(self, found: _Graph) -> None:
        """Make a call on another stream wait for the call before it."""
        device = found.last.device_index
        if (
            torch._C._cuda_getCurrentRawStream(device) != found.last.cuda_stream
        ):  # making a torch.cuda.Stream takes longer
            now = torch.cuda.current_stream(device)
            now.wait_stream(found.last)
            found.last = now

    def _keep(self, key: Any, graph: _Graph | None) -> None:
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        if len(self._graphs) > SHAPES:
            self._graphs.popitem(last=False)

    def _captured(self, inputs: Made, fixed: tuple[Any, ...]) -> _Graph:
        """Warm up once on a side stream for what is initialised lazily, then capture."""
        places = tuple(value.clone() for value in inputs)
        side = torch.cuda.Stream(inputs[0].device)
        side.wait_stream(torch.cuda.current_stream(inputs[0].device))
        with torch.cuda.stream(side):
            self.make(places, *fixed)
        torch.cuda.current_stream(inputs[0].device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = self.make(places, *fixed)
        return _Graph(graph, places, outputs, fixed, torch.cuda.current_stream(inputs[0].device))
