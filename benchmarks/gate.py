"""What a gate costs: seconds and processor time of a node's request with it and without, memory under idle strangers.

python benchmarks/gate.py [REQUESTS]
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.control import Control
from fedloom.flower.deploy.folder import Gateway, gate_command, link_command, write_folder
from fedloom.flower.deploy.processes import Processes
from fedloom.flower.deploy.trial import CONFIG, environment, free_port, wait_for_port
from fedloom.runs.experiment import Experiment

IDLE = 900
TICKS = os.sysconf("SC_CLK_TCK")


def processor(pid: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> float:
    """Megabytes that a process holds."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1000


def looks(client: FleetHttpClient, node: int, count: int) -> float:
    """The median seconds of a look for messages."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        client.PullMessages(PullMessagesRequest(node=Node(node_id=node)))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main(count: int = 300) -> None:
    """Print the figures as JSON."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        gate, link = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
        made = write_folder(Path(folder, "made"), Experiment(clients=1), 1, CONFIG, control=link)
        processes = stack.enter_context(Processes(Path(folder, "logs"), environment(made.home, 1)))
        processes.start("link", link_command(made.certificates, link))
        processes.start("gate", gate_command(made.certificates.link.parent, Gateway(gate, gate, link, 10**6)))
        control = stack.enter_context(Control(str(link), made.certificates.authority))
        control.wait_for_link(120, lambda: processes.running("link"))
        wait_for_port(gate, 120, lambda: processes.running("gate"))
        node = control.register(made.keys[0].public, "node-0")
        key = load_ssh_private_key(made.keys[0].private.read_bytes(), None)
        authority, found = made.certificates.authority.read_bytes(), {"load": os.getloadavg()[0]}
        pids = {name: process.pid for name, process in processes.heads.items()}
        for way, address in (("link", link), ("gate", gate)):
            signing = NodeAuthHttpInterceptor(key, key.public_key())
            client = FleetHttpClient.from_server_address(str(address), False, authority, [signing])
            if way == "link":  # once
                public = public_key_to_bytes(key.public_key())
                client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=30.0))
            looks(client, node, 20)
            before = {name: processor(pid) for name, pid in pids.items()}
            found[f"{way}: ms a look"] = 1000 * looks(client, node, count)
            for name, pid in pids.items():
                found[f"{way}: processor ms of the {name}"] = 1000 * (processor(pid) - before[name]) / count
            client.close()
        found["gate: MB"] = memory(pids["gate"])
        peers = [stack.enter_context(socket.create_connection(gate, 30)) for _ in range(IDLE)]
        found[f"gate: MB, after {len(peers)} idle connections"] = memory(pids["gate"])
    print(json.dumps({name: round(value, 2) for name, value in found.items()}, indent=2))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
