"""How does a run get onto several machines? A folder with all that they need, and the commands that use it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.flower.deploy.folder import (
    CONNECTION,
    NODE_PORT,
    PORT,
    WARM,
    Deployment,
    link_command,
    node_command,
    shipped,
    write_folder,
)
from fedloom.flower.deploy.service_files import container, link_unit, node_settings, node_unit
from fedloom.runs.experiment import Experiment


class Commands(NamedTuple):
    """What is typed where."""

    environment: str
    link: str
    register: list[str]
    nodes: list[str]
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
    """Write the folder of a deployment, and say how it is used."""
    from fedloom import __version__

    config = {**config, "out": config["out"] or str(root.absolute() / "run")}
    made = write_folder(root, experiment, nodes, config, hosts, port)
    link = f"{hosts[0] if hosts else '127.0.0.1'}:{port}"
    told = commands(made, link, port, loopback=not hosts)
    services = made.root / "services"
    services.mkdir()
    files = {"fedloom-link.service": link_unit(port), "fedloom-node@.service": node_unit()}
    files |= {f"Containerfile.{role}": container(role, __version__, port) for role in ("link", "node")}
    files |= {f"node-{i}.env": node_settings(link, i, clients) for i, clients in enumerate(made.clients)}
    for name, text in files.items():
        (services / name).write_text(text)
    (made.root / "README.md").write_text(_readme(made, told, link, port, shipped(experiment)))
    return made, told


def commands(made: Deployment, link: str, port: int, loopback: bool) -> Commands:
    """What is typed, as if all of it were on this machine."""
    root, said = made.root, shlex.join
    words = link_command(made.certificates, "127.0.0.1" if loopback else "0.0.0.0", port, root / "link.db")
    nodes = [
        node_command(
            str(made.certificates.authority), str(key.private), link,
            {"clients": made.clients[i], "data": "", "state": str(root / "states" / key.private.name)}, NODE_PORT + i,
        )
        for i, key in enumerate(made.keys)
    ]  # fmt: skip
    run = ["flwr", "run", str(made.app), CONNECTION, "--stream"]
    return Commands(
        f"export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME={shlex.quote(str(made.home))}",
        said(words),
        [said(["flwr", "supernode", "register", str(key.public), CONNECTION]) for key in made.keys],
        [said([*WARM, *words]) for words in nodes],
        said(run),
        said([*run, "--run-config", "resume=true"]),
        said(["flwr", "stop", "RUN", CONNECTION]),
    )


def _readme(made: Deployment, told: Commands, link: str, port: int, experiment: Experiment) -> str:
    chosen = (experiment.method, experiment.model, experiment.data, experiment.fleet)
    files = [one.name if one.own is None else one.own.file for one in chosen if one.name.startswith("/")]
    needed = "".join(f"- `{name}` has to be at this very place on every machine.\n" for name in files)
    return f"""\
# {experiment.method.name} on {experiment.data.name}, {len(made.keys)} nodes

The link is at `{link}`. Every machine needs Python 3.11 or newer and `pip install 'fedloom[flower]'`, the same version.
{needed}
| what | where it goes |
|---|---|
| `certificates/ca.crt` | to every machine |
| `certificates/server.pem`, `server.key` | to the link's machine |
| `keys/node-N` | to node N and nowhere else; it is the node's identity |
| `keys/*.pub`, `home/`, `app/` | to the machine that gives orders |
| `certificates/ca.key` | away from all of them; only a new server certificate needs it |
| `services/` | systemd units, container files and each node's settings |

The link listens on port {port}. Nodes open no port to the outside. Flower serves the orders (`/v1/control`) on the same
port as the nodes (`/v1/fleet`) and asks nobody who gives them: let only nodes and yourself reach it.

On every machine, first:

```sh
{told.environment}
```

The link:

```sh
{told.link}
```

Once, to let the nodes in:

```sh
{chr(10).join(told.register)}
```

The nodes, each with as much of the command as follows `fedloom.flower.warm` if you like: then every message loads
Python, PyTorch and fedloom anew, as is usual with Flower.

```sh
{chr(10).join(told.nodes)}
```

The run, and after a crash, its end:

```sh
{told.run}
{told.resume}
```

The run folder is `out` in `app/pyproject.toml`, on the link's machine; its account must be able to write it.
Take a node's right away with `flwr supernode unregister NUMBER {CONNECTION}`; `flwr supernode list {CONNECTION}` shows
the numbers.
"""
