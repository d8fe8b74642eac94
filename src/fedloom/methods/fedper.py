"""FedPer (Arivazhagan et al., arXiv:1912.00818): a common body, and for every client a head of its own.

Clients are sent the body, train body and head together and send the body back, whose mean by examples is the next one.
The last layers never leave a client; its model is the current body with its own head. Clients that were never asked
have the initial head. `head` names any layers: `last:2`, `fc2`, `layer4.*+fc`. With `head=none` it is FedAvg.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.neurons.layers import complement
from fedloom.parts.local.keep_layers import KeepLayers
from fedloom.parts.mask.share_layers import ShareLayers


@paper("Arivazhagan et al., arXiv:1912.00818", 2019, "layers (head) that stay with clients")
def fedper(head: str = "head") -> Method:
    """`head` names the layers that clients keep to themselves."""
    return Method(mask=ShareLayers(complement(head)), local=KeepLayers(head))
