"""What does a Flower app folder need? A ServerApp and a ClientApp; both are made here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fedloom.flower.node.own_data import OwnData


def server_app() -> ServerApp:
    """The server: plays the rounds of the run config's experiment, `app = server_app()` in an app folder."""
    _must_have_flower()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedloom.flower.protocol.process_age import seconds_since_start
        from fedloom.flower.server.play import serve

        serve(grid, context.run_config, age=seconds_since_start(time.time()))

    return app


def client_app(data: OwnData | None = None) -> ClientApp:
    """A node: trains the clients it hosts, `app = client_app()` in an app folder.

    `data` is a function of a client's number that gives its arrays, `{"x": ..., "y": ...}` and, for a test split of its
    own, `x_test` and `y_test`; left out, the node config's `data` folder or the experiment's own data are used.
    """
    _must_have_flower()
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _answer("train", message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _answer("evaluate", message, context)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return _answer("query", message, context)

    def _answer(kind: str, message: Message, context: Context) -> Message:
        from flwr.app import Message as Answer

        from fedloom.flower.node.answer import answer

        return Answer(answer(kind, message.content, context, data), reply_to=message)

    return app


def _must_have_flower() -> None:
    """Say what to install where Flower is missing."""
    try:
        import flwr  # noqa: F401
    except ImportError as problem:
        raise BadExperiment("Flower is not installed; pip install 'fedloom[flower]' brings it.") from problem
