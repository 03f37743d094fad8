"""FedAvg in FedJAX: its data in memory, its sampler, its algorithm and its evaluation; XLA uses the cores it finds."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from job import Job, Phases, folder, say

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 is older than its removal

import fedjax as fj

EVALUATED_AT_ONCE = 1000


def outputs(params: Any, batch: Any, rng: Any = None) -> Any:
    """Dense layers with ReLU between them."""
    x = batch["x"]
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    return x @ weight + bias


def error(batch: Any, predicted: Any) -> Any:
    return fj.metrics.unreduced_cross_entropy_loss(batch["y"], predicted)


def main() -> None:
    phases = Phases()
    phases.mark("import")
    job = Job(folder())
    values = list(job.start.values())
    start = [(jnp.asarray(w.T), jnp.asarray(b)) for w, b in zip(values[::2], values[1::2], strict=True)]
    model = fj.Model(
        init=lambda rng: start,
        apply_for_train=outputs,
        apply_for_eval=outputs,
        train_loss=error,
        eval_metrics={"accuracy": fj.metrics.Accuracy()},
    )
    clients = {
        str(client).encode(): {"x": job.x[job.of(client)], "y": job.y[job.of(client)]}
        for client in range(job.n_clients)
    }
    sampler = fj.client_samplers.UniformGetClientSampler(fj.InMemoryFederatedData(clients), job.cohort, job.seed)
    algorithm = fj.algorithms.fed_avg.federated_averaging(
        fj.model_grad(model),
        fj.optimizers.sgd(job.lr),
        fj.optimizers.sgd(1.0),
        fj.ShuffleRepeatBatchHParams(batch_size=job.batch, num_epochs=1),
    )
    test = list(fj.ClientDataset({"x": job.test_x, "y": job.test_y}).padded_batch(batch_size=EVALUATED_AT_ONCE))
    state, found = algorithm.init(model.init(None)), {}
    phases.mark("data")
    for number in range(1, job.rounds + 1):
        state, _ = algorithm.apply(state, sampler.sample())
        if number % job.every == 0 or number == job.rounds:
            found = fj.evaluate_model(model, state.params, test)
    accuracy = float(found["accuracy"])
    phases.mark("rounds and evaluation")
    say(accuracy, f"{version('fedjax')}, jax {jax.__version__}", phases)


if __name__ == "__main__":
    main()
