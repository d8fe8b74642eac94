"""FFA-LoRA (Sun et al., ICLR 2024, arXiv:2403.12313): only B is trained, so that the mean of products is exact.

A is drawn once from the seed and is part of the base (`--adapter lora --set adapter.freeze_a=true`): nobody sends it.
B and the head have the mean by examples, `sum p_k B_k A = (sum p_k B_k) A`. Half the bytes of FedIT. The paper's
guarantee of privacy is for single examples; `aggregate=private` here protects whole clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.core.means import coverage_mean
from fedloom.core.paper import paper
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.method import Method


@dataclass(frozen=True)
class ExactMean(Aggregate):
    """The mean by examples over the senders of a number, refused where both factors of an adapter are trained."""

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nothing; refuses adapters whose A is trained."""
        if setting.neurons.pairs:
            first = setting.neurons.pairs[0].a.tensor.name
            raise BadExperiment(
                f"ffa-lora trains B alone, and '{first}' is trained too; freeze it, as in --set adapter.freeze_a=true."
            )
        return {}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Average."""
        return coverage_mean(model, reply, reply.arrived.to(model.dtype) * reply.report["examples"]), memory


@paper("Sun et al., ICLR 2024", 2024, "none: the second factors of adapters are all that is trained")
def ffa_lora() -> Method:
    """FedAvg on the second factors of adapters."""
    return Method(aggregate=ExactMean())
