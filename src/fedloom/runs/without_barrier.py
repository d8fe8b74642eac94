"""What an experiment needs for rounds without a barrier: what does not go with them, and what is left open for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedloom.core.devices import known_devices
from fedloom.core.types import Setting
from fedloom.errors import BadExperiment
from fedloom.method import SLOTS, Method

if TYPE_CHECKING:
    from fedloom.runs.experiment import Experiment

FLEET = "mobile-4g"  # where none is chosen: clients must take time, and not all alike
ROUNDS = 50  # of rounds with a barrier
INSTEAD = {
    "per_round": "no cohort is asked; pace.in_flight is how many clients are asked at a time, pace.buffer how many "
    "replies a step takes",
    "world.deadline": "there is no round that it could end; pace.timeout lets somebody else be asked in place of a "
    "slow client, and pace.oldest drops replies that are too stale",
    "world.first": "there is no cohort whose first replies could count; pace.buffer is how many replies a step takes, "
    "and with pace.recall the others do not count",
    "world.server_up": "clients begin and end at any time, and how they would share a link is not simulated; leave it "
    "out, or lower the devices' own rates, as in fleet.up=1e6",
}
INSTEAD["world.server_down"] = INSTEAD["world.server_up"].replace("fleet.up", "fleet.down")


def check_pace(experiment: Experiment, method: Method) -> None:
    """Refuse settings that belong to rounds with a barrier, or to those without."""
    stale, pace = experiment.stale.name, type(method.pace).__name__
    if method.pace.barrier:
        if stale != "own":
            raise BadExperiment(
                f"stale is '{stale}', but no reply is stale where rounds have a barrier; set pace=buffered, or leave "
                "stale out."
            )
        return
    world = experiment.world.model_dump()
    given = {"per_round": experiment.per_round, **{f"world.{name}": value for name, value in world.items()}}
    for name, why in INSTEAD.items():
        if given[name] is not None:
            raise BadExperiment(f"{name} is {given[name]}, but with pace={pace} {why}.")
    if experiment.engine == "distributed":
        raise BadExperiment(
            f"engine is 'distributed', which has rounds with a barrier alone, and pace is {pace}; take local."
        )
    if experiment.fleet.name == "none":
        raise BadExperiment(
            f"pace={pace} needs to know how long clients take, and fleet is 'none'; choose one, as in fleet={FLEET}."
        )


def left_to_pace(method: Method, given: Mapping[str, Any], fleet: str) -> dict[str, Any]:
    """What rounds without a barrier have where it was left open: devices, and as much work as other runs."""
    if method.pace.barrier:
        return {}
    found: dict[str, Any] = {"fleet": FLEET} if fleet == "none" else {}
    steps = method.pace.steps_a_round
    if "rounds" not in given:
        found["rounds"] = ROUNDS * steps
    if "evaluate_every" not in given and given.get("evaluate_seconds") is None:
        found["evaluate_every"] = steps
    return found


def pace_notes(experiment: Experiment, method: Method, setting: Setting) -> list[str]:
    """What should be known of a run without a barrier before it begins."""
    pace, size = method.pace, setting.fleet.size
    if pace.barrier:
        return []
    there = known_devices(setting.fleet.devices, type(pace).__name__).availability
    part = f"{100 * float(there.min()):.0f} to {100 * float(there.max()):.0f} %"
    usual = (
        f", the default without a barrier (clients are there {part} of the time)"
        if experiment.fleet.name == FLEET
        else ""
    )
    notes = [
        f"rounds are steps without a barrier: about {pace.goal} replies each, at most {min(pace.slots, size)} of "
        f"{size} clients in flight, on fleet '{experiment.fleet.name}'{usual}; stale replies: {method.stale!r}."
    ]
    whole = [
        type(getattr(method, slot)).__name__ for slot in SLOTS if slot != "local" and not getattr(method, slot).alone
    ]
    if whole:
        notes.append(
            f"{' and '.join(whole)}: decides on a whole cohort, so clients are asked after a step, all at once."
        )
    memories = [type(rule).__name__ for rule in method.local.defining("server_state")]
    if memories:
        notes.append(
            f"{' and '.join(memories)}: clients are given the server's memory as it was when they were asked, and "
            "their replies, however late, change it as it is then."
        )
    return notes
