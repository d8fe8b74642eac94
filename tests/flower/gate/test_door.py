"""Who is let in, and who has to go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from fedloom.flower.gate.door import Door, Visitor, origin_of
from fedloom.flower.gate.limits import Limits

LIMITS = Limits(reply=1, connections=6, strangers=3, of_node=2)
EVENTS = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([None, b"1", b"2", b"3", b"4"])), max_size=60)


@given(EVENTS)
def test_bounds_hold_whoever_comes(events):
    """And nobody is closed who is not counted, or counted after it was closed."""
    door, closed, open_now = Door(LIMITS), list[Visitor](), list[Visitor]()
    group: dict[Visitor, object] = {}
    for origin, key in events:
        visitor = Visitor(origin, lambda: None)
        visitor.close = lambda visitor=visitor: closed.append(visitor)
        door.enter(visitor)
        if visitor not in closed:
            group[visitor] = origin
        if key is not None:
            door.recognise(visitor, key)
            if visitor not in closed:
                group[visitor] = key
        open_now = [one for one in group if one not in closed]
        assert len(door) == len(open_now) <= LIMITS.connections
        for name, count in Counter(group[one] for one in open_now).items():
            assert count <= (LIMITS.strangers if isinstance(name, str) else LIMITS.of_node)
    assert len(closed) == len(set(closed))
    for visitor in open_now:
        door.leave(visitor)
    assert len(door) == 0


def test_strangers_do_not_displace_nodes():
    door, closed = Door(LIMITS), list[Visitor]()
    nodes = [Visitor("a", lambda: closed.append(nodes[0])) for _ in range(LIMITS.connections)]
    for place, node in enumerate(nodes):
        door.enter(node)
        door.recognise(node, bytes([place]))
    for _ in range(10):
        stranger = Visitor("b", lambda: None)
        door.enter(stranger)
    assert closed == []
    assert len(door) == LIMITS.connections


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("2001:db8::1", "2001:0db8:0000:0000"),
        ("2001:db8:0:0:9::1", "2001:0db8:0000:0000"), ("fe80::1%eth0", "fe80:0000:0000:0000"),
    ],
)  # fmt: skip
def test_networks_of_one_owner_count_as_one(address, origin):
    assert origin_of(address) == origin
