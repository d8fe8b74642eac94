"""Every method says which paper it is from, whether it is the paper's, and what its masks govern."""

from __future__ import annotations

import inspect

import pytest

from fedloom.core.paper import PAPERS
from fedloom.methods import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_where_it_comes_from(name: str) -> None:
    make = METHODS[name]
    said = PAPERS[make]
    assert said.mask
    assert "\n" not in said.mask
    assert 2015 < said.year < 2027
    assert "the paper's" in said.origin or "reads it" in said.origin or not said.source
    first = (inspect.getdoc(inspect.getmodule(make)) or "").partition("\n")[0]
    assert not said.source or said.source.split()[0].rstrip(",") in first, "the docstring names other authors"


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_send_whole_models_say_so(name: str) -> None:
    method, says_whole = METHODS[name](), PAPERS[METHODS[name]].mask.startswith("none: ")
    assert not says_whole or method.mask.sends_all
    if method.mask.sends_all and method.masks_known:
        assert says_whole


def test_no_paper_is_left_over() -> None:
    assert {make for make in PAPERS if make.__module__.startswith("fedloom.")} == set(METHODS.values())
