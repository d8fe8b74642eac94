"""The list of methods under test is complete."""

from adapter_worlds import ADAPTED, HALF
from asynchronous_worlds import ASYNCHRONOUS
from fedloom.methods import METHODS as NAMED
from worlds import METHODS


def test_every_method_of_the_project_is_tested() -> None:
    both = [*METHODS, *ASYNCHRONOUS, *ADAPTED, *HALF]
    assert NAMED.keys() <= {name for name, _ in both}
    assert len({name for name, _ in both}) == len(both)


def test_methods_without_a_barrier_are_in_the_list_of_their_own() -> None:
    assert all(make().pace.barrier for _, make in METHODS)
    assert not any(make().pace.barrier for _, make in ASYNCHRONOUS)
