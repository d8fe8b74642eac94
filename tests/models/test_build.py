"""The names, sizes and refusals of the model zoo."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fedloom.errors import BadExperiment, BadModel
from fedloom.models import MODELS, build, example

MNIST, CIFAR, SPEECH, HAR, TEXT = (1, 28, 28), (3, 32, 32), (1, 32, 32), (9, 128), (64,)


def trained(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters())


def travelling(model: nn.Module) -> int:
    """How many numbers are trained or are statistics of a batch norm."""
    return trained(model) + sum(b.numel() for b in model.buffers() if b.is_floating_point())


# name, settings, shape, classes, numbers to train, the same with batch norm's statistics
SIZES = [
    ("linear", {}, MNIST, 10, 7_850, 7_850),
    ("mlp", {}, MNIST, 10, 85_614, 85_614),
    ("mlp", {"widths": [30]}, MNIST, 10, 23_860, 23_860),
    ("mlp-exits", {}, MNIST, 10, 65_320, 65_320),  # 785 * 64, three of 65 * 64, four exits of 65 * 10
    ("2nn", {}, MNIST, 10, 199_210, 199_210),
    ("2nn", {"width": 100}, MNIST, 10, 89_610, 89_610),
    ("ra-mlp", {}, MNIST, 10, 159_010, 159_010),
    ("ra-mlp", {"hidden": 2}, MNIST, 10, 199_210, 199_210),
    ("cnn1", {}, MNIST, 10, 21_840, 21_840),
    ("cnn2", {}, CIFAR, 10, 587_194, 587_194),
    ("cnn-mcmahan", {}, MNIST, 10, 1_663_370, 1_663_370),
    ("cnn-feddc", {}, CIFAR, 10, 797_962, 797_962),
    ("cnn-feddc", {}, CIFAR, 100, 815_332, 815_332),
    ("ra-cnn", {}, CIFAR, 10, 62_006, 62_006),
    ("spu-emnist", {}, MNIST, 62, 64_722, 64_802),
    ("spu-cifar", {}, CIFAR, 10, 134_902, 134_946),
    ("spu-speech", {}, SPEECH, 35, 26_285, 26_485),
    ("het-a-1", {}, CIFAR, 10, 3_973_194, 3_973_194),
    ("het-a-2", {}, CIFAR, 10, 2_203_466, 2_203_466),
    ("het-a-3", {}, CIFAR, 10, 2_191_206, 2_191_206),
    ("het-a-4", {}, CIFAR, 10, 2_153_446, 2_153_446),
    ("het-a-5", {}, CIFAR, 10, 2_153_446, 2_153_446),
    ("het-b-1", {}, CIFAR, 10, 3_973_194, 3_973_194),
    ("het-b-2", {}, CIFAR, 10, 2_767_690, 2_767_690),
    ("het-b-3", {}, CIFAR, 10, 1_578_826, 1_578_826),
    ("het-b-4", {}, CIFAR, 10, 1_458_090, 1_458_090),
    ("het-b-5", {}, CIFAR, 10, 609_962, 609_962),
    ("resnet20", {}, CIFAR, 10, 272_474, 274_042),
    ("resnet20", {"norm": "group"}, CIFAR, 10, 272_474, 272_474),
    ("resnet18", {}, CIFAR, 10, 11_173_962, 11_183_562),
    ("resnet18", {"norm": "group"}, CIFAR, 10, 11_173_962, 11_173_962),
    ("har-cnn", {}, HAR, 6, 38_470, 38_470),
    # 16 * 9 + 16, 2 * (16 * 16 * 9 + 16), 16 * 3 + 3
    ("fcn", {}, (1, 24, 24), 3, 4_851, 4_851),
    ("fcn", {"width": 8}, CIFAR, 3, 1_419, 1_419),
    ("unet", {}, (1, 24, 24), 3, 29_795, 29_795),
    ("unet", {"norm": "none"}, (1, 24, 24), 3, 29_635, 29_635),
    # patches 48 * 64 + 64, positions 64 * 64, blocks of 2 norms, q, k, v, output, 64 * 256 + 256 and back; norm, output
    ("vit", {}, CIFAR, 10, 307_530, 307_530),
    ("vit", {"width": 8, "depth": 1, "heads": 2, "patch": 8}, MNIST, 10, 1_618, 1_618),
    ("mobilenet", {}, CIFAR, 10, 191_930, 197_882),
    ("mobilenet", {"norm": "group", "width": 8}, CIFAR, 10, 52_706, 52_706),
]

# the same of networks for tokens, with 66 of them
SIZES_OF_TEXTS = [
    ("fasttext", {}, 4, 66 * 128 + 128 * 129 + 129 * 4),
    ("char-conv", {}, 66, 66 * 64 + 3 * (64 * 64 * 3 + 64) + 65 * 66),
    ("char-conv", {"width": 8, "layers": 1}, 5, 66 * 8 + 8 * 8 * 3 + 8 + 9 * 5),
    ("char-gru", {}, 66, 66 * 64 + 3 * 64 * (64 + 64 + 2) + 65 * 66),
    ("char-gru", {"width": 8, "layers": 2}, 5, 66 * 8 + 2 * 3 * 8 * (8 + 8 + 2) + 9 * 5),
    # of a text of 64 words: a block has 4 width^2 in attention, 8 width^2 in the feed-forward layer, and 13 width
    ("transformer", {}, 4, (66 + 64) * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + 65 * 4),
    ("transformer", {"width": 8, "depth": 1, "places": True}, 66, 130 * 8 + 12 * 64 + 13 * 8 + 16 + 9 * 66),
    ("lstm", {}, 4, 66 * 64 + 4 * 64 * (64 + 64 + 2) + 65 * 4),
    ("lstm", {"width": 8, "layers": 2, "places": True}, 66, 66 * 8 + 2 * 4 * 8 * (8 + 8 + 2) + 9 * 66),
    ("gru", {}, 4, 66 * 64 + 3 * 64 * (64 + 64 + 2) + 65 * 4),
]
PLACES = ("fcn", "unet")  # answer at every pixel


@pytest.mark.parametrize(("name", "set_to", "shape", "classes", "train", "travel"), SIZES)
def test_the_papers_sizes(name, set_to, shape, classes, train, travel):
    with torch.device("meta"):
        model = build(name, shape, classes, **set_to)
    assert (trained(model), travelling(model)) == (train, travel)


def test_fasttext_has_the_size_of_the_published_code():
    with torch.device("meta"):
        assert trained(build("fasttext", TEXT, 4, vocabulary=98_635)) == 98_635 * 128 + 128 * 129 + 129 * 4


@pytest.mark.parametrize(("name", "set_to", "classes", "train"), SIZES_OF_TEXTS)
def test_sizes_of_networks_for_tokens(name, set_to, classes, train):
    with torch.device("meta"):
        assert trained(build(name, TEXT, classes, vocabulary=66, **set_to)) == train


def test_every_model_has_its_size_checked_and_says_what_it_is():
    assert {name for name, *_ in (*SIZES, *SIZES_OF_TEXTS)} == set(MODELS)
    assert all(entry.about and "\n" not in entry.about for entry in MODELS.values())


def test_sub_models_of_a_family_have_the_global_models_names():
    with torch.device("meta"):
        names = {tuple(build(f"het-{kind}", CIFAR, 10).state_dict()) for kind in ("a-1", "a-5", "b-2", "b-5")}
    assert len(names) == 1


@given(
    name=st.sampled_from([name for name, entry in MODELS.items() if entry.takes == "images"]),
    channels=st.integers(1, 4),
    height=st.integers(0, 9),
    width=st.integers(0, 9),
    classes=st.integers(2, 30),
)
@settings(max_examples=40, deadline=None)
def test_image_models_take_every_shape_from_their_smallest_on(name, channels, height, width, classes):
    smallest, step = MODELS[name].smallest, 4 if name == "unet" else 1
    shape = (channels, smallest + step * height, smallest + step * width)
    places = shape[1:] if name in PLACES else ()
    with torch.device("meta"):
        assert build(name, shape, classes)(example(shape)).shape == (2, classes, *places)


@pytest.mark.parametrize(("height", "width"), [(24, 26), (25, 24), (6, 6)])
def test_unet_refuses_images_that_cannot_be_halved_twice(height, width):
    with pytest.raises(BadModel, match=rf"multiples of 4; got 1x{height}x{width}; pad them, or try fcn"):
        build("unet", (1, height, width), 3)


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.smallest > 1])
def test_one_pixel_less_than_the_smallest_is_refused(name):
    entry = MODELS[name]
    axes = [entry.smallest] * (2 if entry.takes == "images" else 1)
    places = axes if name in PLACES else []
    assert build(name, (1, *axes), 3)(torch.zeros(2, 1, *axes)).shape == (2, 3, *places)
    with pytest.raises(BadModel, match="of at least"):
        build(name, (1, *axes[1:], entry.smallest - 1), 3)


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "text"),
    [
        ("cnn1", (1, 8, 8), 0, "cnn1 needs images of at least 16x16; got 1x8x8; try mlp"),
        ("har-cnn", (9, 4), 0, "har-cnn needs signals of at least 8; got 9x4; try mlp"),
        ("cnn2", (64,), 0, "cnn2 needs images [channels, height, width]; got 64; try mlp"),
        ("resnet20", (9, 128), 0, "resnet20 needs images [channels, height, width]; got 9x128; try har-cnn"),
        ("har-cnn", CIFAR, 0, "har-cnn needs signals [channels, length]; got 3x32x32; try mlp"),
        (
            "mlp",
            (64,),
            500,
            "mlp needs numbers; got 64 word numbers (vocabulary 500); try fasttext, or char-conv for an answer at "
            "every place",
        ),
        ("fasttext", (64,), 0, "fasttext needs word numbers, with vocabulary above 0; got 64 numbers; try mlp"),
        ("fasttext", (2, 64), 9, "fasttext needs one axis of word numbers; got 2x64; join the axes of the data"),
        ("mlp", (), 0, "shape must be the size of each axis of one example, 1 or more; got ()"),
        ("mlp", (1, 0), 0, "shape must be the size of each axis of one example, 1 or more; got (1, 0)"),
    ],
)
def test_examples_a_model_cannot_take(name, shape, vocabulary, text):
    with pytest.raises(BadModel) as error:
        build(name, shape, 10, vocabulary)
    assert str(error.value) == text


def test_classes_must_be_counted():
    with pytest.raises(BadModel, match="classes must be 1 or more; got 0"):
        build("mlp", MNIST, 0)


@pytest.mark.parametrize(
    ("name", "set_to", "text"),
    [
        ("resnet-20", {}, "unknown model 'resnet-20'; did you mean 'resnet20'?"),
        ("resnet20", {"nrom": "group"}, "unknown setting of resnet20 'nrom'; did you mean 'norm'?"),
        ("resnet20", {"norm": "grup"}, "unknown norm 'grup'; did you mean 'group'?"),
        ("resnet20", {"norm": ["group"]}, "unknown norm '['group']'; did you mean 'group'?"),
        ("cnn2", {"width": 3}, "cnn2 has no settings; got 'width'"),
        ("ra-mlp", {"hidden": 3}, "hidden must be 1 (the published code) or 2 (the paper's text) layers; got 3"),
        ("ra-mlp", {"hidden": 2.0}, "hidden must be 1 (the published code) or 2 (the paper's text) layers; got 2.0"),
        ("ra-mlp", {"dropout": 1.0}, "dropout must be a number from 0 to below 1; got 1.0"),
        ("ra-mlp", {"dropout": "half"}, "dropout must be a number from 0 to below 1; got 'half'"),
        ("mlp", {"widths": [100, 0]}, "widths must be a whole number of neurons, 1 or more; got 0"),
        ("mlp", {"widths": 100}, "widths must be a list of hidden layer sizes such as [100, 64]; got 100"),
        ("2nn", {"width": 2.5}, "width must be a whole number of neurons, 1 or more; got 2.5"),
        ("fcn", {"width": 0}, "width must be a whole number of neurons, 1 or more; got 0"),
        ("unet", {"width": "8"}, "width must be a whole number of neurons, 1 or more; got '8'"),
        ("unet", {"norm": "batch"}, "unknown norm 'batch'"),
        ("vit", {"width": 30}, "width must be a multiple of heads; got width 30 and 4 heads"),
        ("vit", {"depth": 0}, "depth must be a whole number 1 or more; got 0"),
        ("vit", {"patch": 2.0}, "patch must be a whole number 1 or more; got 2.0"),
        ("mobilenet", {"norm": "layer"}, "unknown norm 'layer'"),
        ("mobilenet", {"norm": "group", "width": 3}, "width must be even with norm 'group', which has two groups"),
    ],
)
def test_names_and_settings_that_do_not_exist(name, set_to, text):
    with pytest.raises(BadExperiment) as error:
        build(name, CIFAR, 10, **set_to)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize("name", ["char-conv", "char-gru"])
@pytest.mark.parametrize(
    ("set_to", "text"),
    [
        ({"width": 0}, "width must be a whole number of neurons, 1 or more; got 0"),
        ({"layers": 0}, "layers must be a whole number from 1 to "),
        ({"layers": 9}, "layers must be a whole number from 1 to "),
        ({"layers": True}, "layers must be a whole number from 1 to "),
    ],
)
def test_settings_of_networks_for_tokens(name, set_to, text):
    with pytest.raises(BadExperiment) as error:
        build(name, TEXT, 66, 66, **set_to)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("name", "set_to", "text"),
    [
        ("transformer", {"heads": 3}, "width must be a multiple of heads; got width 64 and 3 heads"),
        ("transformer", {"depth": True}, "depth must be a whole number 1 or more; got True"),
        ("lstm", {"width": 0}, "width must be a whole number of neurons, 1 or more; got 0"),
        ("gru", {"layers": 0}, "layers must be a whole number 1 or more; got 0"),
    ],
)
def test_settings_of_networks_for_texts(name, set_to, text):
    with pytest.raises(BadExperiment) as error:
        build(name, TEXT, 66, 66, **set_to)
    assert str(error.value) == text


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_networks_take_signals_too(name):
    model = build(name, HAR, 6, width=8)
    assert model(torch.zeros(2, *HAR)).shape == (2, 6)
    assert build(name, HAR, 6, width=8, places=True)(torch.zeros(2, *HAR)).shape == (2, 128, 6)
    with pytest.raises(BadModel, match=rf"{name} needs sequences \[channels, length\]; got 3x32x32; try mlp"):
        build(name, CIFAR, 6)
