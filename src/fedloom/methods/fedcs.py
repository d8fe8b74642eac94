"""FedCS (Nishio and Yonetani, arXiv:1804.08333): only clients that are fast enough take part.

The default is the variant that FedDD compares with: of all clients those with the shortest download, compute and
upload of the whole model, as many as the budget pays for. With a `deadline` it is the original (algorithm 3): of
random candidates, greedily as many as can upload one after another in time, where selection and aggregation take no
time. The server knows every client's link rates. FedAvg otherwise, also over `models` of unequal size.
"""

from dataclasses import replace

from fedloom.core.paper import paper
from fedloom.core.part import Select
from fedloom.method import Method
from fedloom.methods.feddd import Family, networks_of, over
from fedloom.parts.select.within import FastestWithinBudget, WithinDeadline


@paper("Nishio and Yonetani, ICC", 2019, "none: whole models")
def fedcs(budget: float = 0.6, deadline: float | None = None, candidates: int = 10, models: Family = None) -> Method:
    """`budget` is the part of all models that may be sent up; with a `deadline` (seconds) `candidates` are drawn."""
    sizes = networks_of(models)
    select: Select = FastestWithinBudget(budget, models=sizes)
    if deadline is not None:
        select = WithinDeadline(deadline, candidates, models=sizes)
    return replace(over(models), select=select)
