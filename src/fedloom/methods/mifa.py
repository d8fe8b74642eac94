"""MIFA (Gu et al., arXiv:2106.04159): a step by the mean of all clients' latest updates, however old they are.

`theta <- theta - rate * mean_n u_n` with `u_n = (theta_start - theta_end) / rate` of client n's last reply, this round
included and without correction; all clients have equal weight. The paper needs an update of every client to begin with:
until every client has answered once, the model stays, as in the published code. There the clients' availability is
given; here the server first asks clients that never answered, which takes `N / per_round` rounds if nothing is lost.
The first step is taken in the round in which the last of them answers (in that code all clients then train again, and
the next round steps), and a decaying rate counts rounds of waiting. Without `wait` clients are asked at random and
count as 0 before their first answer, also as in that code. With all clients in every round this is FedAvg with equal
weights.
"""

from typing import Literal

from fedloom.core.paper import paper
from fedloom.core.part import Select
from fedloom.method import Method
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from fedloom.parts.select.unheard_first import UnheardFirst
from fedloom.parts.select.uniform import Uniform


@paper("Gu et al., NeurIPS", 2021, "none: whole models")
def mifa(wait: bool = True, dtype: Literal["float32", "float16"] = "float32", folder: str | None = None) -> Method:
    """Updates are remembered as `dtype`, in memory or in a file in `folder`."""
    select: Select = UnheardFirst() if wait else Uniform()
    return Method(select=select, aggregate=LatestUpdates(dtype, folder, correct=False, wait=wait))
