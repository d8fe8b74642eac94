"""One step of a cohort's training as a CUDA graph: captured once per shape, replayed for every step of every round.

A replay costs one launch whatever the network, so the accelerator never waits for Python. All that changes from round
to round (weights, masks, batches, the learning rate, what the rule reads) is copied into tensors that stand still.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from fedloom.engine.client import Start, step_by_step
from fedloom.engine.cuda.step_buffers import Course, even
from fedloom.engine.gradient.plain import PlainGradient

log = logging.getLogger("fedloom")

SHAPES = 32  # courses kept; the least used goes first
SPARE = 1.25  # a cohort may be played in the buffers of one that is larger by at most this
PARTS = 8  # where clients take unequally many steps, those still at work are counted up to eighths of the cohort


class Replays:
    """Takes a cohort through its steps by replaying graphs; what cannot be captured runs as it is, step by step."""

    def __init__(self, capture: bool = True) -> None:
        self.capture = capture
        self._courses: OrderedDict[Any, Course] = OrderedDict()

    def __call__(self, start: Start) -> tuple[Tensor, Tensor]:
        """The weights after all steps [C, P], and the summed losses [C]."""
        if isinstance(start.gradient, PlainGradient):  # one client after another: nothing here is alike twice
            return step_by_step(start)
        course = self._course(start)
        course.fill(start)
        try:
            self._replay(course, start.batches.active)
        except RuntimeError as problem:  # whatever a network does that cannot be captured
            if not self.capture:
                raise
            self.capture = False
            log.warning("training is not captured as a CUDA graph, which is slower: %s", str(problem).split("\n")[0])
            course.fill(start)
            self._replay(course, start.batches.active)
        return course.result(start.moments)

    def _course(self, start: Start) -> Course:
        """The buffers that this cohort fits into; new ones if there are none."""
        clients, steps, width = start.batches.examples.shape
        names = tuple(start.task.extras), tuple(start.state), tuple(start.moments)
        shapes = (width, start.first.shape[1], start.task.mask is None, start.held, *names, id(start.data.x))
        kind = (getattr(start.gradient, "layout", None), shapes)
        for key, course in self._courses.items():
            fits = clients <= course.clients <= SPARE * clients and steps <= course.steps
            if fits and key[:2] == kind:
                self._courses.move_to_end(key)
                return course
        room = 1 << (steps - 1).bit_length()  # steps vary with who is selected: a power of two fits them all soon
        course = Course(start, room)
        self._courses[(*kind, clients, room)] = course
        if len(self._courses) > SHAPES:
            self._courses.popitem(last=False)
        return course

    def _replay(self, course: Course, active: list[int]) -> None:
        """Step after step, with as many clients as still take it."""
        alike = even(active, course.clients)
        for now in active:
            size = course.clients if alike else -(-now * PARTS // course.clients) * course.clients // PARTS
            size = min(course.clients, max(size, now))
            if not self.capture:
                course.step(size, alike)
                continue
            if (size, alike) not in course.graphs:
                course.graphs[size, alike] = self._captured(course, size, alike)
            course.graphs[size, alike].replay()

    def _captured(self, course: Course, size: int, alike: bool) -> torch.cuda.CUDAGraph:
        """Run a step aside until everything lazy has happened, put back what it moved, and capture it."""
        with torch.cuda.device(course.device):
            before = [value.clone() for value in course.moving()]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    course.number.zero_()  # as the last step may be the first of its kind
                    course.step(size, alike)
            torch.cuda.current_stream().wait_stream(side)
            for value, old in zip(course.moving(), before):
                value.copy_(old)
            graph = torch.cuda.CUDAGraph()
            course.pool = course.pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=course.pool, capture_error_mode="thread_local"):
                course.step(size, alike)
        return graph
