"""FedJAX: its federated_averaging; PEERS_BACKEND chooses how clients run, `jit` or `pmap` over two CPU devices."""

import os

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from work import BATCH, CLIENTS, RATE, SAMPLES, SCORED, Clock, asked, data

work, clock = asked(), Clock()
rng = np.random.default_rng(0)


def drawn(fan, *shape):
    """Weights and biases as PyTorch draws them."""
    bound = fan**-0.5
    return [jnp.asarray(rng.uniform(-bound, bound, size), jnp.float32) for size in (shape, shape[-1:])]


def dense(x, weight, bias):
    return x @ weight + bias


def conv(x, weight, bias):
    """Convolve images [B, h, w, c], pool by 2, apply ReLU."""
    x = jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
    return jax.nn.relu(jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))


def forward(params, x):
    """The networks of work.py."""
    x = x.reshape(len(x), 28, 28, 1)
    for pair in params["convs"]:
        x = conv(x, *pair)
    x = x.reshape(len(x), -1)
    for pair in params["denses"][:-1]:
        x = jax.nn.relu(dense(x, *pair))
    return dense(x, *params["denses"][-1])


def loss(params, batch, rng):
    scores = jax.nn.log_softmax(forward(params, batch["x"]))
    return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()


if work.network == "2nn":
    params = {"convs": [], "denses": [drawn(784, 784, 200), drawn(200, 200, 200), drawn(200, 200, 10)]}
else:
    convs = [drawn(25, 5, 5, 1, 10), drawn(250, 5, 5, 10, 20)]
    params = {"convs": convs, "denses": [drawn(320, 320, 50), drawn(50, 50, 10)]}
images, labels = data()
clients = fedjax.InMemoryFederatedData(
    {
        str(n): {"x": images[n * SAMPLES : (n + 1) * SAMPLES], "y": labels[n * SAMPLES : (n + 1) * SAMPLES]}
        for n in range(CLIENTS)
    }
)
batches = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1)
with fedjax.for_each_client_backend(os.environ.get("PEERS_BACKEND", "jit")):
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(RATE), fedjax.optimizers.sgd(1.0), batches
    )
sampler = fedjax.client_samplers.UniformGetClientSampler(clients, work.per_round, seed=0)
state = algorithm.init(params)
for _ in range(work.rounds):
    state, _ = algorithm.apply(state, sampler.sample())
    jax.block_until_ready(state.params)
    clock.tick()
right = jnp.argmax(jax.jit(forward)(state.params, jnp.asarray(images[:SCORED])), 1) == labels[:SCORED]
steps = len(list(clients.get_client("0").shuffle_repeat_batch(batches)))
clock.report(float(right.mean()), steps)
