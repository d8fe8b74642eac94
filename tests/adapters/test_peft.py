"""Models of transformers with adapters by hand and by peft: the same numbers. Needs both libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Dataset, Experiment, Reader, lora, run
from fedloom.runs.build import prepare

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about its own calls
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")


def encoder() -> nn.Module:
    """A small encoder with a head of four classes, without dropout."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, num_labels=4,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: nn.Module = transformers.BertForSequenceClassification(config)
    return model


def texts() -> Dataset:
    """Token ids with padding."""
    draw = np.random.default_rng(0)
    x = draw.integers(1, 40, (60, 10))
    x[::3, 6:] = 0
    y = (x[:, 0] % 4).astype(np.int64)
    return Dataset("texts", x[:48], y[:48], x[48:], y[48:], None, None, 4, 40)


def experiment(method: str, engine: str = "local") -> Experiment:
    """Ten steps of SGD: two rounds of five."""
    training = {"steps": 5, "batch": 4, "rate": 0.1}
    return Experiment(
        method=method, clients=4, per_round=4, rounds=2, partition="iid", training=training, device="cpu", engine=engine
    )


def by_peft() -> Reader:
    """The encoder wrapped by peft."""
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], task_type="SEQ_CLS")
    return Reader(peft.get_peft_model(encoder(), config))


def by_hand(like: Reader) -> nn.Module:
    """The encoder with our adapters and the numbers of peft's."""
    network = lora(Reader(encoder()), 4, alpha=8.0)
    theirs = {name: value for name, value in like.named_parameters() if value.requires_grad}
    ours = [value for value in network.parameters() if value.requires_grad]
    assert [value.shape for value in ours] == [value.shape for value in theirs.values()]
    with torch.no_grad():
        for own, value in zip(ours, theirs.values()):
            own.copy_(value)
    return network


@pytest.mark.parametrize("method", ["fedit", "hetlora", "flexlora"])
def test_adapters_by_hand_train_as_those_of_peft_and_as_the_loop(method: str, tmp_path: Path) -> None:
    theirs, data = by_peft(), texts()
    ours = by_hand(theirs)
    ends = [
        run(experiment(method, engine), model=model, data=data).model
        for model, engine in ((theirs, "local"), (ours, "local"), (ours, "loop"))
    ]
    numbers = [torch.cat([p.flatten() for p in model.parameters() if p.requires_grad]) for model in ends]
    torch.testing.assert_close(numbers[1], numbers[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(numbers[2], numbers[1], rtol=0, atol=1e-5)
    ends[0].model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(encoder(), tmp_path)
    ids = torch.from_numpy(data.x_test)
    torch.testing.assert_close(Reader(again).eval()(ids), ends[0].eval()(ids), rtol=0, atol=1e-6)


def test_adapters_of_peft_are_found_and_swapped() -> None:
    prepared = prepare(experiment("fedit"), model=by_peft(), data=texts())
    assert prepared.trainer is not None
    assert prepared.trainer.chosen.gradient.kind == "swapped"  # type: ignore[union-attr]
    pairs = prepared.inputs.setting.neurons.pairs
    assert len(pairs) == 4
    assert all(pair.base.endswith("base_layer.weight") and pair.rank == 4 for pair in pairs)
