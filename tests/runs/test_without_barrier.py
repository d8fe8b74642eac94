"""Rounds without a barrier in an experiment: settings, what is left open, and what does not go with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedloom import Experiment, run
from fedloom.cli.main import app
from fedloom.errors import BadExperiment
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.method import Method
from fedloom.methods import METHODS
from fedloom.methods.fedbuff import fedbuff
from fedloom.parts.pace.barrier import Barrier
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.pace.by_tier import ByTier
from fedloom.parts.pace.windowed import Windowed
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.as_model import AsModel
from fedloom.parts.stale.discounts import Constant, Cutoff, Hinge, Polynomial
from fedloom.runs.build import prepare
from fedloom.runs.folder import experiment_in
from fedloom.runs.many_runs import kind_of
from fedloom.runs.set_values import with_settings
from fedloom.runs.without_barrier import INSTEAD
from fedloom.studies.compare import compare
from fedloom.studies.forms import fitting, takes
from fedloom.studies.plan import candidates

SMALL = {"clients": 12, "data": "digits"}


def experiment(**settings: Any) -> Experiment:
    """An experiment written as on the command line."""
    given = {name: settings.pop(name) for name in ("method", "clients", "rounds") if name in settings}
    return Experiment(**with_settings(given, settings))


# ---- names and their settings


@pytest.mark.parametrize(
    ("settings", "pace"),
    [
        ({"pace": "buffered", "pace.buffer": 5, "pace.in_flight": 20}, Buffered(5, 20)),
        ({"pace": "buffered", "buffer": 5, "refill": "step", "timeout": 30}, Buffered(5, refill="step", timeout=30.0)),
        ({"pace": "windowed", "seconds": 2.5, "least": 3}, Windowed(2.5, least=3)),
        ({"pace": "by-tier", "tiers": 3, "per_tier": 4}, ByTier(3, 4)),
        ({"pace": "barrier"}, Barrier()),
    ],
)
@pytest.mark.parametrize("name", ["fedavg", "fedspu", "scaffold", "fedbuff"])
def test_a_pace_by_name(name: str, settings: dict[str, Any], pace: Any) -> None:
    if name == "fedbuff":  # which has settings of these names itself
        settings = {key if "." in key or key == "pace" else f"pace.{key}": value for key, value in settings.items()}
    assert experiment(method=name, **settings).build_method().pace == pace


@pytest.mark.parametrize(
    ("settings", "stale"),
    [
        ({}, AsChange(Polynomial(0.5))),
        ({"stale": "change"}, AsChange(Polynomial(0.5))),
        ({"stale": "change", "stale.discount": "constant"}, AsChange(Constant())),
        ({"stale": "change", "exponent": 1.5, "spread": "weight"}, AsChange(Polynomial(1.5), "weight")),
        ({"stale": "change", "discount": "hinge", "slope": 2, "bound": 3}, AsChange(Hinge(2.0, 3.0))),
        ({"stale": "change", "discount": "cutoff", "rest": 0.25}, AsChange(Cutoff(4.0, 0.25))),
        ({"stale": "change", "by": "steps"}, AsChange(Polynomial(0.5), by="steps")),
        ({"stale": "model", "stale.alpha": 0.6, "discount": "hinge"}, AsModel(0.6, Hinge())),
    ],
)
def test_stale_replies_by_name(settings: dict[str, Any], stale: Any) -> None:
    for name in ("fedavg", "fedspu", "heterofl"):
        assert experiment(method=name, pace="buffered", **settings).build_method().stale == stale


def test_a_methods_own_pace_and_meaning_stay() -> None:
    for name in ("fedasync", "fedbuff", "fedat"):
        built, own = Experiment(method=name).build_method(), METHODS[name]()
        assert (built.stale, built.pace.slots) == (own.stale, own.pace.slots)
    again = experiment(method="fedasync", pace="buffered", **{"pace.buffer": 4}).build_method()
    assert again.stale == METHODS["fedasync"]().stale  # a meaning of its own, whatever the pace
    assert experiment(method="fedbuff", pace="barrier").build_method().pace == Barrier()


def test_tiers_reckon_with_the_work_of_clients() -> None:
    built = Experiment(method="fedat", training={"epochs": 3}).build_method()
    assert built.pace.work == built.work == built.aggregate.work  # type: ignore[attr-defined]


def test_parts_that_decide_on_cohorts_ask_after_a_step() -> None:
    for name in ("feddd", "ist"):
        assert experiment(method=name, pace="buffered").build_method().pace.refill == "step"  # type: ignore[attr-defined]
        with pytest.raises(BadExperiment, match=r"set refill='step' \(pace.refill=step\)"):
            experiment(method=name, pace="buffered", refill="arrival")
    assert experiment(method="fedspu", pace="buffered").build_method().pace == Buffered()


# ---- what is left open


@pytest.mark.parametrize(
    ("settings", "rounds", "every"),
    [
        ({"method": "fedasync"}, 500, 10),
        ({"method": "fedbuff"}, 50, 1),
        ({"method": "fedbuff", "method.buffer": 3}, 150, 3),
        ({"method": "fedat"}, 250, 5),
        ({"pace": "windowed"}, 50, 1),
        ({"method": "fedasync", "pace": "barrier"}, 50, 1),
        ({"method": "fedasync", "rounds": 7}, 7, 10),
        ({"method": "fedasync", "evaluate_every": 3}, 500, 3),
        ({"method": "fedasync", "rounds": 50, "evaluate_every": 1}, 50, 1),
    ],
)
def test_an_experiment_has_as_much_work_as_others(settings: dict[str, Any], rounds: int, every: int) -> None:
    made = experiment(**settings)
    assert (made.rounds, made.evaluate_every) == (rounds, every)
    assert Experiment(**made.model_dump()) == made
    assert Experiment(**made.model_dump(mode="json")) == made


def test_clients_have_devices_where_none_were_chosen() -> None:
    assert experiment(pace="buffered").fleet.name == "mobile-4g"
    assert experiment(pace="buffered", fleet="iot").fleet.name == "iot"
    assert experiment(method="fedbuff", **{"world.compute": "flops", "channel.up": 0.1}).fleet.name == "mobile-4g"
    assert experiment(method="fedbuff", pace="barrier").fleet.name == "none"
    assert Experiment(method="safa").fleet.name == "none"


def test_notes_say_so() -> None:
    chosen = prepare(experiment(pace="buffered", clients=12, in_flight=20))
    first = chosen.notes[0]
    assert "steps without a barrier: about 10 replies each, at most 12 of 12 clients in flight" in first
    assert "fleet 'mobile-4g', the default without a barrier (clients are there" in first
    assert "Polynomial(exponent=0.5)" in first
    assert any("in_flight is 20; the fleet has 12" in note for note in chosen.notes)
    assert "default" not in prepare(experiment(pace="buffered", clients=12, fleet="iot")).notes[0]
    asked = prepare(experiment(method="feddd", pace="buffered", clients=12)).notes
    assert "LatencyAndLoss: decides on a whole cohort, so clients are asked after a step, all at once." in asked
    for name, rule in (("scaffold", "ControlVariates"), ("feddyn", "DynamicRegulariser"), ("feddc", "DriftCorrection")):
        found = prepare(experiment(method=name, pace="buffered", clients=12)).notes
        assert any(note.startswith(f"{rule}: clients are given the server's memory") for note in found)
    assert not any("barrier" in note for note in prepare(Experiment(**SMALL)).notes)


# ---- what is refused


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"per_round": 10}, "per_round is 10, but with pace=Buffered .* pace.in_flight .* pace.buffer"),
        ({"world.deadline": 60}, "world.deadline is 60.0, but with pace=Buffered .* pace.timeout .* pace.oldest"),
        ({"world.first": 5}, "world.first is 5, but with pace=Buffered .* pace.buffer .* pace.recall"),
        ({"world.server_up": 1e6}, "world.server_up is 1000000.0, .* would share a link is not simulated"),
        ({"world.server_down": 1e6}, "world.server_down is 1000000.0, .* as in fleet.down"),
        ({"engine": "distributed"}, "engine is 'distributed', .* take local"),
        (
            {"stale": "change", "discount": "hinge", "exponent": 1},
            "unknown setting of stale.discount 'hinge' 'exponent'",
        ),
        (
            {"stale": "change", "discount": "constant", "bound": 1},
            "stale.discount 'constant' takes no settings; got 'bound'",
        ),
        ({"stale": "change", "discount": "square"}, "expected 'polynomial', 'constant', 'hinge' or 'cutoff'"),
        ({"stale": "models"}, "unknown stale 'models'; did you mean 'model'"),
        ({"stale.exponent": 1}, "stale is 'own' and takes no settings; choose one of: change, model"),
        ({"buffer": 0}, "buffer .* is 0"),
        ({"pace.seconds": 3}, "unknown setting of pace 'buffered' 'seconds'"),
        ({"aggregate": "median", "stale": "change", "spread": "weight"}, "Median does not read"),
        ({"aggregate": "private"}, "one client's reply decides in which step another's counts"),
    ],
)
def test_what_does_not_go_with_it_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadExperiment, match=why):
        experiment(pace="buffered", **settings)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"pace.buffer": 3},
            "pace is 'own' and takes no settings; choose one of: barrier, buffered",
        ),
        ({"pace": "bufered"}, "unknown pace 'bufered'; did you mean 'buffered'"),
        ({"pace": "barrier", "pace.buffer": 3}, "pace 'barrier' takes no settings; got 'buffer'"),
        ({"stale": "change"}, "stale is 'change', but no reply is stale where rounds have a barrier"),
        ({"pace": "by-tier", "work": 3}, "unknown setting 'work'"),
        ({"method": "fedumf", "pace": "buffered"}, "select=SomeSend chooses whole cohorts"),
        ({"method": "safa", "pace": "buffered"}, "it counts the rounds since each client answered"),
        ({"method": "mifa", "pace": "buffered", "decay": 0.9}, "it divides updates by the learning rate"),
        ({"method": "fedat", "pace": "barrier"}, "it weighs 5 tiers, and Barrier has none"),
        ({"method": "oort", "sampling": True, "pace": "buffered"}, "select=Utility chooses whole cohorts"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadExperiment, match=why):
        experiment(**settings)


def test_a_buffer_larger_than_the_fleet_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadExperiment, match=r"buffer .* is 13, and the fleet has 12 clients"):
        run(experiment(pace="buffered", buffer=13, clients=12), out=tmp_path / "run")
    with pytest.raises(BadExperiment, match="tiers is 20, but the fleet has 12 clients"):
        run(experiment(pace="by-tier", tiers=20, clients=12), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_method_as_a_value_needs_devices_and_the_same() -> None:
    with pytest.raises(BadExperiment, match="pace=Buffered needs to know how long clients take, and fleet is 'none'"):
        run(Experiment(**SMALL), method=fedbuff(3, 6))
    with pytest.raises(BadExperiment, match=r"world\.first is 3"):
        run(Experiment(**SMALL, fleet="iot", world={"first": 3}), method=fedbuff(3, 6))
    assert len(run(Experiment(**SMALL, fleet="iot", rounds=3), method=fedbuff(3, 6)).rounds) == 3


def test_a_real_network_runs_without_a_barrier_too() -> None:
    assert not read_experiment(Experiment(method="fedbuff").model_dump_json()).build_method().pace.barrier


# ---- runs


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedspu", "pace": "buffered", "buffer": 3, "in_flight": 8, "stale": "change", "exponent": 1.0},
        {"method": "fedasync"},
        {"method": "fedat", "method.tiers": 3, "per_tier": 2},
        {"method": "scaffold", "pace": "windowed", "seconds": 0.3},
    ],
)
def test_a_run_is_written_and_read_again(settings: dict[str, Any], tmp_path: Path) -> None:
    made = experiment(clients=12, rounds=6, **settings)
    first = run(made, out=tmp_path / "run")
    assert experiment_in(tmp_path / "run") == made
    second = run(experiment_in(tmp_path / "run"))
    assert [row["loss"] for row in first.rounds] == [row["loss"] for row in second.rounds]
    assert [row["virtual_seconds"] for row in first.rounds] == [row["virtual_seconds"] for row in second.rounds]
    assert len(first.rounds) == 6


def test_such_runs_are_not_stacked_and_train_one_by_one() -> None:
    made = experiment(pace="buffered")
    assert kind_of(made, made.build_method()) is None
    assert kind_of(Experiment(), Experiment().build_method()) is not None


def test_a_comparison_is_on_one_fleet_and_says_so() -> None:
    told: list[str] = []
    few = {"clients": 12, "rounds": 4}
    both = {"fedavg": Experiment(**few), "fedbuff": experiment(method="fedbuff", **few, **{"method.buffer": 3})}
    plain, free = compare(both, [0], tell=told.append)
    assert plain.results[0].experiment.fleet == free.results[0].experiment.fleet == both["fedbuff"].fleet
    assert "on fleet 'mobile-4g', as the others: fedavg" in told
    assert plain.costs(None)[0].seconds > free.costs(None)[0].seconds  # type: ignore[union-attr, operator]


def test_settings_of_a_barrier_are_given_to_those_that_have_one() -> None:
    names = ["fedavg", "fedbuff"]
    pairs = {"per_round": 5, "world.deadline": 60, "first": 3, "rate": 0.1}
    assert fitting("fedavg", pairs, names) == pairs
    assert fitting("fedbuff", pairs, names) == {"rate": 0.1}
    assert takes("mifa", "per_round")
    assert not takes("feddd", "per_round")
    assert takes("feddd", "world.deadline")


def test_a_plan_ranks_both_kinds() -> None:
    base = Experiment(clients=12, fleet="iot", per_round=5, world={"deadline": 60.0, "compute": "flops"})
    found = candidates(base, ["fedavg", "fedasync"], ["float32"], {})
    assert (found["fedavg"].rounds, found["fedasync"].rounds) == (50, 250), "as many replies"
    assert (found["fedavg"].world.deadline, found["fedasync"].world.deadline) == (60.0, None)
    assert (found["fedavg"].per_round, found["fedasync"].per_round) == (5, None)
    assert found["fedasync"].world.compute == "flops"
    counted = candidates(Experiment(clients=12, fleet="iot", rounds=20), ["fedavg", "fedasync"], ["float32"], {})
    assert [one.rounds for one in counted.values()] == [20, 200], "in studies rounds are those of a cohort"


def test_what_is_refused_is_a_setting_that_there_is() -> None:
    for name in INSTEAD:
        group, _, key = name.rpartition(".")
        fields = type(Experiment().world).model_fields if group else Experiment.model_fields
        assert fields[key].default is None


def test_the_command_takes_a_pace(tmp_path: Path) -> None:
    words = ["run", "fedspu", "--clients", "12", "--rounds", "3", "--out", str(tmp_path / "run")]
    sets = ["pace=buffered", "pace.buffer=2", "pace.in_flight=6", "stale=change", "stale.exponent=1"]
    told = CliRunner().invoke(app, [*words, *(word for pair in sets for word in ("--set", pair))])
    assert told.exit_code == 0, told.output
    assert "about 2 replies each, at most 6 of 12 clients in flight" in " ".join(told.output.split())
    wanted = replace(METHODS["fedspu"](), pace=Buffered(2, 6), stale=AsChange(Polynomial(1.0)))
    assert experiment_in(tmp_path / "run").build_method() == wanted
    assert isinstance(wanted, Method)


@pytest.mark.parametrize("kind", ["paces", "staleness"])
def test_the_list_shows_them(kind: str) -> None:
    shown = CliRunner().invoke(app, ["list", kind])
    assert shown.exit_code == 0
    names = {"paces": ("barrier", "buffered", "windowed", "by-tier"), "staleness": ("change", "model")}[kind]
    assert all(name in shown.output for name in names)
    assert "work" not in shown.output


@pytest.mark.parametrize("method", ["fedasync", {"name": "fedat", "settings": {"tiers": 3, "per_tier": 2}}])
def test_a_resumed_run_ends_in_the_same_bits(method: Any, tmp_path: Path) -> None:
    whole = {"clients": 12, "seed": 2, "rounds": 12, "method": method}
    straight = run(Experiment(**whole))
    run(Experiment(**{**whole, "rounds": 5}), out=tmp_path / "run")
    again = run(Experiment(**whole), out=tmp_path / "run", resume=True)
    assert [row["virtual_seconds"] for row in again.rounds] == [row["virtual_seconds"] for row in straight.rounds]
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])
