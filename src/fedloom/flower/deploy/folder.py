"""What does a deployment consist of? A Flower app, certificates, keys and settings, in one folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.errors import BadExperiment
from fedloom.flower.deploy.certificates import Certificates, write_certificates
from fedloom.flower.deploy.keys import Key, write_key
from fedloom.flower.protocol.assignment import deal_clients, format_ranges
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.flower.protocol.need_flower import need_flower
from fedloom.runs.experiment import Experiment
from fedloom.runs.own_function import own_function

PORT = 8000  # of the link; Flower's own choice
NODE_PORT = 9094  # of a node's own helpers, on its loopback
CONNECTION = "fedloom"  # how the link is called in Flower's configuration
WARM = ("python", "-m", "fedloom.flower.warm")  # before a node's command: its apps start at once
SIDES = ("server", "client")
TABLES = (".npz", ".csv", ".parquet")


class Deployment(NamedTuple):
    """Where everything is."""

    root: Path
    app: Path
    certificates: Certificates
    keys: list[Key]
    clients: list[str]  # that each node hosts
    home: Path  # Flower's, for whoever gives the link orders


def write_folder(
    root: Path,
    experiment: Experiment,
    nodes: int,
    config: dict[str, Any],
    hosts: tuple[str, ...] = (),
    port: int = PORT,
) -> Deployment:
    """Write a deployment's app, certificates, keys and Flower home into a new folder."""
    need_flower()
    read_experiment(experiment.model_dump_json())  # what cannot be played on a network is said now
    shares = [format_ranges(clients) for clients in deal_clients(experiment.clients, nodes)]
    if root.exists() and any(root.iterdir()):
        raise BadExperiment(f"the folder '{root}' is not empty; name a new one.")
    root = root.absolute()
    app, home = root / "app", root / "home"
    certificates = write_certificates(root / "certificates", hosts)
    write_app(app, experiment, config)
    keys = [write_key(root / "keys", f"node-{number}") for number in range(nodes)]
    write_home(home, f"{hosts[0] if hosts else '127.0.0.1'}:{port}", certificates.authority)
    return Deployment(root, app, certificates, keys, shares, home)


def write_app(app: Path, experiment: Experiment, config: dict[str, Any]) -> None:
    """The Flower app: two modules of two lines, and the run's settings."""
    import tomli_w

    from fedloom import __version__

    app.mkdir(parents=True)
    for side in SIDES:
        text = f'"""The {side} of a fedloom run."""\n\nfrom fedloom.flower import {side}_app\n\napp = {side}_app()\n'
        (app / f"{side}.py").write_text(text)
    about = {
        "name": "fedloom-app",
        "version": "1.0.0",
        "description": f"{experiment.method.name} on {experiment.data.name}, by fedloom {__version__}",
        "license": "Apache-2.0",
        "dependencies": [f"fedloom[flower]=={__version__}"],
    }
    flower = {
        "publisher": "fedloom",
        "components": {f"{side}app": f"{side}:app" for side in SIDES},
        "config": {"experiment": shipped(experiment).model_dump_json(), **config},
    }
    (app / "pyproject.toml").write_text(tomli_w.dumps({"project": about, "tool": {"flwr": {"app": flower}}}))


def shipped(experiment: Experiment) -> Experiment:
    """The experiment with whole paths: app processes run in folders of Flower's choice."""
    values = experiment.model_dump()
    for section in ("method", "model"):
        own = own_function(values[section]["name"])
        if own is not None:
            values[section]["name"] = str(own._replace(file=Path(os.path.abspath(own.file))))
    for section in ("data", "fleet"):
        if values[section]["name"].endswith(TABLES):
            values[section]["name"] = os.path.abspath(values[section]["name"])
    if values["world"]["trace"] is not None:
        values["world"]["trace"] = os.path.abspath(values["world"]["trace"])
    return Experiment(**values)


def write_home(home: Path, address: str, authority: Path) -> None:
    """Flower's configuration: where the link is, and whose certificates are believed."""
    import tomli_w

    home.mkdir(parents=True, exist_ok=True)
    link = {"address": address, "root-certificates": str(authority)}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: link}}))


def link_command(certificates: Certificates, host: str, port: int, database: Path | None = None) -> list[str]:
    """What starts the link: TLS and node authentication on."""
    words = ["flower-superlink", "--host", host, "--port", str(port), "--enable-supernode-auth"]
    words += ["--ssl-ca-certfile", str(certificates.authority), "--ssl-certfile", str(certificates.link)]
    words += ["--ssl-keyfile", str(certificates.link_key), "--disable-runtime-dependency-installation"]
    return words if database is None else [*words, "--database", str(database)]


def node_command(authority: str, key: str, link: str, config: dict[str, str], port: int) -> list[str]:
    """What starts a node; `link` is the address that it finds the link at. `WARM` before it saves it much loading."""
    words = ["flower-supernode", "--superlink", link, "--root-certificates", authority]
    words += ["--auth-supernode-private-key", key, "--node-config", node_config(config), "--port", str(port)]
    return words


def node_config(config: dict[str, str]) -> str:
    """A node's settings as Flower's command line takes them; it knows no escapes."""
    for name, value in config.items():
        if any(letter in value for letter in '"\\\n'):
            raise BadExperiment(f"{name} is '{value}'; Flower's node settings take no quote, backslash or new line.")
    return " ".join(f'{name}="{value}"' for name, value in config.items())
