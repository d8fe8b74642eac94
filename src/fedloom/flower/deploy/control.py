"""Register nodes and start runs through Flower's Control API, as the command `flwr` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedloom.errors import RunStopped

Scalars = dict[str, bool | int | float | str]  # settings of a run

INTERVAL = 0.1  # seconds between attempts to reach the link


class RunStatus(NamedTuple):
    """The state of a run."""

    status: str  # pending, starting, running or finished
    outcome: str  # completed, failed or stopped; empty before the end
    details: str


class Member(NamedTuple):
    """A registered node."""

    number: int  # Flower's
    name: str
    status: str  # registered, online or offline
    activated: str  # when it last connected


def _status(run: Any) -> tuple[str, str, str]:
    """The three fields of a run's status."""
    return run.status.status, run.status.sub_status, run.status.details


def key_of(public: Path) -> bytes:
    """A public key as the link has it."""
    from flwr.cli.supernode.register import try_load_public_key

    return bytes(try_load_public_key(public))


FINISHED = "finished"
UNKNOWN = RunStatus(FINISHED, "failed", "the link does not know the run any more")


class Control:
    """A connection to a link over TLS."""

    def __init__(self, address: str, authority: Path) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        self._client: Any = ControlHttpClient.from_server_address(address, False, authority.read_bytes(), [version])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._client.close()

    def _call(self, name: str, request: Any) -> Any:
        """Call the API; a refusal stops the run."""
        import httpx

        try:
            return getattr(self._client, name)(request)
        except httpx.HTTPStatusError as problem:
            text = problem.response.text.strip() or problem.response.reason_phrase
            raise RunStopped(f"the link refused {name}: {problem.response.status_code} {text[:500]}") from problem

    def wait_for_link(self, patience: float, alive: Callable[[], bool]) -> None:
        """Wait until the link answers; raise if it ends, or does not answer within `patience` seconds."""
        import httpx

        until = time.monotonic() + patience
        while alive() and time.monotonic() < until:
            with suppress(httpx.TransportError):
                self.nodes()
                return
            time.sleep(INTERVAL)
        raise RunStopped(f"the link ended, or did not answer within {patience:.0f} s")

    def register(self, public: Path, name: str) -> int:
        """Admit the owner of a public key; its node's number."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        request = RegisterNodeRequest(public_key=key_of(public), name=name)
        return int(self._call("RegisterNode", request).node_id)

    def unregister(self, node: int) -> None:
        """Refuse a node from now on."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self._call("UnregisterNode", UnregisterNodeRequest(node_id=node))

    def nodes(self) -> dict[int, str]:
        """Status of every node by its number: registered, online, offline or unregistered."""
        from flwr.proto.control_pb2 import ListNodesRequest

        return {node.node_id: node.status for node in self._call("ListNodes", ListNodesRequest()).nodes_info}

    def members(self) -> dict[bytes, Member]:
        """Every node that is registered, by its public key as the link has it."""
        from flwr.proto.control_pb2 import ListNodesRequest

        nodes = self._call("ListNodes", ListNodesRequest()).nodes_info
        return {
            node.public_key: Member(node.node_id, node.name, node.status, node.last_activated_at)
            for node in nodes
            if node.status != "unregistered"
        }

    def keys(self) -> dict[bytes, str]:
        """The public keys of all nodes that may connect, with their names."""
        return {key: f"{member.name or 'node'} ({member.number})" for key, member in self.members().items()}

    def start(self, app: Path, config: Scalars) -> int:
        """Start a run of an app folder, with some of its settings replaced; the run's number."""
        import hashlib
        import warnings

        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own, of a name in pathspec
            content = build_fab_from_disk(app)
        fab = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
        return int(
            self._call("StartRun", StartRunRequest(fab=fab, override_config=user_config_to_proto(config))).run_id
        )

    def status(self, run: int) -> RunStatus:
        """The state of a run."""
        return self.runs(run_id=run).get(run, UNKNOWN)

    def runs(self, **which: int) -> dict[int, RunStatus]:
        """The states of runs by their number, the newest first: `limit=5` of them, or that with a `run_id`."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self._call("ListRuns", ListRunsRequest(**which)).run_dict
        newest = sorted(found.items(), key=lambda item: str(item[1].pending_at), reverse=True)
        return {number: RunStatus(*_status(run)) for number, run in newest}

    def stop(self, run: int) -> None:
        """End a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._call("StopRun", StopRunRequest(run_id=run))

    def going_on(self, name: str, value: str) -> int | None:
        """The newest run that has not ended and was started with this setting; None if there is none."""
        from flwr.proto.control_pb2 import ListRunsRequest

        runs = [
            run
            for run in self._call("ListRuns", ListRunsRequest()).run_dict.values()
            if run.status.status != FINISHED and run.override_config[name].string == value
        ]
        return int(max(runs, key=lambda run: str(run.pending_at)).run_id) if runs else None
