"""Coverage of neurons: the part of each that reached the server, counted from a few of its numbers per reply."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.types import Reply, State, listed
from fedloom.layout import Layout

LOOKS = 8  # incoming weights of a neuron that are sampled, evenly spaced
LARGEST = 4096  # rows of a weight that are neurons at most; larger ones are embeddings of words
TOGETHER = 64  # rounds of whole replies that are counted at once
REPLIES = "coverage.replies"


class Coverage:
    """Running counts on the device, without synchronisation.

    A neuron is a row of a weight tensor. `kept` has, for each such tensor, `coverage.NAME` [rows], the number of
    sampled weights that arrived, and `coverage.replies` [2], the numbers of replies and of rounds with partial replies.
    The part of a neuron that arrives with a reply is its count divided by `LOOKS` times the replies. Methods whose
    replies are always whole keep nothing.
    """

    def __init__(self, layout: Layout) -> None:
        self._rows = {  # tensor -> number of neurons
            name.removesuffix(".weight"): shape[0]
            for name, shape in zip(layout.names, layout.shapes)
            if name in layout.parameters and len(shape) > 1 and shape[0] <= LARGEST
        }
        self._layout = layout
        self._looks: Tensor | None = None  # [R * LOOKS] indices into the flat vector
        self._hits: Tensor | None = None  # [R]
        self._replies: Tensor | None = None  # [1]
        self._whole: list[Tensor] = []  # [C] each: which replies arrived, of rounds of whole replies not counted yet
        self._parts = 0  # rounds with partial replies

    def add(self, reply: Reply) -> None:
        """Count the replies of a round that arrived."""
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
        hits = reply.arrived.to(torch.float32) @ seen  # exact for zeros and ones, and faster than sums of bools
        self._count(reply.arrived.sum().view(1), hits.view(-1, LOOKS).sum(1).long())

    def _count(self, replies: Tensor, hits: Tensor) -> None:
        """Add numbers of replies [1] and of hits [R], or [1] for all neurons."""
        if self._hits is None or self._replies is None:
            self._hits, self._replies = replies.new_zeros(sum(self._rows.values())), torch.zeros_like(replies)
        self._hits = self._hits.to(hits.device) + hits
        self._replies = self._replies.to(replies.device) + replies

    def _count_whole(self) -> None:
        """Count rounds of whole replies, many at once, since on a GPU the calls are the cost."""
        if self._whole:
            arrived = torch.cat(self._whole).sum().view(1)
            self._count(arrived, LOOKS * arrived)
            self._whole = []

    def kept(self) -> State:
        """The counts for the run folder; empty if all replies were whole."""
        return self.save() if self._parts else {}

    def save(self) -> State:
        """The counts for a checkpoint."""
        self._count_whole()
        if self._hits is None or self._replies is None:
            return {}
        pieces = torch.split(self._hits, list(self._rows.values()))
        named = {f"coverage.{name}": piece for name, piece in zip(self._rows, pieces)}
        return {**named, REPLIES: torch.cat([self._replies, self._replies.new_tensor([self._parts])])}

    def load(self, saved: State) -> None:
        """Restore the counts of a checkpoint."""
        if REPLIES in saved:
            self._replies, self._parts = saved[REPLIES][:1].clone(), int(saved[REPLIES][1])
            self._hits = torch.cat([saved[f"coverage.{name}"] for name in self._rows])


def _places(layout: Layout, rows: dict[str, int]) -> list[int]:
    """Indices of the sampled weights in the flat vector, neuron by neuron."""
    found, start = [], 0
    for name, size in zip(layout.names, layout.sizes):
        if count := rows.get(name.removesuffix(".weight")) if name in layout.parameters else None:
            wide = size // count
            for row in range(count if wide else 0):
                found += [start + row * wide + look * wide // LOOKS for look in range(LOOKS)]
        start += size
    return found
