"""Every method gives the same numbers under every engine and in any chunking."""

from __future__ import annotations

import pytest
import torch
from worlds import (
    SIZES,
    assert_close,
    assert_identical,
    every_method,
    every_network,
    everything,
    play,
    played,
    states_of,
    world,
)

from fedloom.local.work import Batches, Work
from fedloom.method import Method


@every_network
@every_method
def test_loop_equals_local(method: Method, network: str) -> None:
    here = world(network)
    loop, local = here.loop(method), here.local(method)
    slow, fast = play(here, method, loop), play(here, method, local)
    assert_close(everything(fast), everything(slow), 1e-5)
    ids = local.states.known().tolist()
    assert ids == loop.states.known().tolist()
    assert_close(states_of(local, ids, here.model), states_of(loop, ids, here.model), 1e-4)
    for ours, theirs in zip(fast.replies, slow.replies):
        assert torch.equal(ours.ids, theirs.ids)
        assert_close(ours.report, theirs.report, 1e-5)


@pytest.mark.parametrize("chunk", [1, 7])
@every_method
def test_chunks_equal_the_whole(method: Method, chunk: int) -> None:
    here = world("normed")
    part, whole = play(here, method, here.local(method, chunk)), played("normed", method)
    assert [t.tolist() for t in _cohorts(part)] == [t.tolist() for t in _cohorts(whole)]
    assert_close(everything(part), everything(whole), 1e-5)


def _cohorts(run):  # noqa: ANN
    return [reply.ids for reply in run.replies]
