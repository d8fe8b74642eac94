"""Oort (Lai et al., arXiv:2010.06081): clients of high loss that are not too slow take part.

The default is the variant that FedDD compares with: as many clients as the budget pays for, first those never tried,
then those of the highest score, with the 60th percentile of durations as the preferred one. With `sampling` it is the
original (algorithm 1, with its code's constants): exploration, a draw by score, and a preferred duration that starts at
the 10th percentile and is paced. Different from both: utility is computed from a client's mean loss, since losses of
single examples are not reported, and durations are computed for the whole model from the devices' rates. FedAvg
otherwise.
"""

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.parts.select.utility import Utility


@paper("Lai et al., OSDI", 2021, "none: whole models")
def oort(budget: float = 0.6, alpha: float = 2.0, sampling: bool = False) -> Method:
    """`budget` is the fraction of clients that may upload; `alpha` the exponent of the penalty for being slow."""
    if sampling:
        return Method(select=Utility(budget, alpha=alpha, sampling=True, percentile=10.0, pacer=20))
    return Method(select=Utility(budget, alpha=alpha))
