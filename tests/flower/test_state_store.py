"""Clients' states on a node: who may read them."""

from __future__ import annotations

import stat

import torch

from fedloom.flower.node.state_store import Start, StateStore
from fedloom.flower.protocol.history import History


def test_only_the_owner_reads_states(tmp_path):
    store = StateStore({}, str(tmp_path / "states"), "run", History())
    for number in (1, 1):  # written, and written again
        store.put(3, number, 1, Start(0, None), {"w": torch.ones(2)})
    [file] = (tmp_path / "states").rglob("*.safetensors")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    found = store.start_of(3, 2)
    assert found.state is not None
    assert (found.round, found.state["w"].tolist()) == (1, [1.0, 1.0])
