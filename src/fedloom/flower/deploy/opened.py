"""A deployment read back from its folder, which has all that is known of it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.errors import BadExperiment
from fedloom.flower.deploy.certificates import files_in
from fedloom.flower.deploy.folder import CONNECTION, Deployment
from fedloom.flower.deploy.keys import key_in
from fedloom.flower.deploy.rotate import hosts_of
from fedloom.flower.deploy.service_files import read_settings, settings_file
from fedloom.flower.protocol.assignment import parse_ranges
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.runs.experiment import Experiment


class Opened(NamedTuple):
    """A deployment, and what its files say."""

    made: Deployment
    hosts: tuple[str, ...]  # of the link; nodes use the first
    port: int
    control: str  # where the operator reaches the link
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
    if not numbers:
        raise BadExperiment(f"'{root}' is not a deployment; name a folder that `fedloom deploy --out` has written.")
    settings = {number: read_settings(settings_file(root, number)) for number in numbers}
    link, _, port = settings[numbers[0]]["LINK"].rpartition(":")
    files, keys = files_in(root / "certificates"), [key_in(root / "keys", number) for number in numbers]
    made = Deployment(root, app, files, keys, [settings[number]["CLIENTS"] for number in numbers], home)
    config = dict(_toml(app / "pyproject.toml")["tool"]["flwr"]["app"]["config"])
    experiment = read_experiment(config.pop("experiment"))
    hosts = () if link == "127.0.0.1" else tuple(dict.fromkeys([link, *hosts_of(files)]))
    control = _toml(home / "config.toml")["superlink"][CONNECTION]["address"]
    return Opened(made, hosts, int(port), control, experiment, config)


def _toml(file: Path) -> dict[str, Any]:
    """A file's settings."""
    try:
        return tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise BadExperiment(f"'{file}' cannot be read ({problem}); `fedloom deploy` has written it.") from problem
