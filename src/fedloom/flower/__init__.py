"""fedloom on a real network: Flower carries the messages; both ends are fedloom's, or the training is yours."""

from fedloom.flower.apps import client_app, server_app
from fedloom.flower.your_app.api import hold, masked, strategy

__all__ = ["client_app", "hold", "masked", "server_app", "strategy"]
