"""FedAvg in FedJAX: its own algorithm, gradients by JAX, batches in the order of the data, which lie on the host."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from turns import Turns, Work, take_part

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 is older than its removal

import fedjax as fj

FULL, SHORT = jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT  # the same on a processor; on a GPU, SHORT is TF32
precision = {"products": FULL, "convolutions": FULL}


def dense(params: Any, layer: str, x: Any) -> Any:
    product = jnp.matmul(x, params[f"{layer}.weight"].T, precision=precision["products"])
    return product + params[f"{layer}.bias"]


def convolved(params: Any, layer: str, x: Any) -> Any:
    """A convolution that keeps the size, ReLU, and the largest of every 2 x 2."""
    kernel, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
    orders, exact = ("NCHW", "OIHW", "NCHW"), precision["convolutions"]
    x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=orders, precision=exact)
    x = jax.nn.relu(x + bias[:, None, None])
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def outputs(params: Any, x: Any) -> Any:
    """Of the MLP and of the convolutional nets, by the names of their layers."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in params))
    convolutions = [name for name in sorted(layers) if name.startswith("conv")]
    for layer in convolutions:
        x = convolved(params, layer, x)
    x = x.reshape(len(x), -1)
    for layer in [name for name in sorted(layers) if name.startswith("dense")]:
        x = jax.nn.relu(dense(params, layer, x))
    return dense(params, "head", x)


def loss(params: Any, batch: Any, rng: Any) -> Any:
    picked = jax.nn.log_softmax(outputs(params, batch["x"]))
    return -jnp.take_along_axis(picked, batch["y"][:, None], 1).mean()


def play(work: Work, turns: Turns) -> None:
    precision.update({what: SHORT if short else FULL for what, short in work.told["tf32"].items()})
    one_epoch = fj.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1, skip_shuffle=True)
    sgd = fj.optimizers.sgd
    algorithm = fj.algorithms.fed_avg.federated_averaging(jax.grad(loss), sgd(work.lr), sgd(1.0), one_epoch)
    sets = [fj.ClientDataset({"x": x, "y": y}) for x, y in zip(work.x, work.y, strict=True)]
    state, key = algorithm.init({name: jnp.asarray(value) for name, value in work.start.items()}), jax.random.PRNGKey(0)
    while turns.wait():
        key, *own = jax.random.split(key, len(sets) + 1)
        clients = [(str(k).encode(), one, rng) for k, (one, rng) in enumerate(zip(sets, own, strict=True))]
        state, _ = algorithm.apply(state, clients)
        params = jax.block_until_ready(state.params)
        turns.ended(lambda held=params: held, f"{version('fedjax')}, jax {jax.__version__}")


if __name__ == "__main__":
    take_part(play)
