"""The folder of a deployment: a Flower app, certificates, keys and settings; and the commands of link and nodes."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.errors import BadExperiment
from fedloom.files import replace_file
from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.certificates import Certificates, write_certificates
from fedloom.flower.deploy.keys import Key, write_key
from fedloom.flower.protocol.assignment import deal_clients, format_ranges, parse_ranges
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.flower.protocol.need_flower import need_flower
from fedloom.flower.protocol.owners import Owner, fingerprint, write_owners
from fedloom.runs.experiment import Experiment
from fedloom.runs.own_function import own_function

PORT = 8000  # of the gate, which nodes reach; Flower's own choice for a link
CONTROL = Address("127.0.0.1", PORT + 1)  # of the link, which operators and its own apps reach
NODE_PORT = 9094  # of a node's own helpers, on its loopback
CONNECTION = "fedloom"  # the link's name in Flower's configuration
WARM = ("python", "-m", "fedloom.flower.warm")  # before a node's command: its apps start at once
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # environment of all Flower commands
SIDES, APP_FILE = ("server", "client"), "pyproject.toml"
TABLES = (".npz", ".csv", ".parquet")


class Gateway(NamedTuple):
    """How a deployment's link is reached."""

    host: Address  # of the gate, for nodes
    listen: Address  # the same on its own machine
    control: Address  # of the link, for operators: whoever reaches it can register nodes and start runs
    reply: int  # bytes of a node's answer at most


class Deployment(NamedTuple):
    """Paths in a deployment's folder."""

    root: Path
    app: Path
    certificates: Certificates
    keys: list[Key]
    clients: list[str]  # of each node, `0-4,7`
    home: Path  # FLWR_HOME of the operator, who registers nodes and starts runs


def write_folder(
    root: Path,
    experiment: Experiment,
    nodes: int,
    config: dict[str, Any],
    hosts: tuple[str, ...] = (),
    control: Address = CONTROL,
) -> Deployment:
    """Write a deployment's app, certificates, keys and Flower home into a new folder.

    `hosts` are the names of the gate's machine; `control` is where the link listens.
    """
    need_flower()
    read_experiment(experiment.model_dump_json())  # raises now if it cannot run on a network
    hosted = [format_ranges(clients) for clients in deal_clients(experiment.clients, nodes)]
    root = new_root(root)
    app, home = root / "app", root / "home"
    certificates = write_certificates(root / "certificates", (*hosts, control.host))
    keys = [write_key(root / "keys", f"node-{number}") for number in range(nodes)]
    write_app(app, experiment, {**config, "nodes": nodes_text(keys, hosted)})
    write_home(home, str(control), certificates.authority)
    return Deployment(root, app, certificates, keys, hosted, home)


def new_root(root: Path) -> Path:
    """The absolute path of a folder that is to be written."""
    if root.exists() and any(root.iterdir()):
        raise BadExperiment(f"the folder '{root}' is not empty; name a new one.")
    return root.absolute()


def nodes_text(keys: Iterable[Key], clients: Iterable[str]) -> str:
    """Whose key hosts which clients, for a run config; `clients` of each node as `0-4,7`."""
    return write_owners(
        Owner(key.private.name, fingerprint(key.public.read_bytes()), frozenset(parse_ranges(own)))
        for key, own in zip(keys, clients)
    )


def read_nodes(app: Path) -> str:
    """Whose key hosts which clients, as an app says; empty if it does not."""
    return str(_config(app).get("nodes", ""))


def write_nodes(app: Path, nodes: str) -> None:
    """Change in an app whose key hosts which clients."""
    import tomli_w

    whole = tomllib.loads((app / APP_FILE).read_text())
    whole["tool"]["flwr"]["app"]["config"]["nodes"] = nodes
    replace_file(app / APP_FILE, [tomli_w.dumps(whole).encode()])


def write_app(app: Path, experiment: Experiment, config: dict[str, Any]) -> None:
    """Write the Flower app: two modules of two lines, and the run's settings."""
    import tomli_w

    app.mkdir(parents=True)
    for side in SIDES:
        text = f'"""The {side} of a fedloom run."""\n\nfrom fedloom.flower import {side}_app\n\napp = {side}_app()\n'
        (app / f"{side}.py").write_text(text)
    about = {
        "name": "fedloom-app",
        "version": "1.0.0",
        "description": f"{experiment.method.name} on {experiment.data.name}, by fedloom {version('fedloom')}",
        "license": "Apache-2.0",
        "dependencies": [f"fedloom[flower]=={version('fedloom')}"],
    }
    flower = {
        "publisher": "fedloom",
        "components": {f"{side}app": f"{side}:app" for side in SIDES},
        "config": {"experiment": shipped(experiment).model_dump_json(), **config},
    }
    (app / APP_FILE).write_text(tomli_w.dumps({"project": about, "tool": {"flwr": {"app": flower}}}))


def metrics_port(app: Path) -> int:
    """The port of the server's figures in an app's settings; 0 where there is none."""
    return int(_config(app).get("metrics", 0))


def _config(app: Path) -> dict[str, Any]:
    """An app's settings."""
    return dict(tomllib.loads((app / APP_FILE).read_text())["tool"]["flwr"]["app"]["config"])


def shipped(experiment: Experiment) -> Experiment:
    """The experiment with absolute paths: app processes run in folders that Flower chooses."""
    values = experiment.model_dump()
    for section in ("method", "model"):
        own = own_function(values[section]["name"])
        if own is not None:
            values[section]["name"] = str(own._replace(file=Path(os.path.abspath(own.file))))
    for section in ("data", "fleet"):
        if values[section]["name"].endswith(TABLES):
            values[section]["name"] = os.path.abspath(values[section]["name"])
    if values["start"] is not None:
        values["start"] = os.path.abspath(values["start"])
    if values["world"]["trace"] is not None:
        values["world"]["trace"] = os.path.abspath(values["world"]["trace"])
    return Experiment(**values)


def write_home(home: Path, address: str, authority: Path) -> None:
    """Write Flower's configuration: the link's address, and the authority whose certificates are trusted."""
    import tomli_w

    home.mkdir(parents=True, exist_ok=True)
    link = {"address": address, "root-certificates": str(authority)}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: link}}))


def link_command(certificates: Certificates, control: Address, database: Path | None = None) -> list[str]:
    """The command that starts the link, with TLS and node authentication; `database` keeps its state over a restart."""
    words = ["flower-superlink", "--host", control.host, "--port", str(control.port), "--enable-supernode-auth"]
    words += ["--ssl-ca-certfile", str(certificates.authority), "--ssl-certfile", str(certificates.link)]
    words += ["--ssl-keyfile", str(certificates.link_key), "--disable-runtime-dependency-installation"]
    return words if database is None else [*words, "--database", str(database)]


def gate_command(certificates: Path, gateway: Gateway) -> list[str]:
    """The command that starts the gate with the link's certificates, from this folder."""
    words = ["fedloom", "gate", "--listen", str(gateway.listen), "--link", str(gateway.control)]
    return [*words, "--certificates", str(certificates), "--largest-reply", str(gateway.reply)]


def node_command(authority: str, key: str, link: str, config: dict[str, str], port: int | str) -> list[str]:
    """The command that starts a node, for a link at the address `link`; with `WARM` before it, apps start sooner."""
    words = ["flower-supernode", "--superlink", link, "--root-certificates", authority]
    words += ["--auth-supernode-private-key", key, "--node-config", node_config(config), "--port", str(port)]
    return words


def node_config(config: dict[str, str]) -> str:
    """A node's settings as Flower's command line takes them, which has no escapes."""
    for name, value in config.items():
        if any(letter in value for letter in '"\\\n'):
            raise BadExperiment(
                f"{name} is '{value}'; Flower's node settings cannot have quotes, backslashes or newlines."
            )
    return " ".join(f'{name}="{value}"' for name, value in config.items())
