"""Changes of a deployment's folder, each with what is to be copied, what is to be typed, and what stays as it is."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.errors import BadExperiment
from fedloom.flower.deploy.certificates import files_in
from fedloom.flower.deploy.commands import reply_of, supervise_line, write_texts
from fedloom.flower.deploy.folder import (
    Deployment,
    Gateway,
    new_root,
    nodes_text,
    write_app,
    write_home,
    write_nodes,
)
from fedloom.flower.deploy.keys import key_in, write_key
from fedloom.flower.deploy.moves import Hosted, moved, with_nodes, without_node
from fedloom.flower.deploy.opened import Opened, open_folder
from fedloom.flower.deploy.rotate import (
    drop_old_authority,
    old_keys,
    retire,
    rotate_authority,
    rotate_link,
    rotate_node,
)
from fedloom.flower.deploy.service_files import FILES, GATE, HOME, settings_file
from fedloom.flower.protocol.assignment import deal_clients, format_ranges
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.runs.experiment import Experiment

RESTART_GATE, RESTART_LINK = "systemctl restart fedloom-gate", "systemctl restart fedloom-link"
UNITS = "/etc/systemd/system/"


Copies = list[tuple[str, str]]
Steps = list[tuple[str, str]]


class Change(NamedTuple):
    """A change that was made in a deployment's folder, and what it asks of the operator, in order."""

    folder: Path
    done: list[str]
    copies: Copies  # a file in the folder, and where it goes
    steps: Steps  # why, and a command
    stays: str  # what need not be copied again


def like(root: Path, experiment: Experiment, old: Path, config: dict[str, Any], reply: int | None = None) -> Change:
    """A deployment of another experiment on the link and the nodes of an old one.

    `reply`: bytes of a node's answer at most; by the experiment's model if left out, and no less than in the old one.
    """
    opened, root = open_folder(old), new_root(root)
    read_experiment(experiment.model_dump_json())  # raises now if it cannot run on a network
    hosted, before = opened.hosted, opened.made.root
    if experiment.clients != opened.experiment.clients:
        hosted = dict(zip(hosted, deal_clients(experiment.clients, len(hosted))))
    reply = reply_of(experiment, max(map(len, hosted.values()))) if reply is None else reply
    reply = max(reply, opened.gateway.reply)
    run = Path(opened.config["out"])
    run = root / "run" if run.is_relative_to(before) else run.with_name(root.name)
    config = {**config, "out": config["out"] or str(run), "resume-with": supervise_line(root)}
    config["metrics"] = config.get("metrics") or opened.config.get("metrics", 0)  # nodes' settings name ports after it
    for name in ("certificates", "keys"):
        shutil.copytree(before / name, root / name)
    (root / "services").mkdir()
    for number in hosted:
        shutil.copy(settings_file(before, number), settings_file(root, number))
    write_app(root / "app", experiment, config)  # whose key hosts whom is written below
    files = files_in(root / "certificates")
    write_home(root / "home", str(opened.gateway.control), files.authority)
    _write(root, experiment, hosted, opened.gateway._replace(reply=reply))
    moves = moved(opened.hosted, hosted)
    changed = [number for number in hosted if hosted[number] != opened.hosted[number]]
    done = [
        f"{root} has the authority, the certificate and the keys of {before}",
        f"nodes {format_ranges(changed)} host other clients" if moves else "every node hosts the clients that it has",
        f"the run folder is {config['out']}, on the link's machine",
    ]
    steps = [("nodes with other clients, one after another", _restart(root))] if moves else []
    copies, steps = _with_gate(opened.gateway, reply, _settings(changed), steps)
    steps.append(("the run, when the one before has ended", supervise_line(root)))
    copies.append(("app/ and home/", f"{FILES}/ on the link's machine, if fedloom-run.service is to start the run"))
    stays = "Certificates, keys and units stay where they are; link, gate and nodes go on running. Change keys and "
    stays += f"certificates in {root} from now on."
    return Change(root, done, copies, steps, stays)


def rotate_the_link(root: Path) -> Change:
    """A new certificate for the link."""
    files = open_folder(root).made.certificates
    rotate_link(files)
    copies = [
        (f"certificates/{one.name}", f"the machine of gate and link, {FILES}/certificates/")
        for one in (files.link, files.link_key)
    ]
    steps = [("the gate; a run goes on meanwhile", RESTART_GATE), ("the link, when no run goes on", RESTART_LINK)]
    done = ["link and gate have a new certificate and a new key"]
    return Change(root, done, copies, steps, "All who trust the authority trust it; nodes connect again by themselves.")


def rotate_the_authority(root: Path) -> Change:
    """A new authority next to the old one."""
    files = open_folder(root).made.certificates
    rotate_authority(files)
    steps = [
        ("the nodes, one after another", _restart(root)),
        ("the link's certificate by the new authority", f"fedloom deploy rotate {root} --server"),
        ("then, when gate and link use it", f"fedloom deploy rotate {root} --drop-old-ca"),
    ]
    done = [f"{files.authority.name} has the new authority and the old one: both are trusted"]
    copies = [
        (f"certificates/{files.authority.name}", f"every machine, {FILES}/certificates/"),
        (f"certificates/{files.authority_key.name}", "where you keep it, offline, in place of the old one"),
    ]
    return Change(root, done, copies, steps, "The link's certificate and all keys stay as they are.")


def drop_the_old_authority(root: Path) -> Change:
    """The new authority alone."""
    files = open_folder(root).made.certificates
    drop_old_authority(files)
    copies = [(f"certificates/{files.authority.name}", f"every machine, {FILES}/certificates/")]
    steps = [("the nodes, one after another", _restart(root)), ("the gate", RESTART_GATE)]
    steps.append(("the link, when no run goes on", RESTART_LINK))
    return Change(root, ["the old authority is not trusted any more"], copies, steps, "All else stays as it is.")


def rotate_a_node(root: Path, number: int) -> Change:
    """A new key for a node."""
    opened = open_folder(root)
    key = next((key for key in opened.made.keys if key.number == number), None)
    if key is None:
        raise BadExperiment(f"node is {number}; the deployment has {format_ranges(opened.hosted)}.")
    old = rotate_node(key)
    write_nodes(opened.made.app, nodes_text(opened.made.keys, opened.made.clients))
    steps = [
        ("register the new key", f"fedloom deploy register {root}"),
        (f"node {number}, after the copy", f"systemctl restart fedloom-node@{number}"),
        ("refuse the old key, once the node is there", f"fedloom deploy register {root} --retire"),
    ]
    done = [f"{key.private.name} has a new key; the old public one is {old.relative_to(opened.made.root)}"]
    return Change(
        root, done, [_key_copy(number), _APP], steps, "Its clients' states stay on the node; nothing else changes."
    )


def add_nodes(root: Path, count: int, wanted: Sequence[int] = ()) -> Change:
    """More nodes, which host these clients, or those without a node, or their part of all."""
    opened = open_folder(root)
    before, names = opened.hosted, [key.number for key in opened.made.keys]
    names += [int(file.name.partition(".")[0].rpartition("-")[2]) for file in old_keys(opened.made.root / "keys")]
    new = [max(names) + 1 + at for at in range(count)]
    after = with_nodes(before, new, opened.experiment.clients, wanted)
    for number in new:
        write_key(opened.made.root / "keys", f"node-{number}")
    reply = _rewrite(opened, after)
    moves = moved(before, after)
    fewer = sorted({old for _, old, _ in moves if old is not None})
    steps = [("register the new keys", f"fedloom deploy register {root}")]
    steps += [
        (f"node {number}, which hosts fewer clients", f"systemctl restart fedloom-node@{number}") for number in fewer
    ]
    steps += [(f"node {number}", f"systemctl enable --now fedloom-node@{number}") for number in new]
    done = [f"node {number} hosts clients {format_ranges(after[number])}" for number in new]
    copies = [("certificates/ca.crt", f"nodes {format_ranges(new)}, {FILES}/certificates/")]
    copies += [_key_copy(number) for number in new]
    copies, steps = _with_gate(
        opened.gateway, reply, [*copies, *_settings([*fewer, *new]), *_states(moves), _APP], steps
    )
    return Change(root, done, copies, steps, _NOT_OTHERS)


def remove_node(root: Path, number: int, deal: bool) -> Change:
    """A node less."""
    opened = open_folder(root)
    before = opened.hosted
    after = without_node(before, number, deal)
    retire(key_in(opened.made.root / "keys", number))
    settings_file(opened.made.root, number).unlink()
    reply = _rewrite(opened, after)
    moves = moved(before, after)
    more = sorted({new for _, _, new in moves if new is not None})
    steps = [
        (f"node {number}", f"systemctl disable --now fedloom-node@{number}"),
        ("refuse its key", f"fedloom deploy register {root} --retire"),
    ]
    steps += [(f"node {one}, which hosts more clients", f"systemctl restart fedloom-node@{one}") for one in more]
    whose = f"clients {format_ranges(before[number])}"
    done = [f"{whose} of node {number} are dealt to others" if deal else f"{whose} have no node until one is added"]
    copies, steps = _with_gate(opened.gateway, reply, [*_settings(more), *_states(moves), _APP], steps)
    return Change(root, done, copies, steps, _NOT_OTHERS)


_APP = (
    "app/",
    f"{FILES}/ on the link's machine, if fedloom-run.service has started the run; it says whose key is whose",
)
_NOT_OTHERS = "The link, the other nodes and all other keys stay as they are; a run goes on meanwhile."


def _rewrite(opened: Opened, hosted: Hosted) -> int:
    """Write what depends on who hosts whom; how long a node's answer is at most, which grows with its clients."""
    most, before = (max(map(len, each.values())) for each in (hosted, opened.hosted))
    reply = max(opened.gateway.reply, -(-opened.gateway.reply * most // before))
    _write(opened.made.root, opened.experiment, hosted, opened.gateway._replace(reply=reply))
    return reply


def _with_gate(before: Gateway, reply: int, copies: Copies, steps: Steps) -> tuple[Copies, Steps]:
    """What is to be copied and typed, with the gate first if its unit has changed."""
    if reply == before.reply:
        return copies, steps
    unit = (f"services/{GATE}", f"the machine of gate and link, {UNITS}")
    restart = f"systemctl daemon-reload && {RESTART_GATE}"
    return [unit, *copies], [("the gate, which takes longer answers", restart), *steps]


def _write(root: Path, experiment: Experiment, hosted: Hosted, gateway: Gateway) -> None:
    """Write settings, services and README.md for nodes that host these clients."""
    keys = [key_in(root / "keys", number) for number in sorted(hosted)]
    clients = [format_ranges(hosted[key.number]) for key in keys]
    made = Deployment(root, root / "app", files_in(root / "certificates"), keys, clients, root / "home")
    write_texts(made, experiment, gateway)
    write_nodes(made.app, nodes_text(keys, clients))


def _restart(root: Path) -> str:
    """The command that restarts nodes one after another."""
    return f"fedloom deploy restart {root} --with 'ssh node-{{number}} systemctl restart fedloom-node@{{number}}'"


def _key_copy(number: int) -> tuple[str, str]:
    """Where a node's key goes."""
    return f"keys/node-{number}", f"node {number} and nowhere else, {FILES}/keys/"


def _settings(numbers: Sequence[int]) -> list[tuple[str, str]]:
    """Where settings go; their CLIENTS have changed."""
    return [(f"services/node-{number}.env", f"node {number}, {FILES}/") for number in numbers]


def _states(moves: list[tuple[int, int | None, int | None]]) -> list[tuple[str, str]]:
    """What moves from node to node with a client, where methods keep something for clients."""
    return [
        (
            f"{HOME}/node-{old}/clients/*/{client}.safetensors on node {old} (and {client}.npz of own data)",
            f"node {new}, {HOME}/node-{new}/clients/*/",
        )
        for client, old, new in moves
        if old is not None and new is not None
    ]
