"""Transformers and recurrent networks: masked and cut are the same function with the same gradients and costs."""

from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from neurons.equality import check
from neurons.sequences import formers, recurrents

seeds = st.integers(0, 9999)


@settings(max_examples=20, deadline=None)
@given(net=formers(), seed=seeds)
def test_any_transformer(net: tuple[nn.Module, Tensor], seed: int) -> None:
    check(net[0], (net[1],), seed)


@settings(max_examples=15, deadline=None)
@given(net=recurrents(), seed=seeds)
def test_any_recurrent_network(net: tuple[nn.Module, Tensor], seed: int) -> None:
    check(net[0], (net[1],), seed)
