"""A deployment for several machines: its folder, and the commands that use it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.flower.deploy.folder import (
    CONNECTION,
    NODE_PORT,
    PORT,
    QUIET,
    WARM,
    Deployment,
    link_command,
    node_command,
    shipped,
    write_folder,
)
from fedloom.flower.deploy.service_files import container, link_unit, node_settings, node_unit, run_unit
from fedloom.runs.experiment import Experiment


class Commands(NamedTuple):
    """Commands by the machine on which they are typed, and when."""

    environment: str
    link: str
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
) -> tuple[Deployment, Commands]:
    """Write the folder of a deployment; also returns the commands that use it."""
    from fedloom import __version__

    config = {**config, "out": config["out"] or str(root.absolute() / "run")}
    config["resume-with"] = supervise_line(root.absolute())
    made = write_folder(root, experiment, nodes, config, hosts, port)
    link = f"{hosts[0] if hosts else '127.0.0.1'}:{port}"
    typed = commands(made, link, port, loopback=not hosts)
    services = made.root / "services"
    services.mkdir()
    files = {"fedloom-link.service": link_unit(port), "fedloom-node@.service": node_unit()}
    files["fedloom-run.service"] = run_unit()
    files |= {f"Containerfile.{role}": container(role, __version__, port) for role in ("link", "node")}
    files |= {f"node-{i}.env": node_settings(link, i, clients) for i, clients in enumerate(made.clients)}
    for name, text in files.items():
        (services / name).write_text(text)
    (made.root / "README.md").write_text(_readme(made, typed, link, port, shipped(experiment)))
    return made, typed


def commands(made: Deployment, link: str, port: int, loopback: bool) -> Commands:
    """The commands, with paths as if everything were on this machine."""
    root, line = made.root, shlex.join
    words = link_command(made.certificates, "127.0.0.1" if loopback else "0.0.0.0", port, root / "link.db")
    nodes = [
        node_command(
            str(made.certificates.authority), str(key.private), link,
            {"clients": made.clients[i], "data": "", "state": str(root / "states" / key.private.name)}, NODE_PORT + i,
        )
        for i, key in enumerate(made.keys)
    ]  # fmt: skip
    run = ["flwr", "run", str(made.app), CONNECTION, "--stream"]
    environment = {**QUIET, "FLWR_HOME": shlex.quote(str(made.home))}
    return Commands(
        "export " + " ".join(f"{name}={value}" for name, value in environment.items()),
        line(words),
        [line(["flwr", "supernode", "register", str(key.public), CONNECTION]) for key in made.keys],
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


def _readme(made: Deployment, typed: Commands, link: str, port: int, experiment: Experiment) -> str:
    """The deployment's README.md: which file goes where, and the commands in order."""
    chosen = (experiment.method, experiment.model, experiment.data, experiment.fleet)
    files = [one.name if one.own is None else one.own.file for one in chosen if one.name.startswith("/")]
    needed = "".join(f"- `{name}` must be at this path on every machine.\n" for name in files)
    return f"""\
# {experiment.method.name} on {experiment.data.name}, {len(made.keys)} nodes

The link is at `{link}`. Every machine needs Python 3.11 or newer and the same version of fedloom:
`pip install 'fedloom[flower]'`.
{needed}
| what | where it goes |
|---|---|
| `certificates/ca.crt` | to every machine |
| `certificates/server.pem`, `server.key` | to the link's machine |
| `keys/node-N` | to node N and nowhere else; it is the node's identity |
| `keys/*.pub`, `home/`, `app/` | to the operator's machine, which registers nodes and starts runs |
| `certificates/ca.key` | to none of them; only a new server certificate needs it |
| `services/` | systemd units, container files and each node's settings |

The link listens on port {port}. Nodes open no port to the outside. Flower serves the operator's API (`/v1/control`) on
the port of the nodes' API (`/v1/fleet`) and does not authenticate operators: let only nodes and yourself reach it.

On every machine, first:

```sh
{typed.environment}
```

The link:

```sh
{typed.link}
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
