"""FedRep (Collins et al., ICML 2021, arXiv:2102.07078): heads are trained first, then one step towards a common body.

Each round a client trains its own head for `head_epochs` with the body fixed, then the body for `body_epochs` with the
head fixed, and sends the body; bodies are averaged uniformly. Its model is the current body with its own head. As in
the authors' code stages are epochs, where the theory has steps, and one optimiser runs through both; a number that is
not trained keeps its momentum. Different from it: clients that were never asked have the initial head, not the mean of
all heads, and nobody trains its head once more at the end. The authors have 10 epochs and 1.
"""

from fedloom.core.paper import paper
from fedloom.core.work import Work
from fedloom.method import Method
from fedloom.neurons.layers import complement
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.in_turn import InTurn
from fedloom.parts.local.keep_layers import KeepLayers
from fedloom.parts.mask.share_layers import ShareLayers


@paper("Collins et al., ICML 2021", 2021, "layers (head) that stay with clients")
def fedrep(head: str = "head", head_epochs: int = 5, body_epochs: int = 5) -> Method:
    """`head` names the layers that clients keep to themselves."""
    return Method(
        mask=ShareLayers(complement(head)),
        local=Chain((KeepLayers(head), InTurn(head, head_epochs, body_epochs))),
        aggregate=CoverageMean("uniform"),
        work=Work(epochs=head_epochs + body_epochs),
    )
