"""SAFARI (Mao et al., IEEE TMC 2023): sparse training, with similar clients replacing lost ones.

Every round each client prunes the model it is sent by itself, `x_i = x * M_i`, takes tau steps on the weights it kept
and sends them (Alg. 2). The server remembers the distances `||x_u - x_v||` (Eq. 11) of all replies that arrived; a
missing reply is replaced by the arrived one at the smallest known distance; the next model is `(1/m) sum x_i` over all
m (Alg. 3), zeros of pruned weights included. Lost messages are simulated by the world: `channel.up` is the loss of a
round trip.

How we read the paper where it is unclear, and what we add:
- rho is a distance, so the smallest is taken where the text says the greatest; its Fig. 4 agrees.
- Gradients are computed at the current weights and then masked; as printed a step would refill pruned weights.
- Adam with moments reset every round, as in the experiments; their rate of 0.001 is `training.rate=0.001`, and the
  default of 0.01 is one that learns in 100 rounds. The theory's SGD with steps of `eta / tau` is
  `training.optimiser=sgd` with `training.rate` set to that quotient.
- A pair that never arrived together has no distance. If a missing client has no distance to any arrived one, the mean
  of the arrived replies replaces its reply; if nothing arrives the model stays.
- A distance is kept until the pair is measured again, as printed. Models grow meanwhile, so that an old distance may
  look small; `distance=relative` and `smoothing` are answers to that.
- `sparsity` is the pruned fraction of the weights of dense and convolution layers. They are ranked layer by layer;
  `scope=global` ranks them all together, as the pruners' own papers and SAFARI do. That can take every weight of a
  layer, such as of a wide one whose weights start small; it then keeps its best one, and a warning names it. Biases
  and norm layers with their statistics are never pruned; they are averaged and replaced like the rest.
- SynFlow prunes in 100 steps; SNIP and GraSP use `per_class` of the client's examples of each class.
- Masks are computed anew every round from the global model. By `mag` and `synflow` all clients have the same mask, and
  as zeros score 0 the first round's mask stays; by the others masks differ. With `remask=first-round` each client keeps
  its own.
- The plain mean shrinks weights that only some clients kept; `mask_aware` is the mean over the clients that kept them.
- Replies that travel in pieces (`world.pieces`) have zeros where a piece was lost; combine them with `mask_aware`.
"""

from fedloom.core.optimiser import Adam
from fedloom.core.paper import paper
from fedloom.core.pruning import Scope
from fedloom.core.rule import LocalRule
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.plain_mean import PlainMean
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.prune import Prune
from fedloom.parts.repair.most_similar import MostSimilar
from fedloom.parts.repair.nothing import Nothing
from fedloom.parts.select.everyone import Everyone
from fedloom.parts.upload.as_trained import AsTrained


@paper("Mao et al., IEEE TMC", 2023, "weights that each client prunes away in the model that came down")
def safari(
    pruner: str = "mag",
    sparsity: float = 0.8,
    remask: str = "every-round",
    per_class: int = 10,
    compensate: bool = True,
    distance: str = "plain",
    smoothing: float = 0.0,
    mask_aware: bool = False,
    scope: Scope = "layer",
) -> Method:
    """`pruner` removes `sparsity` of the weights; without `compensate` the mean is over those who arrived."""
    if not 0 <= sparsity < 1:
        raise BadExperiment(f"sparsity (pruned fraction of the weights) is {sparsity}; it lies in [0, 1).")
    prune = Prune(pruner, scope, remask, per_class)
    similar = MostSimilar(distance, smoothing, mask_aware)
    return Method(
        select=Everyone(),
        allocate=Tiers((1 - sparsity,)),
        local=prune if sparsity else LocalRule(),
        upload=AsTrained(),
        repair=similar if compensate else Nothing(),
        aggregate=CoverageMean("uniform") if mask_aware else PlainMean(),
        optimiser=Adam(rate=0.01),
        work=Work(steps=5, batch=64),
    )
