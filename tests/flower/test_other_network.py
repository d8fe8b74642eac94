"""A deployment by its printed commands, attacked from other network namespaces, while a run goes on."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("flwr")

import tomli_w

import fedloom
from emulated_link import EmulatedLink, why_not
from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.commands import Commands, deploy
from fedloom.flower.deploy.control import Control
from fedloom.flower.deploy.folder import Deployment
from fedloom.flower.deploy.processes import Processes, marked_processes
from fedloom.flower.deploy.trial import CONFIG, environment, free_port, wait_for_port
from fedloom.runs.experiment import Experiment
from flower_disturbed import assert_right

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

LONG = 600.0  # seconds; on a busy machine
FAST = 1e9  # bit/s
IDLE = 200  # connections without a key
NOISE, PIECE = 100 * 2**20, 2**21  # bytes in all, and in one request
ORDERS = ("control/start-run", "control/register-node", "control/list-nodes", "runtime/acquire-task")
FLEET = ("fleet/register-node", "fleet/pull-messages")
EXPERIMENT = Experiment(method="fedavg", clients=6, rounds=2, device="cpu")

# who is no operator: asks the link for some of all that it serves, without a key and with one; prints statuses
ASK = """
import json, socket, ssl, sys
import httpx
from gate_in_process import Node
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
host, port, control, authority, key, *paths = sys.argv[1:]
node = Node(load_ssh_private_key(open(key, "rb").read(), None))
trusted, found = ssl.create_default_context(cafile=authority), {}
for path in paths:
    for headers in ({"content-type": "application/protobuf"}, node.headers()):
        with httpx.Client(verify=trusted) as client:
            answer = client.post(f"https://{host}:{port}/v1/{path}", headers=headers)
        found.setdefault(path, []).append(answer.status_code)
try:
    socket.create_connection((host, int(control)), 5)
    found["link"] = "connected"
except OSError as problem:
    found["link"] = type(problem).__name__
print(json.dumps(found))
"""
# who has no key: opens connections and says nothing, for ever
BE_IDLE = """
import socket, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
peers = [socket.create_connection((host, port), 30) for _ in range(count)]
print("idle", flush=True)
while True:
    time.sleep(0.5)
    peers = [*peers[count // 10:], *(socket.create_connection((host, port), 30) for _ in range(count // 10))]
"""
# a node with a registered key: answers its first message with noise, in all pieces that are taken
SEND_NOISE = """
import os, sys, time
from pathlib import Path
import httpx, numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supernode.fleet_http_connection import http_request_response
address, authority, key, size = *sys.argv[1:4], int(sys.argv[4])
private = load_ssh_private_key(Path(key).read_bytes(), None)
keys = private, private.public_key()
with http_request_response(address, False, Path(authority).read_bytes(), keys, max_retries=0) as connection:
    _, receive, send, _, _, _, push, _ = connection
    while (got := receive()) is None:
        time.sleep(0.2)
    asked = got[0]
    noise = RecordDict({"noise": ArrayRecord({"x": Array("uint8", (size,), "x", os.urandom(size))})})
    reply = Message(noise, reply_to=asked)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = {name: thing.deflate() for name, thing in get_all_nested_objects(reply).items()}
    wanted, session = send(reply, get_object_tree(reply), 0.0)
    taken = refused = 0
    for name in wanted:
        try:
            push(asked.metadata.run_id, session, name, objects[name])
            taken += len(objects[name])
        except httpx.HTTPError:  # refused, or closed while it was still sending
            refused += len(objects[name])
    print("taken", taken, "refused", refused, flush=True)
"""


class Attacked(NamedTuple):
    """A deployment of three nodes whose link and gate run here; two namespaces reach the gate."""

    made: Deployment
    typed: Commands
    networks: list[EmulatedLink]
    gate: Address
    link: Address
    processes: Processes
    control: Control

    def start(
        self, name: str, command: str, network: int | None = None, home: Path | None = None, **extra: str
    ) -> None:
        """Start a printed command after that which is typed first everywhere, here or in another network."""
        first = self.typed.environment.replace(str(self.made.home), str(home or self.made.home))
        words = ["sh", "-c", f"{first}; exec {command}"]
        self.processes.start(name, words if network is None else self.networks[network].command(words), extra)

    def memory(self) -> int:
        """The most bytes of memory that the link itself has held so far."""
        status = Path(f"/proc/{self.processes.heads['link'].pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def bound(self) -> int:
        """Bytes of a node's answer at most."""
        return int(self.typed.gate.rpartition(" ")[2])


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Link and gate are up, and the nodes are registered, all by the printed commands."""
    root = tmp_path_factory.mktemp("attacked")
    with ExitStack() as stack:
        networks = [stack.enter_context(EmulatedLink(FAST, FAST, place=place)) for place in (30, 31)]
        hosts = tuple(network.here for network in networks)
        gate, link = Address(hosts[0], free_port()), Address("127.0.0.1", free_port())
        config = {**CONFIG, "deadline": 60.0, "patience": 8.0, "start-with": 0.3, "slack": 0.0}
        made, typed = deploy(root / "made", EXPERIMENT, 3, config, hosts, gate.port, link)
        here = Path(__file__).parent.parent
        paths = [str(here), str(Path(fedloom.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        variables = {**environment(made.home, 1), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        processes = stack.enter_context(Processes(root / "logs", variables))
        control = stack.enter_context(Control(str(link), made.certificates.authority))
        found = Attacked(made, typed, networks, gate, link, processes, control)
        found.start("link", typed.link)
        found.start("gate", typed.gate)
        control.wait_for_link(LONG, lambda: processes.running("link"))
        wait_for_port(gate, LONG, lambda: processes.running("gate"))
        [line] = typed.register
        found.start("register", line)
        assert processes.heads["register"].wait(LONG) == 0, processes.last_lines("register")
        yield found
    assert not marked_processes(processes.mark)


def until(what: Callable[[], bool], attacked: Attacked, name: str) -> None:
    """Wait until a condition holds; `name` is the process whose output is shown if it does not."""
    ends = time.monotonic() + LONG
    while not what():
        assert time.monotonic() < ends, attacked.processes.last_lines(name, 40)
        time.sleep(0.1)


def test_orders_are_refused_from_elsewhere(attacked: Attacked) -> None:
    """Of what the link serves to operators and to its own apps nothing is passed on, whoever asks."""
    key = attacked.made.keys[0].private
    words = [sys.executable, "-c", ASK, attacked.gate.host, str(attacked.gate.port), str(attacked.link.port)]
    words += [str(attacked.made.certificates.authority), str(key), *ORDERS, *FLEET]
    said = subprocess.run(
        attacked.networks[1].command(words), env=dict(attacked.processes.environment), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    found = json.loads(said.stdout)
    assert found.pop("link") == "ConnectionRefusedError"
    assert found.pop("fleet/pull-messages") == [401, 401]  # with a key, the link misses the node's number
    assert {status for statuses in found.values() for status in statuses} == {404}
    assert len(found) == len(ORDERS) + 1
    assert len(attacked.control.nodes()) == 3


@pytest.mark.parametrize("command", ["run", "register"])
def test_flowers_own_command_fails_from_elsewhere(attacked: Attacked, command: str, tmp_path: Path) -> None:
    """With the certificate, and the gate's address in place of the link's."""
    home = tmp_path / "home"
    home.mkdir()
    config = tomllib.loads((attacked.made.home / "config.toml").read_text())
    config["superlink"]["fedloom"]["address"] = str(attacked.gate)
    (home / "config.toml").write_text(tomli_w.dumps(config))
    register = shlex.join(["flwr", "supernode", "register", str(attacked.made.keys[0].public), "fedloom"])
    line = {"run": attacked.typed.run, "register": register}[command]
    attacked.start(f"other-{command}", line, 1, home)
    assert attacked.processes.heads[f"other-{command}"].wait(LONG) != 0
    said = " ".join(attacked.processes.output(f"other-{command}").read_text().split())
    assert "The gate refused the request: it asks for what nodes do not need." in said
    assert len(attacked.control.nodes()) == 3
    assert "start-run" not in attacked.processes.output("link").read_text()


def test_a_run_goes_on_while_it_is_attacked(attacked: Attacked) -> None:
    """Node 0 trains. Node 1 claims its clients, node 2 sends noise, and somebody without a key fills the gate."""
    made, typed, processes = attacked.made, attacked.typed, attacked.processes
    idle = shlex.join([sys.executable, "-c", BE_IDLE, attacked.gate.host, str(attacked.gate.port), str(IDLE)])
    attacked.start("idle", idle, 1)
    until(lambda: "idle" in processes.last_lines("idle"), attacked, "idle")
    began = time.monotonic()
    attacked.start("node-0", typed.nodes[0], 0)
    assert 'clients="1,4"' in typed.nodes[1]
    attacked.start("node-1", typed.nodes[1].replace('clients="1,4"', 'clients="0,3"'), 1)
    words = [str(attacked.gate), str(made.certificates.authority), str(made.keys[2].private), str(NOISE)]
    line = shlex.join([sys.executable, "-c", SEND_NOISE, *words])
    attacked.start("noise", line, 1, FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE=str(PIECE))
    until(lambda: list(attacked.control.nodes().values()).count("online") == 3, attacked, "noise")
    settings, patience = made.app / "pyproject.toml", 8 + time.monotonic() - began  # longer on a busy machine
    settings.write_text(settings.read_text().replace("patience = 8.0", f"patience = {patience:.1f}"))
    before = attacked.memory()
    attacked.start("run", typed.supervise)
    for name in ("run", "noise"):
        until(lambda name=name: not processes.running(name), attacked, name)
    log = processes.output("run").read_text()
    assert (made.root / "run" / "model.safetensors").exists(), log

    rows = assert_right(made.root / "run", EXPERIMENT, 60.0)
    assert [row["arrived"] for row in rows] == [2, 2]  # node 0's clients, in every round
    for number in re.findall(r"run (\d+) was started", log):
        attacked.start("log", f"flwr log {number} fedloom --show")
        assert processes.heads["log"].wait(LONG) == 0
    log = processes.output("log").read_text()
    assert re.search(r"node-1 \(\d+\) takes no part: it names clients 0,3, who belong to node-0; it may host 1,4", log)

    said = processes.output("noise").read_text().split()
    taken, refused = (int(said[said.index(name) + 1]) for name in ("taken", "refused"))
    assert PIECE < taken <= 2 * attacked.bound()  # what a gate lets it have at first, and for the message
    assert taken + refused > NOISE
    for private in (made.root / "link.db", made.root / "run" / "model.safetensors", *(made.root / "states").rglob("*")):
        assert stat.S_IMODE(private.stat().st_mode) & 0o077 == 0, private
    assert attacked.memory() - before < NOISE / 2
    assert processes.running("idle")
    assert "it sends more than the answers to its messages can have" in processes.output("gate").read_text()
