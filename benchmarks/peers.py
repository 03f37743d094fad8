"""The same round in other simulators: the same model, clients, steps and batches on the same cores.

    python -m venv peers && peers/bin/pip install -e . "pfl[pytorch]==0.6" fedjax==0.0.17 jax "flwr[simulation]"
    OMP_NUM_THREADS=1 peers/bin/python benchmarks/peers.py --clients 100 --steps 3 --batch 20

That line makes an environment of its own: none of them is a dependency of this package. Who is not installed is passed
over with a sentence. A peer's round is the time between the ends of two of its rounds, so what it does once (start,
compile, first round) is left out and told apart; the fastest counts, as for ours. Everybody shuffles on its own, so
models are not compared; the number of steps and samples is the same. FedJAX is measured with the MLP only.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from polycentric.bench import LR, Race, measure
from polycentric.machine import keep_freed_memory

Moments = list[float]  # when a round ended


def pfl(race: Race, rounds: int) -> Moments:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    set_framework_module(pytorch_ops)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(race.task.module)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

        def loss(self, x: Any, y: Any, is_eval: bool = False) -> Any:
            return cross_entropy(self.inner(x), y)

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            return {}

    class Stopwatch(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            moments.append(time.perf_counter())
            return False, Metrics()

    moments: Moments = []
    people = [race.federation.train.of(k) for k in range(race.federation.n_clients)]
    sets = [Dataset([person.x, person.y], user_id=str(k)) for k, person in enumerate(people)]
    everyone = FederatedDataset(lambda k: sets[k], get_user_sampler("minimize_reuse", list(range(len(sets)))))
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    n = len(sets)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds + 1, 10**6, train_cohort_size=n, val_cohort_size=0),
        backend=SimulatedBackend(training_data=everyone, val_data=everyone),
        model=model,
        model_train_params=NNTrainHyperParams(1, LR, race.batch),
        model_eval_params=NNEvalHyperParams(race.batch),
        callbacks=[Stopwatch()],
    )
    return moments


def fedjax(race: Race, rounds: int) -> Moments:
    import jax
    import jax.numpy as jnp

    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree_util.tree_map
    import fedjax as fj

    if race.work.model != "mlp":
        raise NotImplementedError("only the MLP is written for it here")
    tensors = {name: jnp.asarray(value.detach().numpy()) for name, value in race.task.module.named_parameters()}
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in tensors))

    def outputs(params: Any, x: Any) -> Any:
        x = x.reshape(len(x), -1)
        for i, layer in enumerate(layers):
            x = x @ params[f"{layer}.weight"].T + params[f"{layer}.bias"]
            x = jax.nn.relu(x) if i + 1 < len(layers) else x
        return x

    def loss(params: Any, batch: Any, rng: Any) -> Any:
        picked = jax.nn.log_softmax(outputs(params, batch["x"]))
        return -jnp.take_along_axis(picked, batch["y"][:, None], 1).mean()

    one_epoch = fj.ShuffleRepeatBatchHParams(batch_size=race.batch, num_epochs=1)
    sgd = fj.optimizers.sgd
    algorithm = fj.algorithms.fed_avg.federated_averaging(jax.grad(loss), sgd(LR), sgd(1.0), one_epoch)
    people = [race.federation.train.of(k) for k in range(race.federation.n_clients)]
    sets = [fj.ClientDataset({"x": p.x.numpy(), "y": p.y.numpy()}) for p in people]
    state, key, moments = algorithm.init(tensors), jax.random.PRNGKey(0), []
    for _ in range(rounds + 1):
        key, *own = jax.random.split(key, len(sets) + 1)
        clients = [(str(k).encode(), one, rng) for k, (one, rng) in enumerate(zip(sets, own, strict=True))]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        moments.append(time.perf_counter())
    return moments


def flower(race: Race, rounds: int) -> Moments:
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    train, module, batch, moments = race.federation.train, race.task.module, race.batch, []

    class Person(NumPyClient):
        def __init__(self, k: int) -> None:
            self.k = k

        def fit(self, parameters: Any, config: Any) -> Any:
            torch.set_num_threads(1)
            own, net = train.of(self.k), copy.deepcopy(module)
            with torch.no_grad():
                for value, new in zip(net.parameters(), parameters, strict=True):
                    value.copy_(torch.as_tensor(new))
            optimizer = torch.optim.SGD(net.parameters(), lr=LR)
            for index in torch.randperm(len(own)).split(batch):
                optimizer.zero_grad()
                cross_entropy(net(own.x[index]), own.y[index]).backward()
                optimizer.step()
            return [value.detach().numpy() for value in net.parameters()], len(own), {}

    def person(context: Context) -> Any:
        return Person(int(context.node_config["partition-id"])).to_client()

    def at_center(context: Context) -> Any:
        def ended(*_: Any) -> None:
            moments.append(time.perf_counter())

        start = ndarrays_to_parameters([value.detach().numpy() for value in module.parameters()])
        rule = FedAvg(fraction_fit=1.0, fraction_evaluate=0.0, evaluate_fn=ended, initial_parameters=start)
        return ServerAppComponents(strategy=rule, config=ServerConfig(num_rounds=rounds + 1))

    run_simulation(
        server_app=ServerApp(server_fn=at_center),
        client_app=ClientApp(client_fn=person),
        num_supernodes=race.federation.n_clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return moments[1:]  # the first is before any round


PEERS: dict[str, tuple[str, Callable[[Race, int], Moments]]] = {
    "pfl": ("pfl", pfl),
    "FedJAX": ("fedjax", fedjax),
    "Flower": ("flwr", flower),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--executors", nargs="*", help="of ours; by default those worth comparing for the model")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    asked = parser.parse_args()
    keep_freed_memory()  # for everybody
    torch.set_num_threads(1)
    race = Race.of(asked.model, asked.clients, asked.steps, asked.batch)
    ours = measure(race, asked.executors, asked.repeats)
    print(json.dumps({"who": "polycentric", **ours["seconds"], "compile_seconds": ours["compile_seconds"]}), flush=True)
    best = min(value for name, value in ours["seconds"].items() if name not in ("plain", "limit"))
    for name in asked.peers:
        module, work = PEERS[name]
        if importlib.util.find_spec(module) is None:
            print(f"{name} is not installed here and was passed over; the docstring says how to make room for it")
            continue
        began = time.perf_counter()
        try:
            moments = work(race, asked.repeats)
        except NotImplementedError as error:
            print(f"{name} was passed over: {error}")
            continue
        between = [b - a for a, b in itertools.pairwise(moments)]
        row = {"who": name, "seconds": min(between), "first": moments[0] - began, "times_ours": min(between) / best}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
