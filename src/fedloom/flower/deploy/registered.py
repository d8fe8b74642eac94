"""The nodes that a link admits, made those of a deployment's folder, and nodes started again one after another."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.errors import BadExperiment, RunStopped
from fedloom.flower.deploy.control import Control, Member, key_of
from fedloom.flower.deploy.keys import Key
from fedloom.flower.deploy.opened import Opened
from fedloom.flower.deploy.rotate import REFUSED, RETIRED

LOOK = 0.5  # seconds between looks at a node
PATIENCE = 600.0  # seconds until a node that should come is given up

Tell = Callable[[str], None]


@contextmanager
def reached(opened: Opened) -> Iterator[Control]:
    """A connection to a deployment's link; raises if the link does not answer."""
    import httpx

    with Control(str(opened.gateway.control), opened.made.certificates.authority) as control:
        try:
            yield control
        except httpx.TransportError as problem:
            raise RunStopped(
                f"the link at {opened.gateway.control} does not answer ({problem}); is it running, and is this its "
                "machine, or is its port brought here with ssh -L?"
            ) from problem


def register_nodes(opened: Opened, control: Control, tell: Tell) -> None:
    """Register all keys of the folder that the link does not admit yet."""
    there = control.members()
    for key in opened.made.keys:
        if key_of(key.public) not in there:
            number = control.register(key.public, key.private.name)
            tell(f"{key.private.name} is registered, as {number}")


def retired_keys(opened: Opened) -> list[Path]:
    """Public keys that the link is to refuse."""
    return sorted((opened.made.root / "keys" / RETIRED).glob("*.pub"))


def unregister_retired(opened: Opened, control: Control, patience: float, tell: Tell) -> None:
    """Let the link refuse all retired keys; a node that has a new key must have come with it before."""
    keys = {key.private.name: key for key in opened.made.keys}
    for public in retired_keys(opened):
        name = public.name.partition(".")[0]
        if name in keys:
            wait_for(keys[name], control, patience, tell)
        if (member := control.members().get(key_of(public))) is not None:
            control.unregister(member.number)
            tell(f"the old key of {name}, {member.number}, is refused from now on")
        refused = public.parent.with_name(REFUSED)
        refused.mkdir(exist_ok=True)
        public.rename(refused / public.name)


def wait_for(key: Key, control: Control, patience: float, tell: Tell, since: str = "") -> None:
    """Wait until a node is online, and has connected after `since`."""
    name, until, told = key.private.name, time.monotonic() + patience, False
    while True:
        member = _member(key, control)
        if member.status == "online" and member.activated > since:
            tell(f"{name} is online")
            return
        if time.monotonic() > until:
            raise RunStopped(f"{name} did not come online within {patience:.0f} s; see its log on its machine.")
        if not told:
            tell(f"waiting for {name}, which is {member.status} ...")
            told = True
        time.sleep(LOOK)


def _member(key: Key, control: Control) -> Member:
    """What the link knows of a node."""
    found = control.members().get(key_of(key.public))
    if found is None:
        raise BadExperiment(f"the key of {key.private.name} is not registered; `fedloom deploy register` does that.")
    return found


def restart_nodes(opened: Opened, control: Control, command: str, patience: float, tell: Tell) -> None:
    """Run a command that restarts a node, for each node in turn, and wait until it is back.

    `{number}` in the command is the node's.
    """
    for key in opened.made.keys:
        before = _member(key, control).activated
        words = [word.replace("{number}", str(key.number)) for word in shlex.split(command)]
        tell(shlex.join(words))
        try:
            subprocess.run(words, check=True)
        except (OSError, subprocess.CalledProcessError) as problem:
            raise RunStopped(f"{key.private.name} was not restarted: {problem}; the nodes before it were.") from problem
        wait_for(key, control, patience, tell, before)
