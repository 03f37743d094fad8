"""FedAvg in pfl-research: its simulated backend, its sampler, and its callback that evaluates on central data."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from job import Job, Phases, folder, say
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl_net import Net

EVALUATED_AT_ONCE = 1000


class Scored(Net):
    """With the metric of the job."""

    @torch.no_grad()
    def metrics(self, x: Any, y: Any) -> dict[str, Any]:
        self.inner.eval()
        return {"accuracy": Weighted(int((self.inner(x).argmax(1) == y).sum()), len(y))}


def main() -> None:
    phases = Phases()
    phases.mark("import")
    job = Job(folder())
    np.random.seed(job.seed)
    torch.manual_seed(job.seed)
    x, y = torch.as_tensor(job.x), torch.as_tensor(job.y)

    def user(client: int) -> Dataset:
        mine = job.of(client)
        order = torch.randperm(mine.stop - mine.start)  # pfl takes batches in the order of the data
        return Dataset([x[mine][order], y[mine][order]], user_id=str(client))

    users = FederatedDataset(user, get_user_sampler("random", list(range(job.n_clients))))
    test = Dataset([torch.as_tensor(job.test_x), torch.as_tensor(job.test_y)])
    net = Scored(job.module())
    evaluated = NNEvalHyperParams(EVALUATED_AT_ONCE)
    phases.mark("data")
    FederatedAveraging().run(
        # rounds count from 0 there, so its callback evaluates before the first one and not after the last
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch
        ),
        model_eval_params=evaluated,
        callbacks=[CentralEvaluationCallback(test, evaluated, frequency=job.every)],
    )
    accuracy = float(net.metrics(*test.raw_data)["accuracy"].overall_value)
    phases.mark("rounds and evaluation")
    say(accuracy, version("pfl"), phases)


if __name__ == "__main__":
    main()
