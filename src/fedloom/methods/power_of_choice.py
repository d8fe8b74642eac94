"""Power of Choice (Cho et al., arXiv:2010.01243): of some candidates, the clients with the highest loss take part.

The variant that costs no extra communication (rpow-d): candidates are drawn by their share of the data, and a loss is
the mean training loss of the client's last reply, infinite before the first. The cohort's replies have equal weights.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.select.power_of_choice import PowerOfChoice


@paper("Cho et al., arXiv:2010.01243", 2020, "none: whole models")
def power_of_choice(candidates: int = 20) -> Method:
    """`candidates` are drawn every round; the cohort is chosen from them."""
    return Method(select=PowerOfChoice(candidates=candidates), aggregate=CoverageMean("uniform"))
