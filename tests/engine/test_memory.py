"""Freed memory stays with the process while it is asked to."""

from __future__ import annotations

import resource

import torch

from fedloom.engine.memory import kept_memory


def faults() -> int:
    """Pages that the system had to bring."""
    x = torch.ones(20_000_000)  # 80 MB
    del x
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x = torch.ones(20_000_000)
    del x
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_blocks_are_used_again() -> None:
    with kept_memory() as known:
        kept = min(faults() for _ in range(6))  # small things may first settle in a freed block
    if known:
        assert kept < 100 < min(faults() for _ in range(3))
