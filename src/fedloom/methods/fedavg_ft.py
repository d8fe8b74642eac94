"""FedAvg and then fine-tuning (FedAvg + FT), a control: personal models without a method for them.

A client's model is the current global one after `epochs` more on its own examples, from all layers or from those that
`layers` names, such as `head`. Every evaluation tunes all clients anew, at the learning rate of training, and keeps
nothing of it; published tables do so once, after the last round (`evaluate_every`).
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.local.tune import Tune


@paper("", 2016, "none: whole models")
def fedavg_ft(epochs: int = 5, layers: str = "all") -> Method:
    """`epochs` of fine-tuning, of the layers that `layers` names."""
    return Method(local=Tune(epochs, layers))
