"""FedSPU (Niu et al., arXiv:2403.11464): every client keeps a whole model and trains random neurons of it.

In every hidden layer `max(1, floor(share * width))` neurons are active, drawn anew for each client and round. A number
is active if the neurons at both its ends are; inputs and output classes always are, and batch norm belongs to its
channel. The server sends the active numbers; they overwrite the client's own model, which runs as a whole and whose
active numbers alone are trained (equations 3 and 4) and sent back. Each number of the global model becomes the mean,
by examples, over those who sent it, and stays where nobody did. A client is served by its own model.

With `early_stopping` (equation 5) a client compares `balance * training loss + (1 - balance) * held-out loss` with the
value at its previous participation, and leaves for good when it is higher; `min(10, left)` of the others take part, and
the run ends when none is left. Held out is the validation split if there is one, else the client's own test split as in
the paper, which leaks test data into the decision. The training loss is the mean over the round's steps.

Different from the paper's text: "weighted average" is read as by examples. From its published code: that weighs by
mini-batches, gives all active units of a bias or norm one value, never averages whole models with partial ones, mixes
up channels and columns behind a flatten, lets running statistics of frozen channels drift, stops at `>=` instead of
`>`, and lets models of clients that were never selected follow the global one; here they stay as built until first
asked. Freezing saves weight gradients and messages: activations and their gradients are computed in full.
"""

from dataclasses import replace

from fedloom.core.paper import paper
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.stop_early import StopEarly
from fedloom.parts.mask.ranked import Ranked
from fedloom.parts.select.still_running import StillRunning


@paper("Niu et al., arXiv:2403.11464", 2024, "random neurons are trained; the rest of the client's own model is frozen")
def fedspu(
    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0), early_stopping: bool = False, balance: float = 0.7
) -> Method:
    """`shares` are the capacity tiers, in neurons; `balance` weighs the training loss where clients stop early."""
    method = Method(allocate=Tiers(shares), mask=Ranked("random"), local=KeepOwn(freeze=True))
    return stopping_early(method, balance) if early_stopping else method


def stopping_early(method: Method, balance: float = 0.7) -> Method:
    """The method whose clients leave for good once their loss rises, where `balance` weighs the training loss."""
    drawn = method.select.drawn
    if drawn is None or drawn.cohort is None or method.select.whole_fleet:
        raise BadExperiment(
            f"stop_early draws a number of clients from those left, but select={type(method.select).__name__} chooses "
            "in its own way; leave it out."
        )
    return replace(method, select=StillRunning(drawn.cohort), local=Chain((method.local, StopEarly(balance))))
