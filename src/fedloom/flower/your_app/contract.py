"""What the strategy and the mod must agree on before a message is sent: method, network, and how parts travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.codec import Frame
from fedloom.core.rule import LocalRule
from fedloom.core.types import Fleet, Setting
from fedloom.errors import BadExperiment, BadModel
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.method import Method
from fedloom.models.check import check_buffers, own_copy


def method_of(method: Method | str, settings: Mapping[str, Any], per_round: int | None = None) -> Method:
    """A method by its name and settings, or as it is."""
    if isinstance(method, Method):
        if settings or per_round is not None:
            given = [*settings, *(["per_round"] if per_round is not None else [])]
            raise BadExperiment(f"{', '.join(given)}: a Method has its settings in it; use dataclasses.replace.")
        return method
    from fedloom.runs.experiment import Experiment

    return Experiment(method={"name": method, "settings": dict(settings)}, per_round=per_round).build_method()


def check_server_half(method: Method) -> None:
    """Refuse steps without a barrier, and an aggregate that needs what clients of plain arrays do not report."""
    if not method.pace.barrier:
        raise BadExperiment(
            f"pace={type(method.pace).__name__} takes replies as they come, and a Strategy of Flower waits for all "
            "replies of a round; put Barrier() into pace, or take a method whose rounds have a barrier."
        )
    if method.aggregate.reads_weight:
        raise BadExperiment(
            "aggregate weighs clients by their targets, which clients of your own app do not report; set "
            "weigh='examples', or use fedloom.flower.client_app() and server_app()."
        )


def needs_mod(method: Method) -> bool:
    """Whether clients do more than train what they are sent and send it back, which any ClientApp does."""
    whole = method.mask.sends_all and method.upload.sends_what_came
    return not (whole and method.local == LocalRule())


def check_client_half(method: Method) -> None:
    """Refuse local rules that would have to change a training function that is not fedloom's."""
    for rule in method.local.members():
        if len(rule.members()) > 1:
            continue  # its members are checked one by one
        why = None
        if rule.traits.corrects or rule.defining("view"):
            why = "changes the gradient of every local step"
        elif rule.traits.chooses:
            why = "chooses by itself what to train"
        elif rule.defining("probed"):
            why = "takes one more gradient after the last step"
        elif rule.traits.judges:
            why = "tries the trained model on examples that the client keeps back"
        elif rule.traits.keeps_network:
            why = "trains a network of the client's own width"
        elif rule.twin is not None:
            why = "trains a model of the client's own next to the one that is sent"
        elif rule.tunes is not None:
            why = "tries models after more training"
        elif rule.defining("brief"):
            why = "sends tensors of its own along with the model"
        if why is not None:
            raise BadExperiment(
                f"local={type(rule).__name__} {why}, which neither a client of plain arrays nor fedloom.flower.masked "
                "can do around your own training function; use fedloom.flower.client_app() and server_app()."
            )


def setting_of(model: nn.Module, example: Tensor | None, fleet: Fleet) -> Setting:
    """What both ends derive from the network."""
    if not isinstance(model, nn.Module):
        raise BadExperiment(f"model is {model!r} ({type(model).__name__}); expected an nn.Module.")
    module = own_copy(model, torch.device("cpu"))
    layout, state = layout_of(module), module.state_dict()  # no batch to find constants with: they travel too
    check_buffers(module, layout)
    if missing := [name for name in layout.names if name not in state]:
        raise BadModel(f"buffer '{missing[0]}' is not in the state dict (persistent=False), so it cannot travel.")
    two = torch.zeros(0) if example is None else torch.cat([example, example])[:2].detach().cpu()
    return Setting(fleet, module, layout, classes(), two)


def client_half(method: Method) -> dict[str, str]:
    """The client half as text; both ends must have the same."""
    return {"local": repr(method.local), "upload": repr(method.upload)}


def frame_of(setting: Setting, form: str) -> Frame:
    """The model's layout and, where whole neurons travel, its neuron map, which some networks do not have."""
    return Frame(setting.layout, None if form in ("all", "bits") else setting.neurons)
