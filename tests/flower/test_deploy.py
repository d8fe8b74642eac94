"""Flower accepts what `fedloom deploy` writes."""

from __future__ import annotations

import json
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from argparse import Namespace
from ipaddress import ip_address
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.common.config import get_fab_config, get_fused_config_from_dir, parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode
from hypothesis import given, strategies as st

from fedloom.cli.main import main
from fedloom.errors import BadData, BadExperiment
from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.commands import deploy
from fedloom.flower.deploy.folder import node_config, shipped
from fedloom.flower.deploy.trial import CONFIG
from fedloom.flower.protocol.assignment import deal_clients, format_ranges
from fedloom.flower.protocol.records import LONGEST
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import inputs_of

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own


@pytest.fixture
def made(tmp_path):
    """A deployment of seven clients on three nodes."""
    return deploy(tmp_path / "made", Experiment(method="fedspu", clients=7), 3, CONFIG, ("link.example.org",), 8123)


def test_the_app_is_valid_and_carries_the_experiment(made):
    folder, _ = made
    _, warnings = load_and_validate(folder.app / "pyproject.toml")
    assert warnings == []
    typed = get_fused_config_from_dir(folder.app, {"resume": True})
    assert Experiment(**json.loads(str(typed["experiment"]))) == Experiment(method="fedspu", clients=7)
    assert typed["resume"] is True
    assert set(typed) == {"experiment", *CONFIG}
    assert get_fab_config(build_fab_from_disk(folder.app))["tool"]["flwr"]["app"]["publisher"] == "fedloom"


def test_the_bundle_holds_no_secret(made):
    folder, _ = made
    bundle = build_fab_from_disk(folder.app)
    assert len(bundle) < 10_000
    assert b"PRIVATE" not in bundle
    assert not list(folder.app.glob("*.key"))


def node_of(line: str) -> Namespace:
    """A node's command as Flower reads it."""
    _, warm, words = line.partition(" -m fedloom.flower.warm flower-supernode ")
    assert warm
    return _parse_args_run_supernode().parse_args(shlex.split(words))


def test_every_command_is_one_that_flower_understands(made):
    folder, typed = made
    link = _parse_args_run_superlink().parse_args(shlex.split(typed.link)[1:])
    assert link.enable_supernode_auth
    assert not link.insecure
    assert (link.host, link.port) == ("127.0.0.1", 8001)  # where only operators are
    assert "--listen 0.0.0.0:8123 --link 127.0.0.1:8001 " in typed.gate
    assert not link.runtime_dependency_install
    nodes = [node_of(words) for words in typed.nodes]
    assert len({node.port for node in nodes}) == len({node.auth_supernode_private_key for node in nodes}) == 3
    for node in nodes:
        assert node.superlink == "link.example.org:8123"
        assert Path(node.auth_supernode_private_key).exists()
        assert node.root_certificates == str(folder.certificates.authority)
    configs = [parse_config_args([node.node_config]) for node in nodes]
    assert [config["clients"] for config in configs] == ["0,3,6", "1,4", "2,5"]
    assert all(set(config) == {"clients", "data", "state"} for config in configs)


def test_the_readme_has_every_command_and_service(made):
    folder, typed = made
    text = (folder.root / "README.md").read_text()
    once = (typed.environment, typed.link, typed.gate, typed.supervise, typed.run, typed.resume)
    for line in (*once, *typed.register, *typed.nodes):
        assert line in text
    services = {file.name for file in (folder.root / "services").iterdir()}
    assert services >= {f"fedloom-{name}.service" for name in ("link", "gate", "run", "node@")}
    assert services >= {f"Containerfile.{name}" for name in ("link", "gate", "node")}
    settings = dict(line.split("=") for line in (folder.root / "services" / "node-1.env").read_text().splitlines())
    wanted = {"LINK": "link.example.org:8123", "PORT": "9095", "CLIENTS": "1,4", "DATA": "", "FEDLOOM_METRICS": "0"}
    assert settings == wanted
    for secret in [*(folder.root / "keys").glob("node-?"), *folder.root.rglob("*.key")]:
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_ports_for_figures(tmp_path):
    """The server's, and after it the nodes'."""
    config = {**CONFIG, "metrics": 9200}
    made, _ = deploy(tmp_path / "made", Experiment(clients=2), 2, config, reply=10**6)
    assert get_fused_config_from_dir(made.app, {})["metrics"] == 9200
    for number in range(2):
        text = (made.root / "services" / f"node-{number}.env").read_text()
        assert f"FEDLOOM_METRICS={9201 + number}\n" in text


def test_services_start_what_the_commands_start(made):
    folder, _ = made
    unit = (folder.root / "services" / "fedloom-node@.service").read_text().replace("\\\n", " ")
    line = next(line for line in unit.splitlines() if line.startswith("ExecStart=")).partition("=")[2]
    for name, value in {"LINK": "h:1", "PORT": "9", "CLIENTS": "0-4,7", "DATA": "/d"}.items():
        line = line.replace(f"${{{name}}}", value)
    node = node_of(line)
    assert parse_config_args([node.node_config])["clients"] == "0-4,7"
    assert "RestartPreventExitStatus=77\n" in unit
    assert "RestartPreventExitStatus=2\n" in (folder.root / "services" / "fedloom-run.service").read_text()
    unit = (folder.root / "services" / "fedloom-link.service").read_text().replace("\\\n", " ")
    line = next(line for line in unit.splitlines() if line.startswith("ExecStart=")).partition("=")[2]
    link = _parse_args_run_superlink().parse_args(shlex.split(line)[1:])
    assert link.enable_supernode_auth
    assert (link.host, link.port) == ("127.0.0.1", 8001)


@pytest.mark.parametrize("name", ["fedloom-link.service", "fedloom-gate.service", "fedloom-node@.service"])
def test_units_bound_what_a_service_takes(made, name):
    folder, _ = made
    lines = (folder.root / "services" / name).read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    assert settings["UMask"] == "0077"
    assert int(settings["LimitNOFILE"]) > 10_000
    assert settings["MemoryMax"].endswith("%")
    assert "0.0.0.0" not in " ".join(lines) or name == "fedloom-gate.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_reads_the_units(made):
    folder, _ = made
    for name in ("link", "gate", "run"):
        file = folder.root / "services" / f"fedloom-{name}.service"
        said = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False).stderr
        assert [line for line in said.splitlines() if "is not executable" not in line] == []


def test_the_operator_reaches_the_link_and_nodes_the_gate(tmp_path):
    control = Address("10.8.0.1", 9001)
    made, typed = deploy(tmp_path / "made", Experiment(clients=2), 1, CONFIG, ("link.example.org",), 8123, control)
    home = tomllib.loads((made.home / "config.toml").read_text())
    assert home["superlink"]["fedloom"]["address"] == "10.8.0.1:9001"
    assert "--host 10.8.0.1 --port 9001" in typed.link
    assert "--superlink link.example.org:8123" in typed.nodes[0]
    names = x509.load_pem_x509_certificate(made.certificates.link.read_bytes()).extensions
    names = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ip_address("10.8.0.1") in names.get_values_for_type(x509.IPAddress)


def test_answers_are_bounded_by_the_model(tmp_path):
    """More clients and larger models may send more; where the data are missing, the bound is asked for."""
    for place, (model, nodes) in enumerate([("mlp", 4), ("mlp", 1), ("2nn", 4)]):
        experiment = Experiment(clients=4, model=model)
        size = sum(value.numel() for value in inputs_of(experiment).network.parameters())
        _, typed = deploy(tmp_path / str(place), experiment, nodes, CONFIG)
        bound = int(typed.gate.rpartition(" ")[2]) - 2 * LONGEST
        assert 8 * size < bound * nodes / 4 < 20 * size  # a model has 4 bytes a number
    missing = Experiment(clients=4, data=str(tmp_path / "none.npz"))
    with pytest.raises(BadData, match="--largest-reply"):
        deploy(tmp_path / "missing", missing, 1, CONFIG)
    assert not (tmp_path / "missing").exists()
    _, typed = deploy(tmp_path / "said", missing, 1, CONFIG, reply=12345)
    assert typed.gate.endswith("--largest-reply 12345")


def test_the_command_prints_json(tmp_path, monkeypatch, capsys):
    words = ["fedloom", "deploy", "feddd", "--nodes", "2", "--clients", "4", "--set", "budget=0.4", "--json"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path / "made")])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] == str(tmp_path / "made")
    assert len(said["nodes"]) == 2
    assert "--host 127.0.0.1" in said["link"]  # no other host was named


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nosuch"], "unknown method"),
        (["fedavg", "--nodes", "11", "--clients", "10"], "nodes is 11"),
        (["fedavg", "--host", "a b"], "host is"),
        (["fedavg", "--control", "8001"], "control is"),
        (["fedavg", "--checkpoint-every", "often"], "checkpoint-every"),
    ],
)
def test_wrong_input_is_refused(words, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedloom", "deploy", *words, "--out", str(tmp_path / "made")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_a_used_folder_is_refused(made):
    with pytest.raises(BadExperiment, match="not empty"):
        deploy(made[0].root, Experiment(), 3, CONFIG)


def test_own_files_are_named_by_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from fedloom import Method\n\n\ndef mine() -> Method:\n    return Method()\n")
    typed = shipped(Experiment(method="mine.py:mine", data="some.npz"))
    assert typed.method.name == f"{tmp_path}/mine.py:mine"
    assert typed.data.name == f"{tmp_path}/some.npz"


@given(st.integers(1, 60), st.integers(1, 60))
def test_every_client_is_dealt_once(clients, nodes):
    if nodes > clients:
        with pytest.raises(BadExperiment, match="nodes is"):
            deal_clients(clients, nodes)
        return
    hands = deal_clients(clients, nodes)
    assert sorted(client for hand in hands for client in hand) == list(range(clients))
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


def test_numbers_are_written_short():
    assert format_ranges([3, 1, 2, 0, 7, 9, 8]) == "0-3,7-9"
    assert format_ranges([5]) == "5"
    assert format_ranges([0, 10, 20]) == "0,10,20"


def test_what_flower_cannot_read_is_refused():
    with pytest.raises(BadExperiment, match="state is"):
        node_config({"state": 'a"b'})
