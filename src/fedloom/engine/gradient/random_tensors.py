"""Random tensors from a key: `torch.rand`, `torch.randperm`, `Tensor.normal_` and their like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedloom.chance import normal, uniform
from fedloom.engine.gradient.draw import Draw, Law, batched, no_generator, refused

LARGEST = 2**63 - 1


def _made(law: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> tuple[Law, Law]:
    """`torch.NAME(size)` and `torch.NAME_like(x)`; `law` turns keys into numbers."""

    def new(draw: Draw, *size: Any, generator: Any = None, **options: Any) -> Tensor:
        no_generator(draw, generator)
        given: Any = options.pop("size", size)
        given = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
        grad = options.pop("requires_grad", False)
        device = torch.empty(0, device=options.get("device")).device
        made = law(draw.keys(tuple(given), device)).to(options.get("dtype") or dtype or torch.get_default_dtype())
        return made.requires_grad_() if grad else made

    def like(draw: Draw, input: Tensor, *, generator: Any = None, **options: Any) -> Tensor:
        no_generator(draw, generator)
        device = torch.device(options.get("device") or input.device)
        return law(draw.keys(tuple(input.shape), device)).to(options.get("dtype") or input.dtype)

    return new, like


def _whole(keys: Tensor, low: int, high: int) -> Tensor:
    """Whole numbers from `low` up to below `high`."""
    return low + (keys & LARGEST) % (high - low)


def randint(draw: Draw, *args: Any, **options: Any) -> Tensor:
    """`torch.randint([low,] high, size)`."""
    low, high, rest = _bounds(args, options)
    new, _ = _made(lambda keys: _whole(keys, low, high), torch.int64)
    return new(draw, *rest, **options)  # type: ignore[no-any-return]


def randint_like(draw: Draw, input: Tensor, *args: Any, **options: Any) -> Tensor:
    """`torch.randint_like(x, [low,] high)`."""
    low, high, _ = _bounds(args, options)
    _, like = _made(lambda keys: _whole(keys, low, high))
    return like(draw, input, **options)  # type: ignore[no-any-return]


def _bounds(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int, tuple[Any, ...]]:
    """The bounds, by place or by name, and the arguments after them."""
    numbers = [value for value in args if isinstance(value, int)]
    rest = tuple(value for value in args if not isinstance(value, int))
    low, high = options.pop("low", None), options.pop("high", None)
    high = numbers.pop() if high is None else high
    return int(numbers.pop() if numbers else low or 0), int(high), rest


def randperm(draw: Draw, n: int, *, generator: Any = None, **options: Any) -> Tensor:
    """A random order. Of a batch it differs with the number of examples, so padding must not be among them."""
    no_generator(draw, generator)
    keys = draw.keys((n,), torch.empty(0, device=options.get("device")).device)
    if batched(keys):
        raise NotImplementedError("torch.randperm would put padding in order with the examples of a short batch")
    return keys.argsort().to(options.get("dtype") or torch.int64)


def bernoulli(draw: Draw, input: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """1 with the probability that the input says, or with `p`."""
    no_generator(draw, generator)
    return (draw.uniform(input) < (input if p is None else p)).to(input.dtype)


def normals(
    draw: Draw, mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Any = None, **options: Any
) -> Tensor:
    """`torch.normal`."""
    no_generator(draw, generator)
    tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
    shape = torch.broadcast_shapes(*(t.shape for t in tensors)) if tensors else tuple(size)
    device = tensors[0].device if tensors else torch.empty(0, device=options.get("device")).device
    dtype = tensors[0].dtype if tensors else options.get("dtype") or torch.get_default_dtype()
    found: Tensor = mean + std * normal(draw.keys(shape, device)).to(dtype)
    return found


def multinomial(
    draw: Draw, input: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    """Places drawn by their weights, by the largest of Gumbel numbers."""
    no_generator(draw, generator)
    odds, lead = input.double().log(), input.shape[:-1]
    if replacement:
        odds = odds.unsqueeze(-2).expand(*lead, num_samples, input.shape[-1])
    raised = odds - _exponential(draw.uniform(odds).double()).log()
    return raised.argmax(-1) if replacement else raised.topk(num_samples, -1).indices


def _exponential(u: Tensor) -> Tensor:
    """Exponential numbers from uniform ones, none of them 0."""
    return -torch.log1p(-u).clamp(max=-1e-9)


def _filled(law: Callable[..., Tensor]) -> Law:
    """A method that fills a tensor; `law` gives the numbers from the keys."""

    def fill(draw: Draw, self: Tensor, *args: Any, generator: Any = None, **options: Any) -> Tensor:
        no_generator(draw, generator)
        with torch.no_grad():
            filled: Tensor = self.copy_(law(draw.keys(tuple(self.shape), self.device), *args, **options))
        return filled

    return fill


def _bernoulli(keys: Tensor, p: float | Tensor = 0.5) -> Tensor:
    return uniform(keys) < p


def _uniform(keys: Tensor, low: float = 0.0, high: float = 1.0, **named: float) -> Tensor:
    low, high = named.get("from", low), named.get("to", high)
    return low + (high - low) * uniform(keys)


def _normal(keys: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return mean + std * normal(keys)


def _rate(keys: Tensor, lambd: float = 1.0) -> Tensor:
    return _exponential(uniform(keys).double()) / lambd


def _log_normal(keys: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    return _normal(keys, mean, std).exp()


_rand, _rand_like = _made(uniform)
_randn, _randn_like = _made(normal)
TENSORS: dict[str, Law] = {
    "rand": _rand, "rand_like": _rand_like, "randn": _randn, "randn_like": _randn_like,
    "randint": randint, "randint_like": randint_like, "randperm": randperm,
    "bernoulli": bernoulli, "normal": normals, "multinomial": multinomial,
    "bernoulli_": _filled(_bernoulli), "uniform_": _filled(_uniform), "normal_": _filled(_normal),
    "exponential_": _filled(_rate), "log_normal_": _filled(_log_normal),
    **dict.fromkeys(
        ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "random_", "cauchy_", "geometric_"), refused
    ),
}  # fmt: skip
