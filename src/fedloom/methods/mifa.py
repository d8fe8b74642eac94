"""MIFA (Gu et al., arXiv:2106.04159): the mean of all clients' latest updates, however long ago they were heard of.

`theta <- theta - rate * mean_n u_n` with `u_n = (theta_start - theta_end) / rate` of client n's last reply, this
round's included and nothing corrected for; all clients weigh the same. The paper needs an update of everyone to begin
with: until every client was heard of once, the model stays, as in the published code. There the clients' availability
is given; here the server asks those never heard of first, which takes `N / per_round` rounds if nothing is lost. The
first step is taken in the round in which the last of them is heard of (there all train anew, and the next round does),
and a decaying rate counts rounds of waiting. Without `wait` clients are asked at random and count as 0 before they
were heard of, also as in that code. With all clients in every round this is FedAvg with equal weights.
"""

from typing import Literal

from fedloom.core.part import Select
from fedloom.method import Method
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from fedloom.parts.select.unheard_first import UnheardFirst
from fedloom.parts.select.uniform import Uniform


def mifa(wait: bool = True, dtype: Literal["float32", "float16"] = "float32", folder: str | None = None) -> Method:
    """Updates are remembered as `dtype`, in memory or in a file in `folder`."""
    select: Select = UnheardFirst() if wait else Uniform()
    return Method(select=select, aggregate=LatestUpdates(dtype, folder, correct=False, wait=wait))
