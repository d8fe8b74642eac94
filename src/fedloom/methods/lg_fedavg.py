"""LG-FedAvg (Liang et al., arXiv:2001.01523): clients keep the lower layers to themselves and share the upper ones.

The shared layers, the last two with weights, are the uniform mean of those that clients trained together with their own
lower layers; a client's model is its own layers under the current shared ones. Different from the authors' code: it
begins with a model that FedAvg trained, which is `--from RUN` here, and it keeps the model that was best on each
client's test examples, which we never do.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.neurons.layers import complement
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.keep_layers import KeepLayers
from fedloom.parts.mask.share_layers import ShareLayers


@paper("Liang et al., arXiv:2001.01523", 2020, "layers (all but the last two) that stay with clients")
def lg_fedavg(shared: str = "last:2") -> Method:
    """`shared` names the layers that clients have in common."""
    return Method(mask=ShareLayers(shared), local=KeepLayers(complement(shared)), aggregate=CoverageMean("uniform"))
