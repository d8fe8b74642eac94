"""A function of tensors, replayed as a CUDA graph where the same shapes come again: one launch instead of many."""

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

SHAPES = 16  # graphs kept of each function; the least used goes first
Made = tuple[Tensor, ...]


@dataclass
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: Made
    outputs: Made
    fixed: tuple[Any, ...]  # held, so that what the graph reads lives on
    last: torch.cuda.Stream  # on which the last caller had its values


class Captured:
    """Calls `make(inputs, *fixed)`, which is pure and reads no value of a tensor on the host.

    `inputs` may hold other values at every call. `fixed` are part of the graph: numbers and tuples by their value,
    other things by what they are. The first call of a shape runs as it is: shapes that never recur cost nothing.
    """

    def __init__(self, make: Callable[..., Made]) -> None:
        self.make = make
        self._graphs: OrderedDict[Any, _Graph | None] = OrderedDict()  # None: seen once
        self._lock = RLock()
        self._able = True

    def __call__(self, inputs: Made, *fixed: Any) -> Made:
        """What the function gives, in tensors of the caller's own."""
        if inputs[0].device.type != "cuda" or not self._able or torch.cuda.is_current_stream_capturing():
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
                except RuntimeError as problem:  # whatever the function does that cannot be captured
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
        """A caller on another stream than the last waits until that one had its values."""
        device = found.last.device_index
        if torch._C._cuda_getCurrentRawStream(device) != found.last.cuda_stream:  # a torch.cuda.Stream takes longer
            now = torch.cuda.current_stream(device)
            now.wait_stream(found.last)
            found.last = now

    def _keep(self, key: Any, graph: _Graph | None) -> None:
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        if len(self._graphs) > SHAPES:
            self._graphs.popitem(last=False)

    def _captured(self, inputs: Made, fixed: tuple[Any, ...]) -> _Graph:
        """Run once aside for what is lazy, then capture."""
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
