"""A deployment read back from its folder, which has all that is known of it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.errors import BadExperiment
from fedloom.flower.deploy.address import address_of
from fedloom.flower.deploy.certificates import files_in
from fedloom.flower.deploy.folder import Deployment, Gateway
from fedloom.flower.deploy.keys import key_in
from fedloom.flower.deploy.rotate import hosts_of
from fedloom.flower.deploy.service_files import GATE, read_gateway, read_settings, settings_file
from fedloom.flower.protocol.assignment import parse_ranges
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.runs.experiment import Experiment


class Opened(NamedTuple):
    """A deployment, and what its files say."""

    made: Deployment
    gateway: Gateway
    hosts: tuple[str, ...]  # in the certificate of gate and link
    experiment: Experiment
    config: dict[str, Any]  # of the app, without the experiment

    @property
    def hosted(self) -> dict[int, list[int]]:
        """The clients of each node, by its number."""
        return {key.number: parse_ranges(text) if text else [] for key, text in zip(self.made.keys, self.made.clients)}


def open_folder(root: Path) -> Opened:
    """Read a deployment's folder."""
    root = root.absolute()
    services, app, home = root / "services", root / "app", root / "home"
    numbers = sorted(int(file.stem.rpartition("-")[2]) for file in services.glob("node-*.env"))
    if not numbers or not (services / GATE).exists():
        raise BadExperiment(f"'{root}' is not a deployment; name a folder that `fedloom deploy --out` has written.")
    settings = {number: read_settings(settings_file(root, number)) for number in numbers}
    gateway = read_gateway(services, address_of(settings[numbers[0]]["LINK"], "LINK"))
    files, keys = files_in(root / "certificates"), [key_in(root / "keys", number) for number in numbers]
    made = Deployment(root, app, files, keys, [settings[number]["CLIENTS"] for number in numbers], home)
    config = dict(_toml(app / "pyproject.toml")["tool"]["flwr"]["app"]["config"])
    experiment = read_experiment(config.pop("experiment"))
    return Opened(made, gateway, tuple(hosts_of(files)), experiment, config)


def _toml(file: Path) -> dict[str, Any]:
    """A file's settings."""
    try:
        return tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise BadExperiment(f"'{file}' cannot be read ({problem}); `fedloom deploy` has written it.") from problem
