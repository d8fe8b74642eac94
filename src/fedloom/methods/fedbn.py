"""FedBN (Li et al., ICLR 2021, arXiv:2102.07623): batch norms, with their statistics, stay with the clients.

Everything else is the uniform mean of what clients trained; a client's model is the current rest with its own norms.
As in the paper all clients train in every round, one epoch in batches of 32: batch norm needs batches that are not
small. Norms are found by what a layer is, not by its name; `norms=norms:all` keeps group and layer norms too. Clients
that were never asked have the initial norms. Where no network is named, runs take one that has batch norms.
"""

from fedloom.core.paper import paper
from fedloom.core.work import Work
from fedloom.method import Method
from fedloom.neurons.layers import complement
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.keep_layers import KeepLayers
from fedloom.parts.mask.share_layers import ShareLayers
from fedloom.parts.select.everyone import Everyone
from fedloom.parts.select.uniform import Uniform


@paper("Li et al., ICLR 2021", 2021, "layers (batch norms) that stay with clients")
def fedbn(norms: str = "norms", everyone: bool = True) -> Method:
    """`norms` names the layers that clients keep; all clients train in every round, or else as many as usual."""
    return Method(
        select=Everyone() if everyone else Uniform(),
        mask=ShareLayers(complement(norms)),
        local=KeepLayers(norms),
        aggregate=CoverageMean("uniform"),
        work=Work(epochs=1, batch=32),
    )
