"""The same method on a real network: Flower carries the messages, both ends are fedloom's."""

from fedloom.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
