"""Methods with and without a barrier next to each other, with settings that fit each."""

from __future__ import annotations

import pytest

from fedloom.cli.options import choices_of
from fedloom.errors import BadExperiment
from fedloom.parts.pace.buffered import Buffered
from fedloom.runs.experiment import Experiment
from fedloom.studies.compare import compare
from fedloom.studies.forms import Form, experiment_of, fitting, form_of, takes
from fedloom.studies.plan import CANDIDATES, candidates, plan

SMALL = {"fleet": "iot", "clients": 30, "model": {"name": "mlp", "settings": {"widths": [4]}}}


def test_a_form_is_a_method_and_a_pace():
    assert form_of("fedspu+buffered") == Form("fedspu", "buffered")
    assert form_of("fedspu") == Form("fedspu", None)
    assert form_of("my+file.py:mine") == Form("my+file.py:mine", None)
    assert form_of("fedspu+barrier") == Form("fedspu+barrier", None), "which is no method, and refused as such"
    with pytest.raises(BadExperiment, match=r"fedspu\+slow"):
        experiment_of("fedspu+slow", SMALL, {}, ["fedspu+slow"])


def test_settings_go_to_those_that_take_them():
    names = ["fedavg", "fedavg+buffered", "fedbuff", "fedprox+windowed"]
    pairs = {
        "per_round": 6,
        "world.deadline": 9.0,
        "pace.buffer": 3,
        "stale.exponent": 1,
        "seconds": 5,
        "mu": 0.1,
        "rate": 0.2,
    }
    found = {name: fitting(name, pairs, names) for name in names}
    assert found["fedavg"] == {"per_round": 6, "world.deadline": 9.0, "rate": 0.2}
    assert found["fedavg+buffered"] == {"pace.buffer": 3, "stale.exponent": 1, "rate": 0.2}
    assert found["fedbuff"] == {"stale.exponent": 1, "rate": 0.2}
    assert found["fedprox+windowed"] == {"stale.exponent": 1, "seconds": 5, "mu": 0.1, "rate": 0.2}
    assert takes("fedbuff", "buffer")
    assert not takes("fedavg", "buffer")


def test_a_step_has_the_replies_of_a_cohort_and_twice_as_many_are_in_flight():
    made = experiment_of("fedspu+buffered", SMALL, {"per_round": 6}, ["fedspu", "fedspu+buffered"])
    assert made.build_method().pace == Buffered(6, 12)
    made = experiment_of("fedspu+buffered", {**SMALL, "clients": 8}, {}, ["fedspu+buffered"])
    assert made.build_method().pace == Buffered(4, 8)
    made = experiment_of("fedspu+buffered", SMALL, {"pace.buffer": 2, "in_flight": 9}, ["fedspu+buffered"])
    assert made.build_method().pace == Buffered(2, 9)
    made = experiment_of("fedbuff", {**SMALL, "clients": 4}, {}, ["fedbuff"])
    assert made.build_method().pace == Buffered(2, 4), "which a small fleet can fill"
    made = experiment_of("fedbuff", SMALL, {"per_round": 6, "in_flight": 20}, ["fedavg", "fedbuff"])
    assert made.build_method().pace == Buffered(6, 20)


@pytest.mark.parametrize(("name", "steps"), [("fedavg", 1), ("fedbuff", 1), ("fedasync", 10), ("fedavg+buffered", 1)])
def test_rounds_are_as_many_steps_as_have_their_replies(name, steps):
    given = {**SMALL, "rounds": 7, "evaluate_every": 2}
    made = experiment_of(name, given, {}, [name])
    assert (made.rounds, made.evaluate_every) == (7 * steps, 2 * steps)
    made = experiment_of(name, SMALL, {}, [name])
    assert (made.rounds, made.evaluate_every) == (50 * steps, steps)
    made = experiment_of(name, {**SMALL, "evaluate_seconds": 5.0}, {}, [name])
    assert (made.evaluate_every, made.evaluate_seconds) == (1, 5.0)


def test_a_plan_tries_both_kinds():
    base = Experiment(**SMALL, rounds=4, per_round=5, world={"deadline": 30.0})
    found = candidates(base, CANDIDATES, ["float32"], {})
    assert list(found) == list(CANDIDATES)
    kinds = {name: one.build_method().pace.barrier for name, one in found.items()}
    assert [name for name, barrier in kinds.items() if not barrier] == [
        *("fedbuff", "fedasync", "heterofl+buffered", "fedspu+buffered")
    ]
    assert {name: one.world.deadline for name, one in found.items()} == {
        name: 30.0 if barrier else None for name, barrier in kinds.items()
    }
    assert found["fedasync"].rounds == 4 * 5
    typed = choices_of(["pace=own,buffered", "pace.buffer=2,4"])
    found = candidates(base, ["fedavg", "fedbuff"], ["float32"], typed)
    assert list(found) == ["fedavg", "fedavg+buffered, buffer=2", "fedavg+buffered, buffer=4", "fedbuff"]


def test_both_kinds_are_ranked_by_virtual_time_bytes_and_joules():
    names = ["fedavg", "fedavg+buffered", "fedasync"]
    base = Experiment(**SMALL, rounds=20, per_round=5)
    found = plan(base, 0.2, names, codecs=["float32"])
    assert {option.name for option in found.options} == set(names), [one.name for one in found.missed]
    assert [option.seconds for option in found.options] == sorted(option.seconds for option in found.options)
    contenders = compare(candidates(base, names, ["float32"], {}), [0])
    for contender in contenders:
        (cost,) = contender.costs(0.2)
        option = next(option for option in found.options if option.name == contender.name)
        assert (option.seconds, option.bytes, option.joules) == (cost.seconds, cost.bytes, cost.joules)
        assert min(cost.seconds, cost.bytes, cost.joules) > 0
    asked = {c.name: sum(row["arrived"] for row in c.results[0].rounds) for c in contenders}
    assert asked["fedasync"] == asked["fedavg+buffered"] == 100, "the same work"
    assert asked["fedavg"] <= 100, "of a cohort some may be missing"
