"""What every model of the zoo does when it runs: outputs, gradients, tracing, functional calls."""

import pytest
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from fedloom.models import MODELS, build, example

DIGITS, MNIST, CIFAR, WORDS = (1, 8, 8), (1, 28, 28), (3, 32, 32), 50
GROUP = {name: {"norm": "group"} for name in ("resnet20", "resnet18", "mobilenet")}
PIXELS, PLACES = ("fcn", "unet"), ("char-conv", "char-gru")  # answer at every pixel or place
# het-a-1 stands for its ten relatives where every network would take too long
FEW = [name for name in MODELS if not name.startswith("het") or name == "het-a-1"]


def shapes(name: str) -> list[tuple[int, ...]]:
    """The shape of the papers' data, and another."""
    entry = MODELS[name]
    return {
        "numbers": [MNIST, DIGITS, CIFAR, (13,)],
        "images": [CIFAR, DIGITS if entry.smallest <= 8 else MNIST if entry.smallest <= 28 else (1, 37, 41)],
        "signals": [(9, 128), (3, 50)],
        "tokens": [(12,), (5,)],
        "sequences": [(12,), (5,)],
    }[entry.takes]


def per_example(name: str, output: Tensor) -> Tensor:
    """One row of scores for each example [n, classes]: the mean over the places of those that answer at every place."""
    return output.mean(1) if name in PLACES else output.flatten(2).mean(2) if name in PIXELS else output


def made(name: str, shape: tuple[int, ...], classes: int, **settings: object) -> tuple[nn.Module, Tensor]:
    """A network in evaluation, and four random examples for it."""
    torch.manual_seed(3)
    tokens = MODELS[name].takes in ("tokens", "sequences")
    model = build(name, shape, classes, WORDS if tokens else 0, **settings)
    x = torch.randint(1, WORDS, (4, *shape)) if tokens else torch.randn(4, *shape)
    return model.eval(), x


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name in MODELS for shape in shapes(name)])
def test_scores_for_every_class_on_own_and_other_shapes(name, shape):
    model, x = made(name, shape, 7)
    places = shape if name in PLACES else shape[1:] if name in PIXELS else ()
    expected = (*places, 7) if name in PLACES else (7, *places)
    scores = model(x)
    assert scores.shape == (4, *expected)
    assert scores.isfinite().all()
    assert not torch.equal(scores[0], scores[1])
    blank = example(shape, WORDS if MODELS[name].takes in ("tokens", "sequences") else 0)
    exits = (4,) if name == "mlp-exits" else ()  # all of them answer in training
    assert model.train()(blank).shape == (2, *exits, *expected)


@pytest.mark.parametrize("name", FEW)
def test_traced_is_the_same_network(name):
    model, x = made(name, shapes(name)[0], 5)
    torch.testing.assert_close(fx.symbolic_trace(model)(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", FEW)
def test_gradient_reaches_every_parameter(name):
    model, x = made(name, shapes(name)[0], 5)
    cross_entropy(per_example(name, model(x)), torch.arange(4)).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name", FEW)
def test_functional_call_is_the_same_network(name):
    model, x = made(name, shapes(name)[0], 5)
    twin, _ = made(name, shapes(name)[0], 5)
    for tensor in twin.state_dict().values():
        tensor.zero_()  # whatever the call uses, it must take it from the dictionary
    with torch.no_grad():  # nn.TransformerEncoder has a quicker way in evaluation, without gradients
        torch.testing.assert_close(functional_call(twin, model.state_dict(), (x,)), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["spu-emnist", "spu-cifar", "spu-speech", "resnet20"])
def test_functional_call_moves_the_statistics_it_was_given(name):
    model, x = made(name, shapes(name)[0], 5)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    given = {key: tensor.clone() for key, tensor in before.items()}
    scores = functional_call(model.train(), given, (x,))
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    torch.testing.assert_close(model(x), scores, rtol=0, atol=0)
    assert all(torch.equal(given[key], tensor) for key, tensor in model.state_dict().items())
    assert not any(torch.equal(given[key], before[key]) for key, _ in model.named_buffers())


@pytest.mark.filterwarnings("ignore:There is a performance drop because")  # vmap runs such a call client by client
@pytest.mark.parametrize("name", [name for name in FEW if not name.startswith("spu") and name != "resnet18"])
def test_a_cohorts_gradients_are_its_clients_gradients(name):
    shape = shapes(name)[0]
    clients = [made(name, shape, 5, **GROUP.get(name, {}))[0] for _ in range(2)]
    with torch.no_grad():
        for p in clients[1].parameters():
            p.mul_(1.1)
    x, y = torch.stack([made(name, shape, 5)[1], made(name, shape, 5)[1].flip(0)]), torch.arange(8).reshape(2, 4) % 5
    params, buffers = stack_module_state(clients)
    assert not buffers

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(per_example(name, functional_call(clients[0], params, (x,))), y)

    stacked = vmap(grad(loss))(params, x, y)
    for row, client in enumerate(clients):
        cross_entropy(per_example(name, client(x[row])), y[row]).backward()
        for key, p in client.named_parameters():
            torch.testing.assert_close(stacked[key][row], p.grad, rtol=1e-3, atol=1e-5, msg=f"{key} of client {row}")


def test_dropout_differs_between_clients_and_is_off_in_evaluation():
    model, x = made("ra-mlp", MNIST, 10)
    assert torch.equal(model(x), model(x))
    params = dict(model.train().named_parameters())
    first, second = vmap(lambda x: functional_call(model, params, (x,)), randomness="different")(torch.stack([x, x]))
    assert not torch.equal(first, second)


def test_fasttext_means_the_words_and_not_the_padding():
    model, _ = made("fasttext", (4,), 3)
    text = torch.tensor([[7, 9, 0, 0], [0, 9, 0, 7], [0, 0, 0, 0]])
    with torch.no_grad():
        scores = model(text)
        mean = model.embedding.weight[[7, 9]].mean(0)
        torch.testing.assert_close(scores[0], model.output(model.dense1(mean)))
        torch.testing.assert_close(scores[1], scores[0])
        torch.testing.assert_close(scores[2], model.output(model.dense1(torch.zeros(128))))
        model.embedding.weight[0] = 1e6
        torch.testing.assert_close(model(text), scores)


@pytest.mark.parametrize("name", [*PLACES, "transformer", "lstm", "gru"])
def test_no_place_sees_a_later_one(name):
    model, x = made(name, (12,), 5, **({} if name in PLACES else {"places": True}))
    before = model(x)
    x[:, 7:] = torch.randint(1, WORDS, (4, 5))
    after = model(x)
    torch.testing.assert_close(after[:, :7], before[:, :7], rtol=0, atol=0)
    assert not torch.equal(after[:, 7:], before[:, 7:])


@pytest.mark.parametrize("name", ["transformer", "lstm", "gru"])
def test_padding_at_the_end_of_a_text_does_not_count(name):
    model, x = made(name, (12,), 5)
    x[1:, 7:] = 0
    x[3] = 0
    before = model(x)
    assert before.isfinite().all()
    with torch.no_grad():
        model.embedding.weight[0] = 1e3
    torch.testing.assert_close(model(x)[:3], before[:3])


def test_vit_takes_images_that_are_no_multiples_of_its_patches():
    model, x = made("vit", (1, 9, 6), 3)
    padded, _ = made("vit", (1, 12, 8), 3)
    torch.testing.assert_close(model(x), padded(nn.functional.pad(x, (0, 2, 0, 3))), rtol=0, atol=0)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_char_conv_looks_back_as_far_as_it_says(layers):
    model, x = made("char-conv", (40,), 5, layers=layers)
    seen = model.embedding(x).detach().requires_grad_()
    model.embedding = nn.Identity()
    model(seen)[:, -1].sum().backward()
    reached = seen.grad.abs().sum((0, 2)) > 0
    assert reached.tolist() == [place >= 39 - 2 * (2**layers - 1) for place in range(40)]


def test_pixels_of_a_unet_see_far_and_near():
    model, x = made("unet", (1, 24, 24), 3)
    x.requires_grad_()
    model(x)[0, :, 12, 12].sum().backward()
    seen = x.grad[0, 0] != 0
    assert seen[12, 12]
    assert seen[4, 12]
    assert seen[12, 20]


@pytest.mark.parametrize(
    "name", ["char-conv", "char-gru", "transformer", "lstm", "gru", "fcn", "unet", "vit", "mobilenet"]
)
@pytest.mark.parametrize("set_to", [{}, {"width": 8}])
def test_double_gives_the_same_network(name, set_to):
    model, x = made(name, shapes(name)[0], 5, **set_to)
    expected = model(x)
    wide = model.double()(x.double() if x.is_floating_point() else x)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), expected)
