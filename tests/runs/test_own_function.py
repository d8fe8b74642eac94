"""A user's own function is read from its file, anew after a change, and refused by name where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedloom.errors import BadExperiment
from fedloom.runs.own_function import own_function


def load(name: str) -> Callable[..., Any]:
    """The function, as the setting `method`."""
    own = own_function(name)
    assert own is not None
    assert str(own) == name
    return own.load("method")


@pytest.mark.parametrize("name", ["fedavg", "hub/name", "images.npz", "mine.py", "cuda:1", ""])
def test_other_names_are_no_functions(name):
    assert own_function(name) is None


def test_functions_come_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from dataclasses import dataclass\n@dataclass\nclass Mine:\n    x: int = 3\nnumber = 5\n")
    assert load(f"{file}:Mine")().x == 3
    file.write_text("class Mine:\n    x = 4\n# longer, so that no cached code is taken for this\n")
    assert load(f"{file}:Mine").x == 4  # read anew


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent.py:Mine", ("method", "absent.py", "path/to/file.py:function")),
        ("mine.py:Mne", ("mine.py", "'Mne'", "did you mean 'Mine'?")),
        ("mine.py:number", ("mine.py", "'number'", "Known: Mine")),
        ("mine.py:", ("mine.py", "''")),
    ],
)
def test_functions_not_in_a_file_are_refused(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("class Mine:\n    pass\nnumber = 5\n")
    with pytest.raises(BadExperiment) as refused:
        load(name)
    for word in words:
        assert word in str(refused.value)
