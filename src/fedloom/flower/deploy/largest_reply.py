"""How long a node's answer can be, by the run's model: what a gate takes at most."""

from __future__ import annotations

import torch

from fedloom.core.types import Task
from fedloom.flower.protocol.packing import Packing
from fedloom.flower.protocol.records import LONGEST, PER_ITEM
from fedloom.flower.protocol.round_id import RoundId
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs
from fedloom.world.message_parts import MessageParts

TIMES = 2  # of the longest message that the server reads: what is repeated on bad links counts again


def largest_reply(experiment: Experiment, inputs: Inputs, clients: int) -> int:
    """Bytes of the answers of so many clients of one node at most, with all that Flower sends around them."""
    method, setting = inputs.method, inputs.setting
    ids = torch.zeros(1, dtype=torch.int64, device=inputs.model.device)
    memory = method.local.server_state(setting, inputs.model)
    whole = Task(
        model=inputs.model, mask=None, keep=None, share=torch.ones(1, device=ids.device),
        authorised=torch.ones_like(ids, dtype=torch.bool), extras=dict(method.local.brief(memory, setting, ids)),
        round=1, rate=1.0, base_rate=1.0, trained=setting.layout.trained, ids=ids,
    )  # fmt: skip
    packing = Packing(method, setting, MessageParts(method, setting, experiment.codec))
    [expected] = packing.manifests(RoundId("run", 1, 1, "0" * 16), whole).values()
    return TIMES * (LONGEST + clients * (expected.limit + PER_ITEM))
