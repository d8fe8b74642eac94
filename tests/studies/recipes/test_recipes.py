"""Recipes build without data; their claims, and verdicts at their borders."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf, isnan, nan, sqrt

import pytest

from fedloom.errors import BadExperiment
from fedloom.methods import METHODS
from fedloom.parts.select.still_running import StillRunning
from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.claims import (
    DIRECTION,
    FITTED,
    NOT,
    REPRODUCED,
    STOPPED,
    UNSURE,
    UNTRIED,
    VERDICTS,
    Finding,
    findings,
    judge,
    range_of,
    verdict_of,
)
from fedloom.studies.recipes.estimate import EXAMPLES, SPEEDS, expected, runs_of
from fedloom.studies.recipes.measure import MEASURES, SPENT, Run, Span, measured, unit
from fedloom.studies.recipes.page import paper_says, tolerance_of, we_found
from fedloom.studies.recipes.recipe import NEVER, Claim, Measure, Recipe, changed, scaled, selected, tuned
from fedloom.studies.recipes.store import key_of
from fedloom.studies.recipes.table import RECIPES


@cache
def built(name: str, quick: bool) -> Recipe:
    """A recipe is a value: built once, it serves all tests."""
    return RECIPES[name](quick)


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_and_names_itself(name: str, quick: bool) -> None:
    recipe = built(name, quick)  # experiments are checked when built, claims' labels too
    assert (recipe.name, recipe.quick) == (name, quick)
    assert recipe.claims or recipe.columns
    assert recipe.experiments or recipe.facts
    assert any("smaller" in note for note in recipe.notes) == (quick and bool(recipe.experiments))
    for tuning in recipe.tuning:
        assert any(label.startswith(tuning.prefix) for label in recipe.experiments), "a rate that nobody takes"
        own = tuning.prefix == f"{tuning.experiment.method.name}/"
        assert own or tuning.experiment.method.name == "fedavg" or tuning.prefix.startswith("het-")
    assert len({claim.what for claim in recipe.claims}) == len(recipe.claims), "claims can be told apart"


@pytest.mark.parametrize("name", RECIPES)
def test_every_run_of_a_recipe_is_another_and_its_cost_is_known(name: str) -> None:
    recipe = built(name, False)
    keys = [key_of(one) for one in recipe.experiments.values()]
    assert len(set(keys)) == len(keys)
    for one in recipe.experiments.values():
        assert one.data.name in EXAMPLES
        assert one.model.name in SPEEDS or one.model.name.startswith("het-")
    one_by_one = name == "fedasync-staleness"  # a step of one client leaves a GPU idle
    assert one_by_one or expected([recipe], (0,), "cuda") < expected([recipe], (0,), "cpu") or not recipe.experiments


@pytest.mark.parametrize("name", RECIPES)
def test_every_claim_is_judged_on_any_rows(name: str) -> None:
    recipe = built(name, False)
    rows = [
        {"accuracy": 0.5 + 0.004 * n, "top5": 0.9, "loss": 2.0 / n, "per_class": [0.5] * 10, "personal_accuracy": 0.4,
         "bytes_up": 10, "bytes_down": 10, "virtual_seconds": 1.0, "joules": 1.0, "repair.same_group": 1.0}
        for n in range(1, 101)
    ]  # fmt: skip
    runs = {(label, seed): Run(rows, {}) for label in recipe.experiments for seed in (0, 1)}
    found = findings(recipe, runs, (0, 1))
    for one in found:
        assert one.verdict in VERDICTS
        assert one.verdict != UNTRIED
        assert paper_says(one)
        assert tolerance_of(one)
        assert we_found(one)
        assert one.record()["verdict"] == verdict_of(one)
    nothing = findings(recipe, {}, (0, 1)) if recipe.experiments else []
    assert {one.verdict for one in nothing} <= {UNTRIED}
    assert {we_found(one) for one in nothing} <= {"-"}


def test_figures_that_show_the_same_runs_share_them() -> None:
    one, other = built("feddd-fig5", False), built("feddd-fig11", False)
    alone = len(runs_of([one], (0,))) + len(runs_of([other], (0,)))
    assert len(runs_of([one, other], (0,))) == alone - 3 - 2  # three trials of a rate, FedDD's and random rows' runs


def claim(**values: object) -> Claim:
    return Claim(**{"what": "", "of": ("a",), "against": ("b",), "how": "difference", "sign": "above", **values})  # type: ignore[arg-type]


def spans(*values: float) -> tuple[Span, ...]:
    return tuple(Span(value, value) for value in values)


VALUE = {"how": "value", "against": (), "sign": "equal"}
NEVER_IN_150 = claim(**VALUE, paper=NEVER, ran=150)


@pytest.mark.parametrize(
    ("made", "low", "high", "wanted"),
    [
        (claim(), 0.1, 2.0, REPRODUCED),
        (claim(), 0.0, 2.0, UNSURE),  # no difference is possible
        (claim(), -2.0, 0.0, NOT),
        (claim(), -2.0, 0.1, UNSURE),
        (claim(sign="below"), -2.0, -0.1, REPRODUCED),
        (claim(sign="below"), 0.0, 0.1, NOT),
        (claim(paper=2.0, tolerance=1.0), 1.0, 3.0, REPRODUCED),
        (claim(paper=2.0, tolerance=1.0), 0.9, 3.0, DIRECTION),
        (claim(paper=2.0, tolerance=1.0), 0.1, 0.2, DIRECTION),  # on its side, but another number
        (claim(paper=2.0, tolerance=5.0), 0.9, 2.0, DIRECTION),  # a tolerance is at most half of the effect
        (claim(paper=2.0, tolerance=1.0), -0.5, 0.5, NOT),  # its number is ruled out, and nothing is shown
        (claim(paper=2.0, tolerance=1.0), -0.5, 1.5, UNSURE),
        (claim(sign="equal", tolerance=1.0), -1.0, 1.0, REPRODUCED),
        (claim(sign="equal", tolerance=1.0), -1.1, 1.0, UNSURE),
        (claim(sign="equal", tolerance=10.0), 0.6, 18.2, UNSURE),
        (claim(sign="equal", tolerance=1.0), 1.1, 1.2, NOT),
        (claim(how="ratio", sign="below"), 0.5, 0.9, REPRODUCED),
        (claim(how="ratio", sign="below"), 1.0, 1.0, NOT),
        (claim(how="ratio", sign="below"), 0.0, 0.7, REPRODUCED),  # the other never arrives
        (claim(how="ratio", sign="below"), 0.5, inf, UNSURE),
        (claim(**VALUE, paper=79.1, tolerance=3.0), 51.6, 101.6, UNSURE),
        (claim(**VALUE, paper=79.1, tolerance=3.0), 76.1, 82.1, REPRODUCED),
        (claim(**VALUE, paper=79.1, tolerance=3.0), 82.2, 90.0, NOT),
        (claim(**VALUE, paper=10.0, tolerance=2.0), 76.0, inf, NOT),
        (NEVER_IN_150, 151.0, inf, REPRODUCED),
        (NEVER_IN_150, 146.0, inf, UNSURE),  # one seed arrived
        (NEVER_IN_150, 76.0, inf, UNSURE),  # half of the rounds were run
        (NEVER_IN_150, 100.0, 150.0, NOT),
        (claim(), -inf, inf, UNSURE),
    ],
)
def test_verdicts_at_their_borders(made: Claim, low: float, high: float, wanted: str) -> None:
    assert judge(made, Span(low, high)) == wanted
    assert verdict_of(Finding(made, (), wanted)) == wanted
    control = Finding(replace(made, control=True), (), wanted)
    assert verdict_of(control) in ("holds", "unsure", "does not hold")


def test_the_range_of_a_value_is_its_interval_and_of_one_seed_everything() -> None:
    low, high = range_of(spans(1.0, 2.0, 3.0))
    assert (low, high) == pytest.approx((2 - 4.30265 / sqrt(3), 2 + 4.30265 / sqrt(3)), rel=1e-5)
    assert range_of(spans(1.0)) == (-inf, inf)
    assert range_of((*spans(1.0), Span(nan, nan))) == (-inf, inf)
    assert range_of((*spans(146.0), Span(151.0, inf))) == (146.0, inf)  # never is no number


def test_never_is_a_bound_in_comparisons() -> None:
    never, reached = Span(151, inf), Span(75, 75)
    assert reached.over(never) == (0, 75 / 151)
    assert never.over(reached) == (151 / 75, inf)
    assert never.over(never) == (0, inf)
    assert never.minus(reached) == (76, inf)
    assert not never.known
    assert isnan(reached.over(Span(0, 0)).low)


def rows(*accuracies: float | None) -> Run:
    classes = [None if one is None else [one, 0.0] for one in accuracies]
    return Run(
        [
            {"accuracy": one, "per_class": each, "virtual_seconds": 2.0, "bytes_up": 1, "bytes_down": 2, "joules": None}
            for one, each in zip(accuracies, classes)
        ],
        {},
    )


def test_numbers_of_runs() -> None:
    runs = {("a", 0): rows(0.1, None, 0.5, 0.4), ("b", 0): rows(0.1, None, 0.3, 0.1)}

    def of(what: str, **values: object) -> float | Span | None:
        found = measured(runs, {}, "a", 0, Measure(what, **values))  # type: ignore[arg-type]
        return found.low if found is not None and found.known else found

    assert of("accuracy") == 40
    assert of("best") == 50
    assert of("late") == pytest.approx(100 / 3)
    assert of("rounds") == 4
    assert of("rounds to", at=50) == 3
    assert of("rounds to", at=51) == Span(5, inf)  # in four rounds it was not
    assert of("seconds to", at=51) == Span(8, inf)
    assert of("seconds to", at=50) == 6
    assert of("classes", labels=(0, 1)) == 20
    assert of("swing") == pytest.approx(10)
    assert of("gigabytes") == pytest.approx(12e-9)
    assert of("away", baseline="b") == pytest.approx(100 * (0.2 + 0.3) / 3)
    assert of("away", baseline="c") is None
    assert measured(runs, {}, "c", 0, Measure()) is None
    assert measured(runs, {"c": 7.0}, "c", 0, Measure("fact")) == Span(7, 7)
    table = {"repair.distance": [[None, 1.0, 4.0], [1.0, None, 2.0], [4.0, 2.0, None]]}
    assert MEASURES["separation"](Run([], table), Measure()) == pytest.approx(3.0)
    assert isnan(MEASURES["separation"](Run([], {}), Measure()))
    assert all(isinstance(unit(Measure(what)), str) for what in MEASURES)
    assert set(MEASURES) > set(SPENT) == {what for what in MEASURES if " to" in what}


def little(*claims: Claim, facts: dict[str, float] | None = None, rounds: int = 1, quick: bool = False) -> Recipe:
    """A recipe of runs `a` and `b`."""
    one = changed(built("fedumf-table1", True).experiments["rate 0.05/C 0.1/FedAvg"], rounds=rounds)
    return Recipe("little", "", {"a": one, "b": one}, claims, facts=facts or {}, quick=quick)


def test_a_mean_over_labels_needs_all_of_them() -> None:
    runs = {("a", 0): rows(0.2), ("b", 0): rows(0.4), ("a", 1): rows(0.6)}
    found = findings(little(Claim("", ("a", "b"), Measure())), runs, (0, 1))[0]
    assert [value.low for value in found.values] == pytest.approx([30.0])


def test_runs_that_were_stopped_are_judged_by_what_more_rounds_cannot_change() -> None:
    to, pair = Measure("rounds to", at=90), {"against": ("b",), "how": "ratio", "sign": "below"}
    recipe = little(
        Claim("neither arrives", ("a",), to, **pair),  # type: ignore[arg-type]
        Claim("never", ("a",), to, paper=NEVER, ran=2),
        Claim("too late already", ("a",), to, paper=1.0, tolerance=0.1),
        Claim("arrived", ("a",), Measure("rounds to", at=20), paper=1.0, tolerance=0.1),
        Claim("at the end", ("a",), Measure("accuracy"), paper=20.0, tolerance=1.0),
        Claim("at the end, not", ("a",), Measure("accuracy"), paper=90.0, tolerance=1.0),
        rounds=4,
    )
    short = {(label, seed): rows(0.2, 0.2) for label in "ab" for seed in (0, 1)}
    found = findings(recipe, short, (0, 1), scale=0.5)
    assert [one.verdict for one in found] == [STOPPED, REPRODUCED, NOT, REPRODUCED, STOPPED, STOPPED]
    assert [one.so_far for one in found] == [UNSURE, None, None, None, REPRODUCED, NOT]
    assert verdict_of(found[5]) == "stopped early; so far: not reproduced"
    ended = findings(recipe, {at: rows(0.2) for at in short}, (0, 1), scale=0.5)  # by themselves, before the cut
    assert [one.verdict for one in ended] == [UNSURE, UNSURE, NOT, REPRODUCED, REPRODUCED, NOT]
    quick = findings(replace(recipe, quick=True), {at: rows(*[0.2] * 4) for at in short}, (0, 1))
    assert [one.verdict for one in quick][3:] == [REPRODUCED, STOPPED, STOPPED]


def test_one_seed_tells_nothing_and_counted_facts_need_none() -> None:
    runs = {("a", 0): rows(0.6), ("b", 0): rows(0.4), ("a", 1): rows(0.6)}
    recipe = little(claim(), Claim("", ("c",), Measure("fact"), paper=7.0, tolerance=0.1), facts={"c": 7.0})
    [asked, fact] = findings(recipe, runs, (0,))
    [left, _] = findings(recipe, runs, (0, 1))
    assert (asked.verdict, left.verdict, fact.verdict) == (UNSURE, UNSURE, REPRODUCED)
    assert (we_found(asked), we_found(left), we_found(fact)) == ("20.0 %", "20.0 % (one seed)", "7.0 %")


def test_what_chose_a_setting_is_no_evidence() -> None:
    recipe = built("fedumf-table1-30", False)
    fitted = [one.what for one in recipe.claims if one.fitted]
    assert len(fitted) == 24
    assert all("/FedAvg: rounds to" in what for what in fitted)
    assert not any(one.fitted for name in ("fedumf-table1", "fedumf-table2-30") for one in built(name, False).claims)
    runs = {(label, seed): rows(0.99) for label in recipe.experiments for seed in (0, 1)}
    found = {one.claim.what: one for one in findings(recipe, runs, (0, 1))}
    assert {found[what].verdict for what in fitted} == {FITTED}


def test_no_tolerance_is_as_large_as_the_effect() -> None:
    for name in RECIPES:
        for one in built(name, False).claims:
            if one.paper is not None and one.sign != "equal":
                assert one.margin <= abs(one.paper - one.nothing) / 2


def test_baselines_stop_early_by_the_same_rule() -> None:
    recipe = built("fedspu-table2", True)
    for method in ("FjORD", "FedSPU"):
        one = recipe.experiments[f"cifar10/0.5/{method}, early stopping"].build_method()
        assert one.select == StillRunning(10)
        assert one.local.traits.judges
    asked = Experiment(method={"name": "fedspu", "settings": {"early_stopping": True}}).build_method()
    assert Experiment(method="fedspu", training={"stop_early": 0.7}).build_method() == asked
    with pytest.raises(BadExperiment, match="stop_early draws a number of clients"):
        Experiment(method="fedumf", training={"stop_early": 0.7})  # everybody trains, and some may send


def test_every_method_is_on_the_hard_fleet_with_a_rate_of_its_own() -> None:
    recipe = built("hard-fleet", False)
    assert [label.partition("/")[0] for label in recipe.experiments] == list(METHODS)
    rates = {one.prefix: n + 1.0 for n, one in enumerate(recipe.tuning)}
    found = [one.training.rate for one in tuned(recipe, rates).experiments.values()]
    assert found == list(rates.values())  # also where one name begins as another
    assert {len(one.rates) for one in recipe.tuning} == {3}


def test_scaling_choosing_and_tuning() -> None:
    recipe = built("feddd-fig5", False)
    small = scaled(recipe, 0.1)
    assert {one.rounds for one in small.experiments.values()} == {10, 6}
    assert {one.experiment.rounds for one in small.tuning} == {10, 6}
    assert scaled(recipe, 1.0) is recipe
    with pytest.raises(BadExperiment, match="scale"):
        scaled(recipe, 0)
    some = selected(recipe, ["mnist/", "Oort"])
    assert len(some.asked) == 5 + 1 + 1
    assert [one.prefix for one in selected(recipe, ["mnist"]).trials] == ["mnist/"]
    assert "cifar10/non-iid-a/Oort" in some.asked
    assert selected(recipe, []).asked == recipe.experiments
    rated = tuned(recipe, {"mnist/": 0.7})
    assert rated.experiments["mnist/non-iid-a/FedDD"].training.rate == 0.7
    assert rated.experiments["fmnist/non-iid-a/FedDD"] == recipe.experiments["fmnist/non-iid-a/FedDD"]


def test_a_claim_about_nothing_is_refused() -> None:
    with pytest.raises(BadExperiment, match="unknown run 'b'"):
        Recipe("r", "", {"a": built("fedumf-table1", True).experiments["rate 0.05/C 0.1/FedAvg"]}, (claim(),))


def test_a_key_is_of_what_decides_the_numbers() -> None:
    one = built("fedumf-table1", True).experiments["rate 0.05/C 0.1/FedAvg"]
    assert key_of(changed(one, device="cpu", chunk=3, memory=1.0)) == key_of(one)
    assert key_of(changed(one, seed=1)) != key_of(one)
    assert key_of(changed(one, training={"rate": 0.3})) != key_of(one)
