"""Clients' states on a node: who may read them."""

from __future__ import annotations

import stat

import torch

from fedloom.flower.node.state_store import SavedState, StateStore


def test_only_the_owner_reads_states(tmp_path):
    store = StateStore({}, str(tmp_path / "states"), "run")
    for number in (1, 2):  # written, and written again
        store.put(3, SavedState(number, None, {"w": torch.ones(2)}))
    [file] = (tmp_path / "states").rglob("*.safetensors")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    found = store.get(3)
    assert found is not None
    assert (found.round, found.after["w"].tolist()) == (2, [1.0, 1.0])
