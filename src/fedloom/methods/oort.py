"""Oort (Lai et al., arXiv:2010.06081): clients of high loss that are not too slow take part.

As FedDD compares with it, which is the default: as many clients as the budget pays for, first those never tried, then
those of the highest score, with the 60th percentile of durations as the preferred one. With `sampling`, as in the
original (algorithm 1, with its code's constants): exploration, a draw by score, a preferred duration that starts at the
10th percentile and is paced. Different from both: utility is reckoned from a client's mean loss, since losses of single
examples are not reported, and durations are what the devices' rates say of the whole model. FedAvg otherwise.
"""

from fedloom.method import Method
from fedloom.parts.select.utility import Utility


def oort(budget: float = 0.6, alpha: float = 2.0, sampling: bool = False) -> Method:
    """`budget` is the part of all clients that may upload; `alpha` the exponent of the penalty for being slow."""
    if sampling:
        return Method(select=Utility(budget, alpha=alpha, sampling=True, percentile=10.0, pacer=20))
    return Method(select=Utility(budget, alpha=alpha))
