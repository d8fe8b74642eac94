"""RAM-Fed (Wang et al., KDD 2023): RA-Fed with a memory of every client's latest updates.

Algorithm 2 as printed (doi:10.1145/3580305.3599521). Clients train as in RA-Fed. With `u_n` what is remembered of
client n (0 at first), a region that G > 0 clients trained moves by
`v = mean_n u_n + (1/G) * sum of (Delta_n - u_n)`, one that no client trained by `v = mean_n u_n`:
`theta <- theta - rate * v`. Then `u_n <- Delta_n` for the clients that trained it. The first round trains everything on
every client (remark 5), which fills the memory; it is RA-Fed's, as is every round of whole models.

Different from the published code, which is not the algorithm: it averages `theta + u_n` after the memory was written,
which is MIFA; it stores one list N times, so that a client reads what the one before it wrote; and it indexes the
complements of its masks one off, which ends levels S and MIX with an error in the second round.

What we do where the paper is silent: updates are divided by the rate of their own round and multiplied by the present
one, so that the formula holds for a decaying rate. With lost replies G counts those that arrived, and a client that
never answered has `u_n = 0` and counts in the mean. A round without a single reply changes nothing. Running statistics
of batch norm are averaged, not remembered. The memory has N rows of the model's size: the run says how much that is,
and `dtype=float16` halves it, a `folder` moves it to disk.
"""

from dataclasses import replace
from typing import Literal

from fedloom.core.paper import paper
from fedloom.method import Method
from fedloom.methods.ra_fed import ra_fed
from fedloom.parts.aggregate.latest_updates import LatestUpdates


@paper("Wang et al., KDD", 2023, "regions of every hidden layer, drawn every round")
def ram_fed(
    level: str = "L",
    regions: int = 4,
    mode: Literal["neuron", "element"] = "neuron",
    period: int = 10,
    redraw: bool = False,
    coverage: int | None = None,
    trained: int | None = None,
    deal: Literal["drawn", "fixed", "turns"] = "drawn",
    dtype: Literal["float32", "float16"] = "float32",
    folder: str | None = None,
) -> Method:
    """RA-Fed's settings; updates are remembered as `dtype`, in memory or in a file in `folder`."""
    plain = ra_fed(level, regions, mode, period, redraw, coverage, trained, deal)
    return replace(plain, aggregate=LatestUpdates(dtype, folder))
