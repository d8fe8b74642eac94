"""A deployment for several machines: its folder, and the commands that use it."""

from __future__ import annotations

import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.errors import BadData
from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.folder import (
    CONNECTION,
    CONTROL,
    NODE_PORT,
    PORT,
    QUIET,
    WARM,
    Deployment,
    Gateway,
    gate_command,
    link_command,
    metrics_port,
    node_command,
    shipped,
    write_folder,
)
from fedloom.flower.deploy.largest_reply import largest_reply
from fedloom.flower.deploy.service_files import (
    GATE,
    containers,
    gate_unit,
    link_unit,
    node_settings,
    node_unit,
    run_unit,
    settings_file,
    with_clients,
)
from fedloom.flower.protocol.assignment import deal_clients
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import inputs_of


class Commands(NamedTuple):
    """Commands by the machine on which they are typed, and when."""

    environment: str
    link: str
    gate: str
    register: list[str]
    nodes: list[str]
    supervise: str
    run: str
    resume: str
    stop: str


def deploy(
    root: Path,
    experiment: Experiment,
    nodes: int,
    config: dict[str, Any],
    hosts: tuple[str, ...] = (),
    port: int = PORT,
    control: Address = CONTROL,
    reply: int | None = None,
) -> tuple[Deployment, Commands]:
    """Write the folder of a deployment; also returns the commands that use it.

    Args:
        root: a new folder.
        experiment: what to run.
        nodes: number of nodes; clients are dealt to them in turn.
        config: the run config, without the experiment.
        hosts: names of the machine of gate and link; nodes use the first.
        port: of the gate, which nodes reach.
        control: where the link listens; whoever reaches it can start runs.
        reply: bytes of a node's answer at most; derived from the experiment's model if left out.
    """
    config = {**config, "out": config["out"] or str(root.absolute() / "run")}
    config["resume-with"] = supervise_line(root.absolute())
    hosted = deal_clients(experiment.clients, nodes)
    reply = reply_of(experiment, max(map(len, hosted))) if reply is None else reply
    made = write_folder(root, experiment, nodes, config, hosts, control)
    listen = Address("0.0.0.0" if hosts else "127.0.0.1", port)
    gateway = Gateway(Address(hosts[0] if hosts else "127.0.0.1", port), listen, control, reply)
    return made, write_texts(made, experiment, gateway)


def write_texts(made: Deployment, experiment: Experiment, gateway: Gateway) -> Commands:
    """Write services and README.md; also returns the commands. Settings that are there keep all but their clients."""
    typed, services, metrics = commands(made, gateway), made.root / "services", metrics_port(made.app)
    services.mkdir(exist_ok=True)
    files = {"fedloom-link.service": link_unit(gateway.control), GATE: gate_unit(gateway)}
    files |= {"fedloom-run.service": run_unit(), "fedloom-node@.service": node_unit()}
    files |= containers(version("fedloom"), gateway)
    for name, text in files.items():
        (services / name).write_text(text)
    for key, clients in zip(made.keys, made.clients):
        file = settings_file(made.root, key.number)
        usual = node_settings(gateway.host, key.number, clients, metrics)
        file.write_text(with_clients(file.read_text(), clients) if file.exists() else usual)
    (made.root / "README.md").write_text(_readme(made, typed, gateway, shipped(experiment)))
    return typed


def reply_of(experiment: Experiment, hosted: int) -> int:
    """Bytes of the answer of a node that hosts so many clients at most, by the experiment's model."""
    try:
        inputs = inputs_of(experiment.model_copy(update={"start": None}))
    except BadData as problem:
        raise BadData(
            f"{problem} How long an answer of a node can be follows from the model, and the model's shape from the "
            "data; without them say it yourself, with --largest-reply BYTES."
        ) from problem
    return largest_reply(experiment, inputs, hosted)


def commands(made: Deployment, gateway: Gateway) -> Commands:
    """The commands, with paths as if everything were on this machine."""
    root, line = made.root, shlex.join
    nodes = [
        node_command(
            str(made.certificates.authority), str(key.private), str(gateway.host),
            {"clients": clients, "data": "", "state": str(root / "states" / key.private.name)}, NODE_PORT + key.number,
        )
        for key, clients in zip(made.keys, made.clients)
    ]  # fmt: skip
    run = ["flwr", "run", str(made.app), CONNECTION, "--stream"]
    environment = {**QUIET, "FLWR_HOME": shlex.quote(str(made.home))}
    return Commands(
        "umask 077; export " + " ".join(f"{name}={value}" for name, value in environment.items()),
        line(link_command(made.certificates, gateway.control, root / "link.db")),
        line(gate_command(made.certificates.link.parent, gateway)),
        [line(["fedloom", "deploy", "register", str(root)])],
        [line([*WARM, *words]) for words in nodes],
        supervise_line(root),
        line(run),
        resume_line(made.app),
        line(["flwr", "stop", "RUN", CONNECTION]),
    )


def supervise_line(root: Path) -> str:
    """The command that starts a run, and starts it again until it is finished."""
    return shlex.join(["fedloom", "supervise", str(root)])


def resume_line(app: Path) -> str:
    """The command that goes on with a run after a crash, once."""
    return shlex.join(["flwr", "run", str(app), CONNECTION, "--stream", "--run-config", "resume=true"])


def _readme(made: Deployment, typed: Commands, gateway: Gateway, experiment: Experiment) -> str:
    """The deployment's README.md: which file goes where, and the commands in order."""
    chosen = (experiment.method, experiment.model, experiment.data, experiment.fleet)
    files = [one.name if one.own is None else one.own.file for one in chosen if one.name.startswith("/")]
    needed = "".join(f"- `{name}` must be at this path on every machine.\n" for name in files)
    if experiment.start is not None:
        needed += f"- `{experiment.start}` must be at this path on the link's machine.\n"
    return f"""\
# {experiment.method.name} on {experiment.data.name}, {len(made.keys)} nodes

Nodes connect to the gate at `{gateway.host}`. Every machine needs Python 3.11 or newer and the same version of fedloom:
`pip install 'fedloom[flower]'`.
{needed}
| what | where it goes |
|---|---|
| `certificates/ca.crt` | to every machine |
| `certificates/server.pem`, `server.key` | to the machine of link and gate |
| `keys/node-N` | to node N and nowhere else; it is the node's identity |
| `keys/*.pub`, `home/`, `app/` | to the operator's machine, which registers nodes and starts runs |
| `certificates/ca.key` | to none of them; only a new server certificate needs it |
| `services/` | systemd units, container files and each node's settings |

Flower's link asks operators for no proof of who they are: whoever reaches it can run code on all machines. So it
listens at `{gateway.control}` alone, and nodes reach a gate next to it, which passes on what nodes need and nothing
else. Type the commands for operators on that machine, or from another one through
`ssh -L {gateway.control.port}:{gateway.control} MACHINE`. Nodes open no port.

On every machine, first:

```sh
{typed.environment}
```

The link, and the gate next to it:

```sh
{typed.link}
{typed.gate}
```

Once, to register the nodes:

```sh
{chr(10).join(typed.register)}
```

The nodes. Without `python -m fedloom.flower.warm` they work as well, but load Python, PyTorch and fedloom for every
message, as is usual with Flower:

```sh
{chr(10).join(typed.nodes)}
```

The run, on the link's machine; it is started again after crashes, until it is finished:

```sh
{typed.supervise}
```

The same by hand: once, and once more after a crash:

```sh
{typed.run}
{typed.resume}
```

The run folder is `out` in `app/pyproject.toml`, on the link's machine; its account must be able to write it.
Unregister a node with `flwr supernode unregister NUMBER {CONNECTION}`; `flwr supernode list {CONNECTION}` shows
the numbers.
"""
