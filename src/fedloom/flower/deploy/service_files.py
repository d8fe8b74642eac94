"""How do a link and a node run as services? Text of systemd units and container files."""

from __future__ import annotations

from fedloom.flower.deploy.folder import NODE_PORT

HOME = "/var/lib/fedloom"  # on the machine that runs a service
ENVIRONMENT = """\
Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
Environment=PATH=/opt/fedloom/bin:/usr/local/bin:/usr/bin:/bin
"""
SHUT = """\
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true
"""


def link_unit(port: int) -> str:
    """The link as a service; the folder is copied to /etc/fedloom."""
    return f"""\
[Unit]
Description=fedloom: Flower link
After=network-online.target
Wants=network-online.target

[Service]
User=fedloom
StateDirectory=fedloom
WorkingDirectory={HOME}
{ENVIRONMENT}Environment=FLWR_HOME={HOME}/flower
ExecStart=/opt/fedloom/bin/flower-superlink --host 0.0.0.0 --port {port} --enable-supernode-auth \\
    --ssl-ca-certfile /etc/fedloom/certificates/ca.crt --ssl-certfile /etc/fedloom/certificates/server.pem \\
    --ssl-keyfile /etc/fedloom/certificates/server.key --database {HOME}/link.db \\
    --disable-runtime-dependency-installation
Restart=on-failure
RestartSec=5
{SHUT}
[Install]
WantedBy=multi-user.target
"""


def node_unit() -> str:
    """Any node as a service: `fedloom-node@3` reads /etc/fedloom/node-3.env and the key node-3."""
    return f"""\
[Unit]
Description=fedloom: Flower node %i
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
User=fedloom
StateDirectory=fedloom
WorkingDirectory={HOME}
EnvironmentFile=/etc/fedloom/node-%i.env
{ENVIRONMENT}Environment=FLWR_HOME={HOME}/node-%i/flower
ExecStart=/opt/fedloom/bin/python -m fedloom.flower.warm flower-supernode --superlink ${{LINK}} --port ${{PORT}} \\
    --root-certificates /etc/fedloom/certificates/ca.crt --auth-supernode-private-key /etc/fedloom/keys/node-%i \\
    --node-config 'clients="${{CLIENTS}}" data="${{DATA}}" state="{HOME}/node-%i/clients"'
Restart=always
RestartSec=10
{SHUT}
[Install]
WantedBy=multi-user.target
"""


def node_settings(link: str, number: int, clients: str) -> str:
    """A node's own settings, for its unit or its container."""
    return f"LINK={link}\nPORT={NODE_PORT + number}\nCLIENTS={clients}\nDATA=\n"


def container(role: str, version: str, port: int) -> str:
    """A container file for a link or a node; certificates and keys are mounted, never copied in."""
    run = {
        "link": f"""\
EXPOSE {port}
CMD exec flower-superlink --host 0.0.0.0 --port {port} --enable-supernode-auth \\
    --ssl-ca-certfile /etc/fedloom/certificates/ca.crt --ssl-certfile /etc/fedloom/certificates/server.pem \\
    --ssl-keyfile /etc/fedloom/certificates/server.key --database {HOME}/link.db \\
    --disable-runtime-dependency-installation
""",
        "node": f"""\
ENV PORT={NODE_PORT} CLIENTS= DATA=
CMD exec python -m fedloom.flower.warm flower-supernode --superlink "$LINK" --port "$PORT" \\
    --root-certificates /etc/fedloom/certificates/ca.crt --auth-supernode-private-key /etc/fedloom/key \\
    --node-config "clients='$CLIENTS' data='$DATA' state='{HOME}/clients'"
""",
    }
    return f"""\
# fedloom {role}; where fedloom is not on your package index, COPY its wheel and install that.
FROM python:3.12-slim
RUN pip install --no-cache-dir "fedloom[flower]=={version}" \\
    && useradd --create-home --home-dir {HOME} fedloom
USER fedloom
WORKDIR {HOME}
VOLUME {HOME}
ENV FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME={HOME}/flower
{run[role]}"""
