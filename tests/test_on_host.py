"""Many tensors brought to the host together."""

import torch
from hypothesis import given, strategies as st

from fedloom.core.types import on_host

KINDS = (torch.float32, torch.float64, torch.int64, torch.int8, torch.bool)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 3), max_size=2), st.booleans()), max_size=9))
def test_they_come_in_order_as_they_were(facts):
    tensors = [torch.arange(torch.Size(shape).numel()).view(shape).to(kind) for kind, shape, _ in facts]
    tensors = [t.expand(2, *t.shape) if wide else t for t, (_, _, wide) in zip(tensors, facts)]
    found = on_host([*tensors, *tensors[:2]])  # some twice
    for ours, theirs in zip(found, [*tensors, *tensors[:2]], strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_what_lies_elsewhere_is_joined(monkeypatch):
    """The meta device has no numbers, so a stand-in for the transfer counts them."""
    moved = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: moved.append(self.shape) or torch.zeros(self.shape))
    tensors = [torch.empty(2, 3, device="meta"), torch.empty((), device="meta"), torch.ones(2)]
    assert [t.shape for t in on_host(tensors)] == [(2, 3), (), (2,)]
    assert moved == [(7,)]
