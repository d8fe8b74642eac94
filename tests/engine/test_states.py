"""Client states: born at first contact, kept by client, as large as the number of clients that ever took part."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from fedloom.engine.storage.client_states import ClientStates
from fedloom.method import Method
from fedloom.parts.local.keep_own import KeepOwn
from pieces import Forced
from worlds import METHODS, play, small, world

CPU = torch.device("cpu")


def newborn(value: float) -> dict[str, Tensor]:
    """A state of two tensors, one without axes."""
    return {"own": torch.full((3,), value), "count": torch.tensor(value)}


def test_birth_is_at_first_contact() -> None:
    states = ClientStates(10, CPU)
    assert states.known().tolist() == []
    assert states.get([4, 2], newborn(1.0))["own"].tolist() == [[1.0] * 3] * 2
    later = states.get([2, 7], newborn(5.0))
    assert later["count"].tolist() == [1.0, 5.0]  # 2 keeps what it was born with
    assert states.known().tolist() == [2, 4, 7]


def test_what_is_put_is_what_is_got() -> None:
    states = ClientStates(10, CPU)
    states.get([4, 2, 9], newborn(0.0))
    states.put([9, 4], {"own": torch.tensor([[9.0] * 3, [4.0] * 3]), "count": torch.tensor([90.0, 40.0])})
    assert states.get([2, 4, 9], newborn(7.0))["count"].tolist() == [0.0, 40.0, 90.0]
    assert states.get([4, 9], newborn(7.0))["own"].tolist() == [[4.0] * 3, [9.0] * 3]


def test_a_got_state_is_a_copy() -> None:
    states = ClientStates(3, CPU)
    states.get([0, 1], newborn(1.0))["own"].fill_(8.0)
    assert states.get([0, 1], newborn(1.0))["own"].eq(1.0).all()


def test_without_state_nobody_is_noted() -> None:
    states = ClientStates(3, CPU)
    assert states.get([0, 1], {}) == {}
    states.put([0, 1], {})
    assert states.known().tolist() == []


def test_a_large_fleet_costs_nothing_until_used() -> None:
    states = ClientStates(10_000, CPU)
    born = {"own": torch.zeros(1000)}
    held = lambda: sum(own.rows.numel() for own in states._stored.values())  # noqa: E731
    assert held() == 0
    states.get([9_999, 5, 700], born)
    assert held() == 3_000
    for client in range(100, 200):
        states.get([client], born)
    assert held() <= 2 * 103 * 1000  # room grows by doubling


@given(st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=6, unique=True), max_size=12))
def test_behaves_as_a_dict_of_clients(cohorts: list[list[int]]) -> None:
    states, expected = ClientStates(20, CPU), {}
    for number, ids in enumerate(cohorts, 1):
        got = states.get(ids, newborn(-float(number)))
        for client in ids:
            expected.setdefault(client, -float(number))
        assert got["count"].tolist() == [expected[client] for client in ids]
        expected.update({client: expected[client] + client for client in ids})
        moved = got["count"] + torch.tensor(ids)
        states.put(ids, {"own": got["own"], "count": moved})
    assert states.known().tolist() == sorted(expected)


def test_a_client_is_born_with_the_network_as_built_whenever_it_is_met() -> None:
    here = world("mlp")
    cohorts = ((0, 1, 2), (2, 3), (3, 4))
    method = small(Method(local=KeepOwn()), select=Forced(cohorts))
    engine = here.local(method)
    met = []
    original = engine.clients.states.get
    engine.clients.states.get = lambda ids, born: met.append((ids, born["own"])) or original(ids, born)  # type: ignore[method-assign]
    play(here, method, engine)
    assert [sorted(ids) for ids, _ in met] == [list(ids) for ids in cohorts]
    assert all(torch.equal(born, here.model) for _, born in met)


def test_only_selected_clients_have_states() -> None:
    here, method = world("mlp"), dict(METHODS)["scaffold"]()
    engine = here.local(method)
    run = play(here, method, engine, rounds=1)
    assert engine.clients.states.known().tolist() == run.replies[0].ids.tolist()


# ---- states that wait until a task has ended


def trained(ids: list[int], value: float) -> tuple[list[int], dict[str, Tensor]]:
    """Clients and what they have after training, each with a number of its own."""
    own = torch.tensor(ids, dtype=torch.float32) + value
    return ids, {"own": own[:, None].repeat(1, 3), "count": own}


def test_a_state_that_waits_is_not_read_until_it_is_settled() -> None:
    states = ClientStates(10, CPU, waits=True)
    states.put(*trained([3, 5, 8], 0.5))
    assert states.get([3, 5], newborn(0.0))["count"].tolist() == [0.0, 0.0]
    states.settle([5, 1])  # nothing waits of client 1
    assert states.get([3, 5, 8], newborn(0.0))["count"].tolist() == [0.0, 5.5, 0.0]
    assert states.known().tolist() == [5]


def test_rows_are_made_in_the_order_of_settling_whoever_trained_together() -> None:
    states = ClientStates(10, CPU, waits=True)
    states.put(*trained([1, 3], 0.5))
    states.put(*trained([2, 4], 0.5))
    states.settle([1, 2, 3])
    assert states.save()["client"].tolist() == [1, 2, 3]


def test_what_waits_is_saved_and_loaded() -> None:
    states, other = (ClientStates(10, CPU, waits=True) for _ in range(2))
    states.put(*trained([3, 5, 8], 0.5))
    states.settle([5])
    other.load({name: value.clone() for name, value in states.save().items()})
    for one in (states, other):
        one.settle([3, 8])
        assert one.get([3, 5, 8], newborn(0.0))["count"].tolist() == [3.5, 5.5, 8.5]


def test_at_most_twice_the_states_that_wait_are_kept() -> None:
    states, ids = ClientStates(100, CPU, waits=True), list(range(64))
    states.put(*trained(ids, 0.5))
    while ids:
        gone, ids = ids[:5], ids[5:]
        states.settle(gone)
        kept = {id(own): len(own["own"]) for own, _ in states._aside.values()}
        assert sum(kept.values()) <= 2 * len(ids)
        assert states.get(gone, newborn(0.0))["count"].tolist() == [client + 0.5 for client in gone]
