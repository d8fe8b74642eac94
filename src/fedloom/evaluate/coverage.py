"""How much of every neuron reached the server? Counted from a few of its numbers, reply by reply."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.types import Reply, State, listed
from fedloom.layout import Layout

LOOKS = 8  # numbers looked at of those that lead into a neuron, evenly spaced
LARGEST = 4096  # rows of a tensor that are neurons; more are words
TOGETHER = 64  # rounds of whole replies that are counted at once
REPLIES = "coverage.replies"


class Coverage:
    """Running counts, on the device: nobody waits for them.

    A neuron is a row of a weight tensor. `kept` has for every such tensor `coverage.NAME` [rows], how many of the
    numbers looked at have arrived, and `coverage.replies` [2], replies and rounds whose replies were parts: the part
    of a neuron that arrives with a reply is the count by `LOOKS` times the replies. Methods whose replies are always
    whole keep nothing.
    """

    def __init__(self, layout: Layout) -> None:
        self._rows = {  # tensor -> its neurons
            name.removesuffix(".weight"): shape[0]
            for name, shape in zip(layout.names, layout.shapes)
            if name in layout.parameters and len(shape) > 1 and shape[0] <= LARGEST
        }
        self._layout = layout
        self._looks: Tensor | None = None  # [R * LOOKS] places in the flat vector
        self._hits: Tensor | None = None  # [R]
        self._replies: Tensor | None = None  # [1]
        self._whole: list[Tensor] = []  # who arrived in rounds of whole replies that are not counted yet
        self._parts = 0  # rounds whose replies were parts

    def add(self, reply: Reply) -> None:
        """The replies of a round, as they arrived."""
        if not self._rows:
            return
        if reply.mask is None:
            self._whole.append(reply.arrived)
            if len(self._whole) == TOGETHER:
                self._count_whole()
            return
        self._parts += 1
        if self._looks is None:
            self._looks = listed(_places(self._layout, self._rows), reply.arrived.device)
        seen = reply.mask[:, self._looks].to(torch.float32)  # [C, R * LOOKS]
        hits = reply.arrived.to(torch.float32) @ seen  # exact: of zeros and ones, and quicker than sums of bools
        self._count(reply.arrived.sum().view(1), hits.view(-1, LOOKS).sum(1).long())

    def _count(self, replies: Tensor, hits: Tensor) -> None:
        """So many more replies [1], and hits [R] (or [1], the same for all)."""
        if self._hits is None or self._replies is None:
            self._hits, self._replies = replies.new_zeros(sum(self._rows.values())), torch.zeros_like(replies)
        self._hits = self._hits.to(hits.device) + hits
        self._replies = self._replies.to(replies.device) + replies

    def _count_whole(self) -> None:
        """Rounds of whole replies, many at once: on a GPU calls are what this costs."""
        if self._whole:
            arrived = torch.cat(self._whole).sum().view(1)
            self._count(arrived, LOOKS * arrived)
            self._whole = []

    def kept(self) -> State:
        """What is worth keeping of a run."""
        return self.save() if self._parts else {}

    def save(self) -> State:
        """The counts, to go on from."""
        self._count_whole()
        if self._hits is None or self._replies is None:
            return {}
        pieces = torch.split(self._hits, list(self._rows.values()))
        named = {f"coverage.{name}": piece for name, piece in zip(self._rows, pieces)}
        return {**named, REPLIES: torch.cat([self._replies, self._replies.new_tensor([self._parts])])}

    def load(self, saved: State) -> None:
        """Go on from what was saved."""
        if REPLIES in saved:
            self._replies, self._parts = saved[REPLIES][:1].clone(), int(saved[REPLIES][1])
            self._hits = torch.cat([saved[f"coverage.{name}"] for name in self._rows])


def _places(layout: Layout, rows: dict[str, int]) -> list[int]:
    """Where the numbers lie that are looked at, neuron by neuron."""
    found, start = [], 0
    for name, size in zip(layout.names, layout.sizes):
        if count := rows.get(name.removesuffix(".weight")) if name in layout.parameters else None:
            wide = size // count
            for row in range(count if wide else 0):
                found += [start + row * wide + look * wide // LOOKS for look in range(LOOKS)]
        start += size
    return found
