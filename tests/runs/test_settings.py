"""Settings are checked against a function's own names and types, and read from the command line as JSON."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given, strategies as st

from fedloom.errors import BadExperiment
from fedloom.runs.settings import fit, parse_value, settings_of


def part(shape: int, rate: float = 0.1, *, steps: int | None = None, names: tuple[str, ...] = (), **rest: Any) -> None:
    """A function of every kind of parameter."""


def test_settings_are_what_can_be_named():
    assert list(settings_of(part)) == ["shape", "rate", "steps", "names"]
    assert list(settings_of(part, skip=("shape",))) == ["rate", "steps", "names"]


@pytest.mark.parametrize(
    ("given_value", "fitted"),
    [
        ({"rate": 1}, {"rate": 1.0}),
        ({"steps": None}, {"steps": None}),
        ({"steps": 3, "rate": 0.5}, {"steps": 3, "rate": 0.5}),
        ({"names": ["a", "b"]}, {"names": ("a", "b")}),
        ({}, {}),
    ],
)
def test_fitting_settings(given_value, fitted):
    result = fit("part", part, given_value, skip=("shape",))
    assert result == fitted
    assert [type(value) for value in result.values()] == [type(value) for value in fitted.values()]


@pytest.mark.parametrize(
    ("given_value", "words"),
    [
        ({"rte": 1}, ("part", "'rte'", "did you mean 'rate'?")),
        ({"shape": 1}, ("part", "'shape'")),
        ({"rate": "fast"}, ("'rate'", "part", "'fast'", "a number")),
        ({"steps": 1.5}, ("'steps'", "part", "1.5", "a whole number or none")),
        ({"names": "ab"}, ("'names'", "part", "'ab'")),
        ({"rate": None}, ("'rate'", "part", "None", "a number")),
    ],
)
def test_other_settings_are_refused(given_value, words):
    with pytest.raises(BadExperiment) as refused:
        fit("part", part, given_value, skip=("shape",))
    for word in words:
        assert word in str(refused.value)


def test_required_settings_are_asked_for():
    with pytest.raises(BadExperiment, match="'shape'"):
        fit("part", part, {"rate": 0.5})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("-2", -2),
        ("true", True),
        ("False", False),
        ("none", None),
        ("None", None),
        ("null", None),
        ("[0.7, 0, 0.3]", [0.7, 0, 0.3]),
        ('{"a": 1}', {"a": 1}),
        ('"3"', "3"),
        ("uniform", "uniform"),
        ("a=b", "a=b"),
        ("", ""),
        ("[1,", "[1,"),
        ("[crop,flip]", ["crop", "flip"]),
        ("[ crop , flip ]", ["crop", "flip"]),
        ("[flip]", ["flip"]),
        ("[drop-tokens,0.5,true]", ["drop-tokens", 0.5, True]),
        ("[none,a]", [None, "a"]),
        ("[crop(pad=2),flip]", [{"name": "crop", "settings": {"pad": 2}}, "flip"]),
        ("[crop (pad = 2, fill=none)]", [{"name": "crop", "settings": {"pad": 2, "fill": None}}]),
        (
            "[blur(sizes=[3,5],kind=box),flip()]",
            [{"name": "blur", "settings": {"sizes": [3, 5], "kind": "box"}}, "flip"],
        ),
        ("[my_aug.py:jitter,flip]", ["my_aug.py:jitter", "flip"]),
        ('[a.py:f(name="x, y)")]', [{"name": "a.py:f", "settings": {"name": "x, y)"}}]),
        (r'[f(name="a\"),b"),g]', [{"name": "f", "settings": {"name": 'a"),b'}}, "g"]),
        ("[crop,]", "[crop,]"),
        ("[crop(2)]", "[crop(2)]"),
        ("[crop(pad=)", "[crop(pad=)"),
        ("[crop(pad=2]", "[crop(pad=2]"),
        ("[a](b)]", "[a](b)]"),
        ("[a(b=1)(c=2)]", "[a(b=1)(c=2)]"),
        ("[crop=2]", "[crop=2]"),
        ("[a],[b]", "[a],[b]"),
        ('["a]', '["a]'),
    ],
)
def test_values_as_typed(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(json_values)
def test_json_is_read_as_it_is(value):
    assert parse_value(json.dumps(value)) == value


names = st.from_regex(r"[a-zA-Z_.:/-]([a-zA-Z0-9_.:/ -]{0,8}[a-zA-Z_.:/-])?", fullmatch=True).filter(
    lambda name: isinstance(parse_value(name), str)
)
settings_typed = st.dictionaries(
    names, json_values.filter(lambda value: not isinstance(value, str)), min_size=1, max_size=2
)


@given(st.lists(st.tuples(names, st.none() | settings_typed), min_size=1, max_size=4))
def test_names_with_settings_are_read_as_they_were_written(chosen):
    written, expected = [], []
    for name, settings in chosen:
        if settings is None:
            written.append(name)
            expected.append(name)
        else:
            written.append(f"{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in settings.items())})")
            expected.append({"name": name, "settings": settings})
    assert parse_value(f"[{','.join(written)}]") == expected


@given(st.text(alphabet='[](){}=,"a1 .:', max_size=12))
def test_any_text_is_a_value(text):
    parse_value(text)


def chooser(
    loss: Literal["mse", "l1", "huber"] = "mse", widths: tuple[int, ...] = (1,), steps: int | None = None
) -> None:
    """A function with a choice, a list and a setting that may be left out."""


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"loss": "hubert"}, "expected 'mse', 'l1' or 'huber'."),
        ({"widths": "wide"}, "expected a list of whole numbers, as [1,2]."),
        ({"steps": "few"}, "expected a whole number or none."),
    ],
)
def test_what_is_expected_is_said_in_words(wrong, words):
    with pytest.raises(BadExperiment) as refused:
        fit("goal 'mine'", chooser, wrong)
    assert str(refused.value).endswith(words)
