"""A deployment's folder is changed: certificates, keys and nodes, each with what is to be copied and typed."""

from __future__ import annotations

import json
import ssl
import stat
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from hypothesis import given, strategies as st

from fedloom.cli.main import main
from fedloom.errors import BadExperiment
from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.change import add_nodes, like, remove_node, rotate_a_node
from fedloom.flower.deploy.commands import deploy
from fedloom.flower.deploy.folder import CONTROL, Deployment
from fedloom.flower.deploy.moves import moved, with_nodes, without_node
from fedloom.flower.deploy.opened import open_folder
from fedloom.flower.deploy.rotate import drop_old_authority, rotate_authority, rotate_link, validity
from fedloom.flower.deploy.service_files import read_settings, settings_file
from fedloom.flower.deploy.trial import CONFIG
from fedloom.flower.protocol.assignment import deal_clients
from fedloom.flower.protocol.owners import fingerprint, read_owners
from fedloom.runs.experiment import Experiment
from flower.test_certificates import shake_hands

HOSTS = ("link.example.org", "10.0.0.7")


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    """Seven clients on three nodes."""
    return deploy(tmp_path / "made", Experiment(method="fedspu", clients=7), 3, CONFIG, HOSTS, 8123)[0]


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code and output of `fedloom deploy`."""
    monkeypatch.setattr(sys, "argv", ["fedloom", "deploy", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, " ".join(out.err.split())


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def owners(root: Path) -> dict[int, list[int]]:
    """Whose key hosts which clients, as the app says; each is the key of its node."""
    opened = open_folder(root)
    found = read_owners(opened.config["nodes"])
    keys = {key.private.name: fingerprint(key.public.read_bytes()) for key in opened.made.keys}
    assert {one.name: one.key for one in found} == keys
    return {int(one.name[5:]): sorted(one.clients) for one in found}


def test_a_folder_says_all_of_its_deployment(made: Deployment) -> None:
    opened = open_folder(made.root)
    assert opened.made == made
    assert opened.hosts == HOSTS
    assert opened.gateway[:3] == (("link.example.org", 8123), ("0.0.0.0", 8123), CONTROL)
    assert opened.gateway.reply > 100_000
    assert opened.experiment == Experiment(method="fedspu", clients=7)
    assert opened.config.keys() == CONFIG.keys()
    assert opened.hosted == owners(made.root) == {0: [0, 3, 6], 1: [1, 4], 2: [2, 5]}
    with pytest.raises(BadExperiment, match="is not a deployment"):
        open_folder(made.app)


def test_another_experiment_on_the_same_nodes(made: Deployment, tmp_path: Path) -> None:
    remove_node(made.root, 1, deal=True)
    env = settings_file(made.root, 0)
    env.write_text(env.read_text().replace("DATA=", "DATA=/srv/data"))
    before = contents(made.root)
    change = like(tmp_path / "second", Experiment(method="feddd", clients=7), made.root, dict(CONFIG))
    after, opened = contents(tmp_path / "second"), open_folder(tmp_path / "second")
    assert contents(made.root) == before
    same = {name for name in after if after[name] == before.get(name)}
    assert {name for name in after if name.startswith(("certificates/", "keys/", "services/"))} <= same
    assert opened.experiment.method.name == "feddd"
    assert opened.hosted == open_folder(made.root).hosted
    assert owners(tmp_path / "second") == owners(made.root) == {0: [0, 3, 4, 6], 2: [1, 2, 5]}
    assert opened.config["out"] == str(tmp_path / "second" / "run")
    assert [name for name, _ in change.copies] == ["app/ and home/"]  # to the link, if a service starts the run
    for secret in [*(tmp_path / "second" / "keys").glob("node-?"), tmp_path / "second" / "certificates" / "ca.key"]:
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_another_fleet_on_the_same_nodes(made: Deployment, tmp_path: Path) -> None:
    change = like(tmp_path / "second", Experiment(clients=4), made.root, dict(CONFIG))
    assert open_folder(tmp_path / "second").hosted == {0: [0, 3], 1: [1], 2: [2]}
    assert [name for name, _ in change.copies] == [
        *(f"services/node-{node}.env" for node in range(3)),
        "app/ and home/",
    ]


def test_like_by_the_command(made: Deployment, tmp_path: Path, monkeypatch, capsys) -> None:
    words = ("feddd", "--set", "budget=0.4", "--clients", 7, "--like", made.root, "--out", tmp_path / "second")
    code, out, _ = said(monkeypatch, capsys, *words, "--json")
    assert code == 0
    assert [name for name, _ in json.loads(out)["copies"]] == ["app/ and home/"]
    code, _, err = said(monkeypatch, capsys, *words[:-1], tmp_path / "third", "--nodes", 4)
    assert code == 2
    assert "--nodes and --like" in err
    assert not (tmp_path / "third").exists()


def test_the_links_certificate_is_changed(made: Deployment) -> None:
    files = made.certificates
    before = {file: file.read_bytes() for file in files}
    rotate_link(files)
    assert shake_hands(files, files.authority, "link.example.org") == "TLSv1.3"
    assert shake_hands(files, files.authority, "10.0.0.7") == "TLSv1.3"
    assert {file for file in files if file.read_bytes() != before[file]} == {files.link, files.link_key}
    assert stat.S_IMODE(files.link_key.stat().st_mode) == 0o600
    assert {file.name for file in files.link.parent.iterdir()} == {file.name for file in files}  # nothing is left over


def test_the_authority_is_changed_without_a_gap(made: Deployment, tmp_path: Path) -> None:
    """At every stage link and nodes with the files of this stage and of the one before understand each other."""
    files, old = made.certificates, tmp_path / "old.crt"
    old.write_bytes(files.authority.read_bytes())
    with pytest.raises(BadExperiment, match="no old one"):
        drop_old_authority(files)
    rotate_authority(files)
    both = tmp_path / "both.crt"
    both.write_bytes(files.authority.read_bytes())
    for trusted in (old, both):  # nodes change one after another
        assert shake_hands(files, trusted, "link.example.org") == "TLSv1.3"
    for refused, why in ((rotate_authority, "two authorities already"), (drop_old_authority, "by the old authority")):
        with pytest.raises(BadExperiment, match=why):
            refused(files)
    assert validity(files)[0].note == "by the old authority: change it with --server"
    rotate_link(files)
    assert shake_hands(files, both, "link.example.org") == "TLSv1.3"
    drop_old_authority(files)
    for trusted in (both, files.authority):
        assert shake_hands(files, trusted, "link.example.org") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(files, old, "link.example.org")
    assert [one.what for one in validity(files)] == ["link", "authority"]
    assert stat.S_IMODE(files.authority_key.stat().st_mode) == 0o600


def test_without_the_authoritys_key_nothing_is_signed(made: Deployment) -> None:
    made.certificates.authority_key.unlink()
    with pytest.raises(BadExperiment, match=r"ca\.key' is missing"):
        rotate_link(made.certificates)


def test_certificates_that_end_soon_are_warned_of(made: Deployment, monkeypatch, capsys) -> None:
    code, out, _ = said(monkeypatch, capsys, "show", made.root)
    assert code == 0
    assert "expires" not in out
    for days, word in ((29, "expires soon"), (0, "expired")):
        rotate_link(made.certificates, days)
        assert word in validity(made.certificates)[0].note
        assert f"warning: the link's certificate {word}" in said(monkeypatch, capsys, "show", made.root)[1]
    found = json.loads(said(monkeypatch, capsys, "show", made.root, "--json")[1])
    assert found["certificates"][0]["days"] < 0
    assert "does not answer" in found["problem"]
    assert [node["clients"] for node in found["nodes"]] == ["0,3,6", "1,4", "2,5"]


def test_a_nodes_key_is_changed(made: Deployment) -> None:
    before, env = fingerprint(made.keys[1].public.read_bytes()), settings_file(made.root, 1).read_text()
    change = rotate_a_node(made.root, 1)
    old = made.root / "keys" / "retired" / "node-1.1.pub"
    assert fingerprint(old.read_bytes()) == before != fingerprint(made.keys[1].public.read_bytes())
    assert stat.S_IMODE(made.keys[1].private.stat().st_mode) == 0o600
    assert settings_file(made.root, 1).read_text() == env
    assert [name for name, _ in change.copies] == ["keys/node-1", "app/"]
    assert owners(made.root) == open_folder(made.root).hosted
    rotate_a_node(made.root, 1)  # before the link refuses the first
    assert {file.name for file in old.parent.iterdir()} == {"node-1.1.pub", "node-1.2.pub"}
    with pytest.raises(BadExperiment, match="node is 3; the deployment has 0-2"):
        rotate_a_node(made.root, 3)


def test_nodes_come_and_go(made: Deployment) -> None:
    env = settings_file(made.root, 0)
    env.write_text(env.read_text().replace("DATA=", "DATA=/srv/data"))
    change = add_nodes(made.root, 2)
    assert open_folder(made.root).hosted == {0: [0], 1: [1, 4], 2: [2, 5], 3: [6], 4: [3]}
    assert read_settings(env) == {**read_settings(env), "CLIENTS": "0", "DATA": "/srv/data"}  # which the operator set
    assert read_settings(settings_file(made.root, 4))["PORT"] == "9098"
    assert {"keys/node-3", "keys/node-4", "services/node-0.env"} < {name for name, _ in change.copies}
    text = (made.root / "README.md").read_text()
    assert "keys/node-4" in text
    remove_node(made.root, 4, deal=False)
    assert 3 not in {client for own in open_folder(made.root).hosted.values() for client in own}
    assert not (made.root / "keys" / "node-4").exists()
    assert "keys/node-4" not in (made.root / "README.md").read_text()
    add_nodes(made.root, 1)  # in its place, and not under its name, which its states go by
    assert open_folder(made.root).hosted == {0: [0], 1: [1, 4], 2: [2, 5], 3: [6], 5: [3]}
    remove_node(made.root, 0, deal=True)
    assert open_folder(made.root).hosted == owners(made.root) == {1: [1, 4], 2: [2, 5], 3: [0, 6], 5: [3]}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["add", "--clients", "6-8"], "clients has 7-8; the experiment's are 0-6"),
        (["add", "--clients", "1,4"], "node 1 would host nobody"),
        (["add", "--nodes", "5"], "would host nobody: there are 7 clients for 8 nodes"),
        (["remove", "--node", "9"], "node is 9; the deployment has 0-2"),
        (["rotate"], "rotate got nothing; expected one of --server"),
        (["rotate", "--ca", "--server"], "rotate got --server, --ca"),
    ],
)
def test_wrong_changes_change_nothing(words, complaint, made: Deployment, monkeypatch, capsys) -> None:
    before = contents(made.root)
    code, _, err = said(monkeypatch, capsys, words[0], made.root, *words[1:])
    assert code == 2
    assert complaint in err
    assert contents(made.root) == before


def test_a_link_that_is_away_is_named(made: Deployment, tmp_path: Path, monkeypatch, capsys) -> None:
    here = deploy(tmp_path / "here", Experiment(clients=2), 2, CONFIG, control=Address("127.0.0.1", 9))[0]
    code, _, err = said(monkeypatch, capsys, "register", here.root)
    assert code == 3
    assert "the link at 127.0.0.1:9 does not answer" in err


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 8))
def test_a_new_node_takes_its_part_and_no_more(nodes: int, more: int, each: int) -> None:
    clients = nodes * each + more
    before = dict(enumerate(deal_clients(clients, nodes)))
    new = list(range(nodes, nodes + more))
    after = with_nodes(before, new, clients)
    assert sorted(client for own in after.values() for client in own) == list(range(clients))
    assert all(own for own in after.values())
    assert {to for _, _, to in moved(before, after)} <= set(new)
    sizes = [len(after[node]) for node in new]
    assert max(map(len, after.values())) - min(sizes) < 2 or max(sizes) - min(sizes) < 2
    back = after
    for node in new:
        back = without_node(back, node, deal=True)
    assert sorted(client for own in back.values() for client in own) == list(range(clients))
    assert back.keys() == before.keys()
