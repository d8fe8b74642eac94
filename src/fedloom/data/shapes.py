"""Drawn shapes: small invented images in which every pixel has a class, of clients whose cameras differ."""

import numpy as np
from numpy.typing import NDArray

from fedloom.data.dataset import Dataset
from fedloom.data.sampling import number, stream, whole

KINDS = ("disc", "triangle", "cross")
SMALLEST, LARGEST = 4.0, 7.0  # half the size of a shape, in pixels
Floats = NDArray[np.float64]


def shapes(clients: int = 20, examples: int = 75, size: int = 24, alpha: float = 0.5, seed: int = 0) -> Dataset:
    """Grey images [1, size, size] with one or two shapes on noise; the class of a pixel is 0 or its shape's kind.

    Kinds are disc, triangle and cross, 1 to 3. Each client has `examples` images, of which a fifth is for
    testing. Clients differ in brightness, contrast and noise, and in the kinds that they mostly see: shares drawn from
    Dirichlet(alpha). Pixels have mean 0 and standard deviation 1 over the training images. Partitions that deal by
    class deal by the kind of the first shape.
    """
    clients, examples = whole("clients", clients, 1, 100_000), whole("examples", examples, 2, 100_000)
    size, alpha = whole("size", size, 16, 512), number("alpha", alpha, 0, 1e6, above=True)
    whole("seed", seed, 0)
    tested = max(round(examples / 5), 1)
    own = [_of_client(stream(seed, f"shapes {client}"), examples, size, alpha) for client in range(clients)]
    x, y, first = (np.stack(part) for part in zip(*own))  # [clients, examples, ...]
    kept = slice(None, examples - tested), slice(examples - tested, None)
    x_train, x_test = (x[:, part].reshape(-1, 1, size, size) for part in kept)
    mean, deviation = x_train.mean(dtype=np.float64), x_train.std(dtype=np.float64)
    x_train, x_test = (((part - mean) / deviation).astype(np.float32) for part in (x_train, x_test))
    y_train, y_test = (y[:, part].reshape(-1, size, size) for part in kept)
    client_train, client_test = (np.repeat(np.arange(clients), count) for count in (examples - tested, tested))
    return Dataset(
        "shapes", x_train, y_train, x_test, y_test, client_train, client_test, classes=len(KINDS) + 1,
        vocabulary=0, stratum_train=first[:, kept[0]].ravel(), class_names=("background", *KINDS), divided=True,
    )  # fmt: skip


def _of_client(
    rng: np.random.Generator, count: int, size: int, alpha: float
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """A client's images [n, size, size], classes of pixels, and kinds of first shapes [n], counted from 0."""
    brightness, contrast, noise = rng.uniform(-0.4, 0.4), rng.uniform(0.7, 1.3), rng.uniform(0.1, 0.4)
    liking = rng.dirichlet([alpha] * len(KINDS)) * 0.8 + 0.2 / len(KINDS)  # no kind is never seen
    kind = rng.choice(len(KINDS), (2, count), p=liking / liking.sum())
    half = rng.uniform(SMALLEST, LARGEST, (2, count))
    centre = SMALLEST + rng.random((2, 2, count)) * (size - 1 - 2 * SMALLEST)  # [shape, axis, n]
    level = rng.uniform(0.6, 1.4, (2, count)) * contrast
    second = rng.random(count) < 0.5
    image = np.zeros((count, size, size))
    target = np.zeros((count, size, size), np.int64)
    for shape in range(2):  # the second one lies on the first
        inside = _inside(kind[shape], centre[shape], half[shape], size)
        inside &= second[:, None, None] if shape else True
        image = np.where(inside, level[shape][:, None, None], image)
        target = np.where(inside, kind[shape][:, None, None] + 1, target)
    image += brightness + noise * rng.standard_normal(image.shape)
    return image.astype(np.float32), target, kind[0]


def _inside(kind: NDArray[np.int64], centre: Floats, half: Floats, size: int) -> NDArray[np.bool_]:
    """The pixels [n, size, size] of shapes of these kinds [n], centres [2, n] and half sizes [n]."""
    place = np.arange(size)
    down = place[None, :, None] - centre[0][:, None, None]  # [n, size, 1]
    right = place[None, None, :] - centre[1][:, None, None]  # [n, 1, size]
    half = half[:, None, None]
    far, near = np.maximum(np.abs(down), np.abs(right)), np.minimum(np.abs(down), np.abs(right))
    disc = down**2 + right**2 <= half**2
    triangle = (np.abs(down) <= half) & (np.abs(right) <= (half + down) / 2)
    cross = (far <= half) & (near <= 0.25 * half)
    found: NDArray[np.bool_] = np.choose(kind[:, None, None], (disc, triangle, cross))
    return found
