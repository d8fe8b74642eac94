"""What a Flower app of your own needs: a strategy for the server, a mod for the client and a line in its training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedloom.flower.protocol.need_flower import need_flower

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedloom.flower.your_app.mod import Masked
    from fedloom.flower.your_app.strategy import Fedloom
    from fedloom.method import Method


def strategy(method: Method | str, model: nn.Module, example: Tensor | None = None, **settings: Any) -> Fedloom:
    """A Flower Strategy that runs a fedloom method with a ClientApp of your own.

    Args:
        method: a `Method`, or the name of one; the name's own settings may be among `settings`.
        model: the network, as your clients have it; it is copied.
        example: one or more inputs [n, ...]; needed where neurons are chosen.
        settings: those of `fedloom.flower.your_app.strategy.Fedloom`, and of a named method.
    """
    need_flower()
    from fedloom.flower.your_app.strategy import make_strategy

    return make_strategy(method, model, example, settings)


def masked(method: Method | str, model: nn.Module, example: Tensor, **settings: Any) -> Masked:
    """A mod for a ClientApp of your own that runs the client half of the strategy's method around its `train`.

    Args:
        method: as given to the strategy.
        model: the network, as `train` builds it; it is copied.
        example: one or more inputs [n, ...].
        settings: those of a named method; settings that only the server uses may be left out.
    """
    need_flower()
    from fedloom.flower.your_app.mod import Masked

    return Masked(method, model, example, settings)


def hold(model: nn.Module) -> None:
    """Set the gradients of frozen numbers to 0 from now on; call it in `train` once the model is built.

    It does nothing without `fedloom.flower.masked`, or where everything is trained.
    """
    from fedloom.flower.your_app.gradient_mask import mask_gradients

    mask_gradients(model)
