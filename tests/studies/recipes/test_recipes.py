"""Recipes build without data; their claims, and verdicts at their borders."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf, isnan, nan

import pytest

from fedloom.errors import BadExperiment
from fedloom.studies.recipes.claims import (
    DIRECTION,
    NOT,
    REPRODUCED,
    UNTRIED,
    VERDICTS,
    Finding,
    findings,
    judge,
    verdict_of,
)
from fedloom.studies.recipes.estimate import EXAMPLES, SPEEDS, expected, runs_of
from fedloom.studies.recipes.measure import MEASURES, Run, measured, unit
from fedloom.studies.recipes.page import paper_says, we_found
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
    assert recipe.claims
    assert recipe.experiments or recipe.facts
    assert any("smaller" in note for note in recipe.notes) == (quick and bool(recipe.experiments))
    for tuning in recipe.tuning:
        assert any(label.startswith(tuning.prefix) for label in recipe.experiments), "a rate that nobody takes"
        assert tuning.experiment.method.name == "fedavg" or tuning.prefix.startswith("het-")
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
    found = findings(recipe.claims, runs, recipe.facts, (0, 1))
    for one in found:
        assert one.verdict in VERDICTS
        assert one.verdict != UNTRIED
        assert paper_says(one)
        assert we_found(one)
        assert one.record()["verdict"] == verdict_of(one)
    nothing = findings(recipe.claims, {}, {}, (0, 1))
    assert {one.verdict for one in nothing} == {UNTRIED}
    assert {we_found(one) for one in nothing} == {"-"}


def test_figures_that_show_the_same_runs_share_them() -> None:
    one, other = built("feddd-fig5", False), built("feddd-fig11", False)
    alone = len(runs_of([one], (0,))) + len(runs_of([other], (0,)))
    assert len(runs_of([one, other], (0,))) == alone - 3 - 2  # three trials of a rate, FedDD's and random rows' runs


def claim(**values: object) -> Claim:
    return Claim(**{"what": "", "of": ("a",), "against": ("b",), "how": "difference", "sign": "above", **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "values", "wanted"),
    [
        (claim(), (), UNTRIED),
        (claim(), (0.1,), REPRODUCED),  # one seed is taken at its word
        (claim(), (0.0,), NOT),
        (claim(), (-0.1,), NOT),
        (claim(), (1.0, 1.1, 0.9), REPRODUCED),
        (claim(), (1.0, 4.0, -1.0), DIRECTION),  # its interval holds 0
        (claim(sign="below"), (-1.0, -1.1, -0.9), REPRODUCED),
        (claim(paper=2.0, tolerance=1.0), (1.0, 1.0), REPRODUCED),
        (claim(paper=2.0, tolerance=0.9), (1.0, 1.0), DIRECTION),
        (claim(paper=2.0, tolerance=0.9), (3.0, 3.0), DIRECTION),
        (claim(sign="equal", tolerance=1.0), (0.4, -0.3, 0.1), REPRODUCED),
        (claim(sign="equal", tolerance=1.0), (1.0, -1.0), DIRECTION),  # too wide to say
        (claim(sign="equal", tolerance=1.0), (1.0,), REPRODUCED),
        (claim(sign="equal", tolerance=1.0), (1.01,), NOT),
        (claim(how="ratio", sign="below"), (0.9, 0.9), REPRODUCED),
        (claim(how="ratio", sign="below"), (1.0, 1.0), NOT),
        (claim(how="ratio", sign="below", paper=0.0), (0.0, 0.0), REPRODUCED),  # the other never arrives
        (claim(how="ratio", sign="below", paper=0.0), (0.0, 0.5), DIRECTION),
        (claim(how="ratio", sign="below"), (inf, 0.5), NOT),
        (claim(how="ratio", sign="below"), (nan, 0.5), NOT),
        (claim(how="value", sign="equal", paper=NEVER), (inf, inf), REPRODUCED),
        (claim(how="value", sign="equal", paper=NEVER), (inf, 100.0), NOT),
        (claim(how="value", sign="equal", paper=10.0, tolerance=2.0), (8.0, 12.0), REPRODUCED),
        (claim(how="value", sign="equal", paper=10.0, tolerance=2.0), (8.0, inf), NOT),
    ],
)
def test_verdicts_at_their_borders(made: Claim, values: tuple[float, ...], wanted: str) -> None:
    assert judge(made, values) == wanted
    assert verdict_of(Finding(made, values, wanted)) == wanted
    control = Finding(replace(made, control=True), values, wanted)
    assert verdict_of(control) in ("holds", "unsure", "does not hold", UNTRIED)


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

    def of(what: str, **values: object) -> float | None:
        return measured(runs, {}, "a", 0, Measure(what, **values))  # type: ignore[arg-type]

    assert of("accuracy") == 40
    assert of("best") == 50
    assert of("late") == pytest.approx(100 / 3)
    assert of("rounds") == 4
    assert of("rounds to", at=50) == 3
    assert of("rounds to", at=51) == inf
    assert of("seconds to", at=50) == 6
    assert of("classes", labels=(0, 1)) == 20
    assert of("swing") == pytest.approx(10)
    assert of("gigabytes") == pytest.approx(12e-9)
    assert of("away", baseline="b") == pytest.approx(100 * (0.2 + 0.3) / 3)
    assert of("away", baseline="c") is None
    assert measured(runs, {}, "c", 0, Measure()) is None
    assert measured(runs, {"c": 7.0}, "c", 0, Measure("fact")) == 7
    table = {"repair.distance": [[None, 1.0, 4.0], [1.0, None, 2.0], [4.0, 2.0, None]]}
    assert MEASURES["separation"](Run([], table), Measure()) == pytest.approx(3.0)
    assert isnan(MEASURES["separation"](Run([], {}), Measure()))
    assert all(isinstance(unit(Measure(what)), str) for what in MEASURES)


def test_a_mean_over_labels_needs_all_of_them() -> None:
    both = Claim("", ("a", "b"), Measure())
    runs = {("a", 0): rows(0.2), ("b", 0): rows(0.4), ("a", 1): rows(0.6)}
    found = findings([both], runs, {}, (0, 1))[0]
    assert found.values == pytest.approx((30.0,))


def test_what_a_short_run_never_reached_is_not_judged() -> None:
    to, pair = Measure("rounds to", at=90), {"against": ("b",), "how": "ratio", "sign": "below"}
    claims = [
        Claim("neither", ("a",), to, **pair),  # type: ignore[arg-type]
        Claim("never", ("a",), to, paper=NEVER),
        Claim("in time", ("a",), Measure("rounds to", at=20), paper=5.0, tolerance=1.0),
    ]
    runs = {("a", 0): rows(0.2), ("b", 0): rows(0.4)}
    whole = [one.verdict for one in findings(claims, runs, {}, (0,))]
    assert whole == [NOT, REPRODUCED, NOT]
    assert [one.verdict for one in findings(claims, runs, {}, (0,), short=True)] == [UNTRIED, UNTRIED, NOT]


def test_one_seed_of_several_is_no_more_than_a_direction() -> None:
    higher = claim(paper=20.0, tolerance=1.0)
    runs = {("a", 0): rows(0.6), ("b", 0): rows(0.4), ("a", 1): rows(0.6)}
    [asked] = findings([higher], runs, {}, (0,))
    [left] = findings([higher], runs, {}, (0, 1))
    assert (asked.verdict, left.verdict) == (REPRODUCED, DIRECTION)
    assert (we_found(asked), we_found(left)) == ("20.0 %", "20.0 % (one seed)")


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
