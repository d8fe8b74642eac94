"""FedIT (Zhang et al., arXiv:2305.05644): the mean of every client's adapters, all of one rank.

`A = sum p_k A_k` and `B = sum p_k B_k`, where p_k is client k's share of the examples that arrived: FedAvg, on a
network whose adapters are what is trained (`--adapter lora`). The product of the means is not the mean of the products.
The paper's settings: rank 16, alpha 16, dropout 0.05, AdamW with a rate of 3e-4, batches of 64, 10 epochs, one client
in ten.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean


@paper("Zhang et al., arXiv:2305.05644", 2023, "none: the adapters are all that is trained")
def fedit() -> Method:
    """FedAvg on adapters."""
    return Method(aggregate=CoverageMean("examples"))
