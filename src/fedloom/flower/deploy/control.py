"""How is the link told what to do? Through Flower's Control API, as the command `flwr` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedloom.errors import RunStopped

Scalars = dict[str, bool | int | float | str]  # settings of a run

LOOK = 0.1  # seconds between looks


class State(NamedTuple):
    """How a run stands."""

    status: str  # pending, starting, running or finished
    outcome: str  # completed, failed, stopped; empty before the end
    details: str


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

    def _ask(self, what: str, request: Any) -> Any:
        """Call the link; what it refuses stops the run."""
        import httpx

        try:
            return getattr(self._client, what)(request)
        except httpx.HTTPStatusError as problem:
            text = problem.response.text.strip() or problem.response.reason_phrase
            raise RunStopped(f"the link refused {what}: {problem.response.status_code} {text[:500]}") from problem

    def wait_for_link(self, patience: float, alive: Callable[[], bool]) -> None:
        """Until the link answers; one that ended, or does not answer in time, stops the run."""
        import httpx

        until = time.monotonic() + patience
        while alive() and time.monotonic() < until:
            with suppress(httpx.TransportError):
                self.nodes()
                return
            time.sleep(LOOK)
        raise RunStopped("the link did not come up")

    def register(self, public: Path, name: str) -> int:
        """Let the owner of a key in; its node's number."""
        from flwr.cli.supernode.register import try_load_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest

        request = RegisterNodeRequest(public_key=try_load_public_key(public), name=name)
        return int(self._ask("RegisterNode", request).node_id)

    def unregister(self, node: int) -> None:
        """Never let a node in again."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self._ask("UnregisterNode", UnregisterNodeRequest(node_id=node))

    def nodes(self) -> dict[int, str]:
        """The nodes' numbers, each registered, online, offline or unregistered."""
        from flwr.proto.control_pb2 import ListNodesRequest

        return {node.node_id: node.status for node in self._ask("ListNodes", ListNodesRequest()).nodes_info}

    def start(self, app: Path, config: Scalars) -> int:
        """Start an app folder's run, with some of its settings replaced; the run's number."""
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
        return int(self._ask("StartRun", StartRunRequest(fab=fab, override_config=user_config_to_proto(config))).run_id)

    def state(self, run: int) -> State:
        """How a run stands."""
        from flwr.proto.control_pb2 import ListRunsRequest

        status = self._ask("ListRuns", ListRunsRequest(run_id=run)).run_dict[run].status
        return State(status.status, status.sub_status, status.details)
