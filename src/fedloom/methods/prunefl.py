"""PruneFL (Jiang et al., IEEE TNNLS 2022): one sparse model for all, of the weights that pay for their seconds.

All clients train the same weights, and take gradients of all. A client sums its gradients of a round and adds up their
squares since the last reconfiguration; the server sums these over clients, times their examples: `q`. In every
`every`-th round it keeps biases, norms and, of each layer's weights in use, all but a fraction `f` of smallest
magnitude, `f = remove * 0.5^(round / half_life)`. Of the rest, in use or not, those with the highest `q_j / t_j` join
while that is above `sum q / (constant + sum t)` of what is kept: the loss reduced per second, which no other choice
makes larger. Weights that come back have the value that the server last had (`regrow`), or start from 0.

What we do where the paper (arXiv:1909.12326) leaves it open, or differently:
- `t` is a layer's seconds per weight: bytes down and up, and three times its multiplications for all examples of a
  round, on the fleet's mean device (without one: 10 Mbit/s, 1 GFLOP/s), unless `seconds` says it for every layer;
  `constant` is half of the seconds of all weights, about as in the paper's VGG-11, unless it is given.
- There is no first pruning at one client: rounds begin with the whole model, and `every` is 10 instead of 50.
- The cohort of a reconfiguration reports its squares, not the whole fleet. A round's sum of gradients is true, while
  the published code may count the last one twice. It is read from the weights, which needs plain SGD.
"""

from typing import Literal

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.local.dense_gradients import DenseGradients
from fedloom.parts.mask.pruned_by_time import PrunedByTime


@paper("Jiang et al., IEEE TNNLS", 2022, "single weights, the same for all clients, by squared gradients per second")
def prunefl(
    every: int = 10,
    remove: float = 0.3,
    half_life: float = 10_000,
    regrow: Literal["last", "zero"] = "last",
    seconds: tuple[float, ...] | None = None,
    constant: float | None = None,
    density: float = 1.0,
) -> Method:
    """Of each layer's weights a fraction of at most `remove` is questioned in every `every`-th round."""
    mask = PrunedByTime(every, remove, half_life, regrow, seconds, constant, density)
    return Method(mask=mask, local=DenseGradients(every))
