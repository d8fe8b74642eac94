"""Datasets of Hugging Face's library: texts, images, columns of numbers, names of classes, tokenizers."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as Picture

from fedloom.data.from_hub import from_hub
from fedloom.data.sources import as_dataset
from fedloom.data.targets import for_goal
from fedloom.errors import BadData
from fedloom.goals import classes, next_token, numbers

TEXTS = [f"{'good' if at % 2 else 'bad'} film number {at}" for at in range(20)]
REVIEWS = Dataset.from_dict(
    {"text": TEXTS, "label": [at % 2 for at in range(20)], "critic": ["anna", "ben"] * 10},
    features=Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"]), "critic": Value("string")}),
)


def test_texts_with_names_of_classes_and_clients():
    data = for_goal(from_hub(REVIEWS, client="critic", length=4), classes(), "data")
    assert data.class_names == ("no", "yes")
    assert data.client_names == ("anna", "ben")
    assert data.x_train.shape == (16, 4)
    assert data.vocabulary > 4
    assert data.classes == 2


def test_a_dictionary_of_sets_is_data_as_it_is():
    both = DatasetDict(train=REVIEWS.select(range(14)), test=REVIEWS.select(range(14, 20)))
    data = for_goal(as_dataset(both), classes(), "data")
    assert (len(data.x_train), len(data.x_test)) == (14, 6)


def test_a_function_and_a_tokenizer_number_the_words():
    data = for_goal(from_hub(REVIEWS, tokenizer=lambda text: [ord(c) for c in text], length=6), next_token(), "data")
    assert data.x_train.shape == (16, 6)
    assert chr(data.x_train[0, 0]) in "gb"

    class Tokenizer:
        """The part of a tokenizer that is called."""

        model_max_length, pad_token_id = 9, 0

        def __call__(self, texts, truncation, max_length):
            assert truncation
            return {"input_ids": [[5, *range(7, 7 + len(text.split()))][:max_length] for text in texts]}

        def __len__(self):
            return 100

    data = from_hub(REVIEWS, tokenizer=Tokenizer(), length=8)
    assert data.vocabulary == 100
    assert data.x_train[0].tolist() == [5, 7, 8, 9, 10, 0, 0, 0]


def test_images_and_columns_of_numbers():
    pixels = np.random.default_rng(0).integers(0, 256, (10, 6, 5, 3), np.uint8)
    pictures = Dataset.from_dict(
        {"image": [Picture.fromarray(one) for one in pixels], "label": [0, 1] * 5}
    ).cast_column("image", Image())
    assert as_dataset(pictures).x_train.shape == (8, 3, 6, 5)
    table = Dataset.from_dict({"a": [0.5] * 10, "b": list(range(10)), "cost": [0.1 * at for at in range(10)]})
    data = for_goal(from_hub(table, x=["a", "b"], y="cost"), numbers(), "data")
    assert data.x_train.shape == (8, 2)
    assert data.y_train.dtype == np.float32


def test_missing_columns_are_named():
    with pytest.raises(BadData, match="which column holds the inputs"):
        from_hub(Dataset.from_dict({"a": [1, 2]}))
    with pytest.raises(BadData, match="column headline is missing in 'train'; found text, label, critic"):
        from_hub(REVIEWS, x="headline")
    with pytest.raises(BadData, match="the DatasetDict has validation; expected 'train'"):
        from_hub(DatasetDict(validation=REVIEWS))
