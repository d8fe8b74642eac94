"""Oort (Lai et al., arXiv:2010.06081): clients of high loss that are not too slow take part.

The default is the variant that FedDD compares with: as many clients as the budget pays for, first those never tried,
then those of the highest score, with the 60th percentile of durations as the preferred one. With `sampling` it is the
original (algorithm 1, with its code's constants): exploration, a draw by score, and a preferred duration that starts at
the 10th percentile and is paced. As in that code, utilities are scaled from 0.999 of the smallest. Different from both:
utility is computed from a client's mean loss, since losses of single examples are not reported, and durations are
computed for the model that a client has from the devices' rates. FedAvg otherwise, also over `models` of unequal size.
"""

from dataclasses import replace
from typing import Any

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.methods.feddd import Family, networks_of, over
from fedloom.parts.select.utility import Utility


@paper("Lai et al., OSDI", 2021, "none: whole models")
def oort(budget: float = 0.6, alpha: float = 2.0, sampling: bool = False, models: Family = None) -> Method:
    """`budget` is the part of all models that may be sent up; `alpha` the exponent of the penalty for being slow."""
    drawn: dict[str, Any] = {"sampling": True, "percentile": 10.0, "pacer": 20} if sampling else {}
    return replace(over(models), select=Utility(budget, alpha=alpha, models=networks_of(models), **drawn))
