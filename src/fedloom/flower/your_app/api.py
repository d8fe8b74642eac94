"""What does a Flower app of one's own need? A strategy on the server, a mod on the client; both are made here."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedloom.flower.your_app.mod import Masked
    from fedloom.flower.your_app.strategy import Fedloom
    from fedloom.method import Method


def strategy(method: Method | str, model: nn.Module, example: Tensor | None = None, **settings: Any) -> Fedloom:
    """A Flower Strategy that plays a fedloom method with a ClientApp of your own.

    Args:
        method: a `Method`, or the name of one; the name's own settings may be among `settings`.
        model: the network, as your clients have it; it is copied.
        example: one or more inputs [n, ...]; needed where neurons are chosen.
        settings: those of `fedloom.flower.your_app.strategy.Fedloom`, and of a named method.
    """
    _need_flower()
    from fedloom.flower.your_app.strategy import make_strategy

    return make_strategy(method, model, example, settings)


def masked(method: Method | str, model: nn.Module, example: Tensor, **settings: Any) -> Masked:
    """A mod for a ClientApp of your own that plays the client half of the strategy's method around its `train`.

    Args:
        method: as the strategy has it.
        model: the network, as `train` builds it; it is copied.
        example: one or more inputs [n, ...].
        settings: those of a named method; what only the server uses may be left out.
    """
    _need_flower()
    from fedloom.flower.your_app.mod import Masked

    return Masked(method, model, example, settings)


def hold(model: nn.Module) -> None:
    """Call it in `train` once the model is there: gradients of what is not to be trained are 0 from then on.

    Without `fedloom.flower.masked`, or where everything is trained, it does nothing.
    """
    from fedloom.flower.your_app.gradient_mask import hold_gradients

    hold_gradients(model)


def _need_flower() -> None:
    if find_spec("flwr") is None:
        raise BadExperiment("Flower is not installed; pip install 'fedloom[flower]' brings it.")
