"""AdaptiveFL (Jia et al., DAC 2024): nested networks with whole first layers, sent to clients that have managed such.

The pool has networks of each of two `widths` and the whole one; of each width, several that leave some first layers
of channels whole (`whole`, as parts of all such layers: 4, 6 and 8 of VGG16's 13). Every round as many networks are
drawn as clients take part. For each a client is drawn that was not drawn yet, with weight `min(F, 0.5) / sqrt(A)`: A
counts how often it was asked for the network's level, and F is how often, of all it managed, it managed networks at
least as large, as a mean over the level. A client whose `room` is too small trains the largest network that fits.
A network that was managed gains 1, with all larger ones (the whole one 3 more); one that was not is replaced in the
count by the one trained, which gains 3, and each larger one loses its distance to it. Each number becomes the mean by
examples over those who trained it, and stays if nobody did.

Different from the published code (mastlab-T3S/AdaptiveFL): its README's command draws clients by their classes, not by
what was learnt (`learnt=False` draws them evenly); its rooms are in other units than its sizes. Here a room is a part
of the whole network. Sent, and counted in bytes, is what the client can hold, where the paper sends what was drawn.
Running statistics of batch norm are averaged. With one whole network in the pool it is FedAvg.
"""

from __future__ import annotations

from fedloom.core.paper import paper
from fedloom.core.pool import Pool
from fedloom.method import Method
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.from_pool import FromPool
from fedloom.parts.select.by_success import BySuccess


@paper("Jia et al., DAC", 2024, "leading neurons of all but the first layers, by a network drawn from a pool")
def adaptivefl(
    widths: tuple[float, ...] = (0.4, 0.66),
    whole: tuple[float, ...] = (0.31, 0.46, 0.62),
    room: tuple[tuple[float, float], ...] = ((0.24, 0.03), (0.48, 0.03), (1.04, 0.06)),
    learnt: bool = True,
) -> Method:
    """`widths` of smaller networks, parts of first layers left `whole`, and classes' `room` as mean and deviation."""
    pool = Pool(widths, whole)
    return Method(select=BySuccess(pool, room=room, learnt=learnt), mask=FromPool(pool), local=SubModel())
