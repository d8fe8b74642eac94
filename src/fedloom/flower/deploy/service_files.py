"""Text of systemd units and container files that run a link, its gate and its nodes as services."""

from __future__ import annotations

import re
from pathlib import Path

from fedloom.errors import BadExperiment
from fedloom.flower.deploy.address import Address, address_of
from fedloom.flower.deploy.certificates import files_in
from fedloom.flower.deploy.folder import NODE_PORT, QUIET, WARM, Gateway, gate_command, link_command, node_command
from fedloom.flower.protocol.exit_codes import REFUSED, REMOVED
from fedloom.flower.protocol.figures import METRICS, port_of_node

HOME = "/var/lib/fedloom"  # on the machine that runs a service
FILES = "/etc/fedloom"  # certificates, keys and settings there
GATE = "fedloom-gate.service"
CERTIFICATES = Path(FILES, "certificates")
AUTHORITY = str(files_in(CERTIFICATES).authority)
CLIENTS = {"clients": "${CLIENTS}", "data": "${DATA}"}  # from a node's settings
AFTER = " fedloom-link.service"
STATE = "StateDirectory=fedloom\nStateDirectoryMode=0700\n"
QUIET_TEXT = " ".join(f"{name}={value}" for name, value in QUIET.items())


def link_unit(control: Address) -> str:
    """The link's unit; the folder is copied to /etc/fedloom."""
    settings = f"{STATE}{_home('flower')}MemoryMax=80%\n"
    return _unit("Flower link", settings, _link_words(control), _restart("on-failure", 5))


def gate_unit(gateway: Gateway) -> str:
    """The unit of the gate, on the link's machine; it stores nothing."""
    settings = f"{_home('flower')}MemoryMax=25%\n"
    return _unit("gate", settings, gate_command(CERTIFICATES, gateway), _restart("always", 10), AFTER)


def run_unit() -> str:
    """The unit of the run, on the link's machine; app/ and home/ are copied to /etc/fedloom as well."""
    return _unit("run", _home("operator"), ["fedloom", "supervise", FILES], _restart("on-failure", 30, REFUSED), AFTER)


def node_unit() -> str:
    """Any node's unit: `fedloom-node@3` reads /etc/fedloom/node-3.env and the key node-3."""
    config = {**CLIENTS, "state": f"{HOME}/node-%i/clients"}
    words = [*WARM, *node_command(AUTHORITY, f"{FILES}/keys/node-%i", "${LINK}", config, "${PORT}")]
    settings = f"{STATE}EnvironmentFile={FILES}/node-%i.env\n{_home('node-%i/flower')}MemoryMax=90%\n"
    settings += "KillMode=mixed\n"  # its first process alone is asked to end, and lets it answer its message
    return _unit("Flower node %i", settings, words, _restart("always", 10, REMOVED))


def _restart(when: str, wait: int, never: int | None = None) -> str:
    """Lines of a unit: when its command is started again, and after which exit code it never is."""
    return f"Restart={when}\nRestartSec={wait}\n" + (f"RestartPreventExitStatus={never}\n" if never else "")


def _home(folder: str) -> str:
    """The line of a unit that says where Flower keeps its settings."""
    return f"Environment=FLWR_HOME={HOME}/{folder}\n"


def _link_words(control: Address) -> list[str]:
    """The link's command with paths of the machine that runs the service."""
    return link_command(files_in(CERTIFICATES), control, Path(HOME, "link.db"))


def _line(words: list[str]) -> str:
    """A command as systemd and shells read it, with an option a line; both expand variables within double quotes."""
    quoted = ('"{}"'.format(word.replace('"', r"\"")) if "$" in word else word for word in words)
    return " ".join(quoted).replace(" --", " \\\n    --")


def _unit(what: str, settings: str, words: list[str], restart: str, after: str = "") -> str:
    """A unit that runs a command. A process of Flower's that takes too much memory ends alone."""
    return f"""\
[Unit]
Description=fedloom: {what}
After=network-online.target{after}
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
User=fedloom
WorkingDirectory=-{HOME}
{settings}Environment={QUIET_TEXT}
Environment=PATH=/opt/fedloom/bin:/usr/local/bin:/usr/bin:/bin
ExecStart=/opt/fedloom/bin/{_line(words)}
{restart}UMask=0077
LimitNOFILE=65536
OOMPolicy=continue
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""


def node_settings(gate: Address, number: int, clients: str, metrics: int = 0) -> str:
    """A node's own settings, for its unit or its container; Flower calls the gate, as any of its links, a link."""
    settings = {"LINK": gate, "PORT": NODE_PORT + number, "CLIENTS": clients, "DATA": ""}
    settings[METRICS] = port_of_node(metrics, number)
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def settings_file(root: Path, number: int) -> Path:
    """The file of a node's settings in a deployment's folder."""
    return root / "services" / f"node-{number}.env"


def read_settings(file: Path) -> dict[str, str]:
    """A node's settings."""
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


def read_gateway(services: Path, host: Address) -> Gateway:
    """How a link is reached, by the gate's unit; nodes call the gate `host`."""
    text = (services / GATE).read_text()
    listen, control, reply = (re.search(rf" --{option} (\S+)", text) for option in ("listen", "link", "largest-reply"))
    if listen is None or control is None or reply is None:
        raise BadExperiment(f"'{services / GATE}' has no command of a gate; `fedloom deploy` has written it.")
    return Gateway(host, address_of(listen[1], "--listen"), address_of(control[1], "--link"), int(reply[1]))


def with_clients(text: str, clients: str) -> str:
    """A node's settings with other clients; all else may have been changed by the operator and stays."""
    return re.sub(r"^CLIENTS=.*$", f"CLIENTS={clients}", text, flags=re.MULTILINE)


def containers(version: str, gateway: Gateway) -> dict[str, str]:
    """The container files of link, gate and nodes; gate and link share a network, as in a pod."""
    config = {**CLIENTS, "state": f"{HOME}/clients"}
    node = [*WARM, *node_command(AUTHORITY, f"{FILES}/key", "${LINK}", config, "${PORT}")]
    gate = gate_command(CERTIFICATES, gateway)
    return {
        "Containerfile.link": _container("link", version, f"VOLUME {HOME}", _link_words(gateway.control)),
        "Containerfile.gate": _container("gate", version, f"EXPOSE {gateway.listen.port}", gate),
        "Containerfile.node": _container("node", version, f"VOLUME {HOME}\nENV PORT={NODE_PORT} CLIENTS= DATA=", node),
    }


def _container(role: str, version: str, settings: str, words: list[str]) -> str:
    """A container file; certificates and keys are mounted, never copied in."""
    return f"""\
# fedloom {role}; where fedloom is not on your package index, COPY its wheel and install that.
FROM python:3.12-slim
RUN pip install --no-cache-dir "fedloom[flower]=={version}" \\
    && useradd --create-home --home-dir {HOME} fedloom
USER fedloom
WORKDIR {HOME}
ENV {QUIET_TEXT} FLWR_HOME={HOME}/flower
{settings}
CMD umask 077; exec {_line(words)}
"""
