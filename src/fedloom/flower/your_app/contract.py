"""What do the strategy and the mod agree on before a message is sent? The method, the network and how parts travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.codec import Frame, Part, Stamp
from fedloom.codec.stamp import Direction
from fedloom.core.rule import LocalRule
from fedloom.core.types import Fleet, Setting
from fedloom.errors import BadExperiment, BadModel
from fedloom.flower.protocol.part_form import form_of
from fedloom.flower.protocol.records import fact
from fedloom.layout import layout_of
from fedloom.method import Method
from fedloom.models.check import own_copy
from fedloom.neurons.rows import rows_of
from fedloom.parts.mask.everything import Everything
from fedloom.parts.upload.as_sent import AsSent


def method_of(method: Method | str, settings: Mapping[str, Any], per_round: int | None = None) -> Method:
    """A method by its name and settings, or as it is."""
    if isinstance(method, Method):
        if settings or per_round is not None:
            given = [*settings, *(["per_round"] if per_round is not None else [])]
            raise BadExperiment(f"{', '.join(given)}: a Method has its settings in it; use dataclasses.replace.")
        return method
    from fedloom.runs.experiment import Experiment

    return Experiment(method={"name": method, "settings": dict(settings)}, per_round=per_round).build_method()


def plain(method: Method) -> bool:
    """Do clients do no more than train what they are sent and send it back? Then any ClientApp will do."""
    whole = isinstance(method.mask, Everything) and isinstance(method.upload, AsSent)
    return whole and type(method.local) is LocalRule


def check_client_half(method: Method) -> None:
    """Refuse rules that would have to reach into a training function that is not ours."""
    for rule in method.local.members():
        if len(rule.members()) > 1:
            continue  # it passes its hooks on to others, which are looked at by themselves
        why = None
        if rule.traits.corrects or rule.defining("view"):
            why = "changes the gradient of every local step"
        elif rule.traits.chooses:
            why = "chooses by itself what to train"
        elif rule.traits.judges:
            why = "tries the trained model on examples that the client keeps back"
        elif rule.traits.keeps_network:
            why = "trains a network of the client's own width"
        elif rule.defining("brief"):
            why = "sends tensors of its own along with the model"
        if why is not None:
            raise BadExperiment(
                f"local={type(rule).__name__} {why}, which neither a client of plain arrays nor fedloom.flower.masked "
                "can do around your own training function; use fedloom.flower.client_app() and server_app()."
            )


def setting_of(model: nn.Module, example: Tensor | None, fleet: Fleet) -> Setting:
    """What both ends know of the network."""
    if not isinstance(model, nn.Module):
        raise BadExperiment(f"model is {model!r} ({type(model).__name__}); expected an nn.Module.")
    module = own_copy(model, torch.device("cpu"))
    layout, state = layout_of(module), module.state_dict()
    if missing := [name for name in layout.names if name not in state]:
        raise BadModel(f"buffer '{missing[0]}' is not in the state dict (persistent=False), so it cannot travel.")
    two = torch.zeros(0) if example is None else torch.cat([example, example])[:2].detach().cpu()
    return Setting(fleet, module, layout, lambda output, target: F.cross_entropy(output, target, reduction="none"), two)


def told(method: Method) -> dict[str, str]:
    """The client half in words: both ends must have the same."""
    return {"local": repr(method.local), "upload": repr(method.upload)}


def described(setting: Setting, mask: Tensor | None, keep: Tensor | None, rows: bool) -> Part:
    """One client's mask [P] by the neurons that make it up, if some do."""
    if mask is None or (keep is None and not rows):
        return Part(mask)
    found = rows_of(setting.neurons, mask[None])[0] if keep is None else keep
    same = torch.equal(setting.neurons.expand(found, rows=keep is None), mask)
    return Part(mask, found, keep is None) if same else Part(mask)


def word_of(setting: Setting, part: Part) -> str:
    """How a part travels; networks without a map of neurons can be sent whole, or number by number."""
    return form_of(part, None if part.keep is None else setting.neurons)


def frame_of(setting: Setting, word: str) -> Frame:
    """The model and, where whole neurons travel, its neurons: some networks have no map."""
    return Frame(setting.layout, None if word in ("all", "bits") else setting.neurons)


def stamp_of(facts: Mapping[str, Any], direction: Direction) -> Stamp:
    """That of a download or of its reply, from what the download says of itself."""
    number, client = fact(dict(facts), "round", int), fact(dict(facts), "client", int)
    return Stamp(str(facts.get("run")), number, client, str(facts.get("base")), direction=direction)
