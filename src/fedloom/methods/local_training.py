"""Local training, a control: every client trains a model of its own in every round, and nothing is shared.

Messages carry no number of the model. All clients train in each round, since others must not win because it trained
less.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.local.keep_layers import KeepLayers
from fedloom.parts.mask.share_layers import ShareLayers
from fedloom.parts.select.everyone import Everyone
from fedloom.parts.select.uniform import Uniform


@paper("", 2016, "all layers stay with clients: nothing is sent")
def local_training(everyone: bool = True) -> Method:
    """All clients train in every round, or else as many as usual."""
    select = Everyone() if everyone else Uniform()
    return Method(select=select, mask=ShareLayers("none"), local=KeepLayers("all"))
