"""The ServerApp and the ClientApp of a Flower app folder in which both ends are fedloom's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fedloom.flower.protocol.need_flower import need_flower

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fedloom.flower.node.own_data import OwnData


def server_app() -> ServerApp:
    """The server, `app = server_app()` in an app folder: it runs the rounds of the run config's experiment."""
    need_flower()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Run all rounds."""
        from fedloom.flower.protocol.process_age import seconds_since_start
        from fedloom.flower.server.play import serve

        serve(grid, context.run_config, age=seconds_since_start(time.time()))

    return app


def client_app(data: OwnData | None = None) -> ClientApp:
    """A node, `app = client_app()` in an app folder: it trains the clients that it hosts.

    `data` is a function from a client's number to its arrays, `{"x": ..., "y": ...}` and, for a test split of its own,
    `x_test` and `y_test`; left out, the node config's `data` folder or the experiment's own data are used.
    """
    need_flower()
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train the clients whose tasks are in the message."""
        return _answer("train", message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        """Try the hosted clients' own models."""
        return _answer("evaluate", message, context)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """Report the hosted clients."""
        return _answer("query", message, context)

    def _answer(kind: str, message: Message, context: Context) -> Message:
        from flwr.app import Message as Answer

        from fedloom.flower.node.answer import answer

        return Answer(answer(kind, message.content, context, data), reply_to=message)

    return app
