"""What there is to say of a deployment: from its folder and, if the link answers, from the link."""

from __future__ import annotations

from typing import Any

from fedloom.errors import RunStopped
from fedloom.flower.deploy.control import Member, RunStatus, key_of
from fedloom.flower.deploy.opened import Opened
from fedloom.flower.deploy.registered import reached, retired_keys
from fedloom.flower.deploy.rotate import validity
from fedloom.flower.protocol.owners import fingerprint

RUNS = 5  # of the link, the newest


def facts(opened: Opened) -> dict[str, Any]:
    """A deployment's facts, as JSON has them."""
    made, experiment = opened.made, opened.experiment
    members, runs, problem = _asked(opened)
    return {
        "folder": str(made.root),
        "experiment": {
            "method": experiment.method.name, "data": experiment.data.name, "clients": experiment.clients,
            "rounds": experiment.rounds, "out": opened.config["out"],
        },
        "hosts": list(opened.hosts), "gate": str(opened.gateway.host), "link": str(opened.gateway.control),
        "largest_reply": opened.gateway.reply,
        "nodes": [
            {
                "name": key.private.name, "clients": clients, "key": fingerprint(key.public.read_bytes()),
                "link": (member := members.get(key_of(key.public))) and member._asdict(),
            }
            for key, clients in zip(made.keys, made.clients)
        ],
        "retired": [public.name for public in retired_keys(opened)],
        "certificates": [
            {**one._asdict(), "file": str(one.file), "until": one.until.isoformat()}
            for one in validity(made.certificates)
        ],
        "runs": {str(number): run._asdict() for number, run in runs.items()},
        "problem": problem,
    }  # fmt: skip


def _asked(opened: Opened) -> tuple[dict[bytes, Member], dict[int, RunStatus], str]:
    """The nodes and the newest runs of the link, and why they are not known."""
    try:
        with reached(opened) as control:
            return control.members(), control.runs(limit=RUNS), ""
    except RunStopped as problem:
        return {}, {}, str(problem)
