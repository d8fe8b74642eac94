"""The list of methods under test is complete."""

from fedloom.methods import METHODS as NAMED
from worlds import METHODS


def test_every_method_of_the_project_is_tested() -> None:
    assert NAMED.keys() <= {name for name, _ in METHODS}
    assert len({name for name, _ in METHODS}) == len(METHODS)
