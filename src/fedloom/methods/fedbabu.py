"""FedBABU (Oh, Kim and Yun, ICLR 2022, arXiv:2106.06042): the head stays random while the body is trained.

All clients have the initial head, which nobody trains or sends; bodies are averaged uniformly. A client's model is the
global one after `tunes` epochs on its own examples, of all layers or of those that `layers` names (`head`, `body`), at
the learning rate of training. The paper has 5 epochs.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.neurons.layers import complement
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.freeze_layers import FreezeLayers
from fedloom.parts.local.tune import Tune
from fedloom.parts.mask.share_layers import ShareLayers


@paper("Oh, Kim and Yun, ICLR 2022", 2022, "layers (head) that nobody trains or sends")
def fedbabu(head: str = "head", tunes: int = 10, layers: str = "all") -> Method:
    """`head` names the layers that are never trained, `layers` those that are tuned for `tunes` epochs."""
    return Method(
        mask=ShareLayers(complement(head)),
        local=Chain((FreezeLayers(head), Tune(tunes, layers))),
        aggregate=CoverageMean("uniform"),
    )
