"""Text of systemd units and container files that run a link and its nodes as services."""

from __future__ import annotations

from pathlib import Path

from fedloom.flower.deploy.certificates import files_in
from fedloom.flower.deploy.folder import NODE_PORT, QUIET, WARM, link_command, node_command
from fedloom.flower.protocol.exit_codes import REMOVED

HOME = "/var/lib/fedloom"  # on the machine that runs a service
FILES = "/etc/fedloom"  # certificates, keys and settings there
AUTHORITY = f"{FILES}/certificates/ca.crt"
CLIENTS = {"clients": "${CLIENTS}", "data": "${DATA}"}  # from a node's settings
QUIET_TEXT = " ".join(f"{name}={value}" for name, value in QUIET.items())


def link_unit(port: int) -> str:
    """The link's unit; the folder is copied to /etc/fedloom."""
    return _unit("link", "", f"{HOME}/flower", _link_words(port))


def node_unit() -> str:
    """Any node's unit: `fedloom-node@3` reads /etc/fedloom/node-3.env and the key node-3."""
    config = {**CLIENTS, "state": f"{HOME}/node-%i/clients"}
    words = [*WARM, *node_command(AUTHORITY, f"{FILES}/keys/node-%i", "${LINK}", config, "${PORT}")]
    return _unit("node %i", f"EnvironmentFile={FILES}/node-%i.env\n", f"{HOME}/node-%i/flower", words)


def _link_words(port: int) -> list[str]:
    """The link's command with paths of the machine that runs the service."""
    return link_command(files_in(Path(FILES, "certificates")), "0.0.0.0", port, Path(HOME, "link.db"))


def _line(words: list[str]) -> str:
    """A command as systemd and shells read it, with an option a line; both expand variables within double quotes."""
    quoted = ('"{}"'.format(word.replace('"', r"\"")) if "$" in word else word for word in words)
    return " ".join(quoted).replace(" --", " \\\n    --")


def _unit(what: str, settings: str, home: str, words: list[str]) -> str:
    """A unit that runs a command and starts it again: a link that fails, a node that ends and was not unregistered."""
    limit, restart, wait = ("", "on-failure", "5")
    if what != "link":
        limit, restart, wait = ("StartLimitIntervalSec=0\n", "always", f"10\nRestartPreventExitStatus={REMOVED}")
    return f"""\
[Unit]
Description=fedloom: Flower {what}
After=network-online.target
Wants=network-online.target
{limit}
[Service]
User=fedloom
StateDirectory=fedloom
WorkingDirectory={HOME}
{settings}Environment={QUIET_TEXT}
Environment=PATH=/opt/fedloom/bin:/usr/local/bin:/usr/bin:/bin
Environment=FLWR_HOME={home}
ExecStart=/opt/fedloom/bin/{_line(words)}
Restart={restart}
RestartSec={wait}
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""


def node_settings(link: str, number: int, clients: str) -> str:
    """A node's own settings, for its unit or its container."""
    return f"LINK={link}\nPORT={NODE_PORT + number}\nCLIENTS={clients}\nDATA=\n"


def container(role: str, version: str, port: int) -> str:
    """A container file for a link or a node; certificates and keys are mounted, never copied in."""
    config = {**CLIENTS, "state": f"{HOME}/clients"}
    words, run = {
        "link": (_link_words(port), f"EXPOSE {port}"),
        "node": (
            [*WARM, *node_command(AUTHORITY, f"{FILES}/key", "${LINK}", config, "${PORT}")],
            f"ENV PORT={NODE_PORT} CLIENTS= DATA=",
        ),
    }[role]
    return f"""\
# fedloom {role}; where fedloom is not on your package index, COPY its wheel and install that.
FROM python:3.12-slim
RUN pip install --no-cache-dir "fedloom[flower]=={version}" \\
    && useradd --create-home --home-dir {HOME} fedloom
USER fedloom
WORKDIR {HOME}
VOLUME {HOME}
ENV {QUIET_TEXT} FLWR_HOME={HOME}/flower
{run}
CMD exec {_line(words)}
"""
