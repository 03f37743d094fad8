"""FedAvg in pfl-research: its simulated backend, a user's batches as slices of tensors that lie on the device."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl_net import Net
from turns import Turns, Work, take_part

MANY = 10**6


class Gate(TrainingProcessCallback):
    """Between two of pfl's iterations."""

    def __init__(self, turns: Turns, net: Net) -> None:
        self.turns, self.net = turns, net

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        inner = self.net.inner.state_dict()
        self.turns.ended(lambda: {name: value.cpu().numpy() for name, value in inner.items()}, version("pfl"))
        return not self.turns.wait(), Metrics()


def play(work: Work, turns: Turns) -> None:
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = work.told["tf32"]["products"]
    torch.backends.cudnn.allow_tf32 = work.told["tf32"]["convolutions"]
    x, y = (torch.as_tensor(value).to(work.device) for value in (work.x, work.y))
    users = [Dataset([x[k], y[k]], user_id=str(k)) for k in range(work.n_clients)]
    everyone = FederatedDataset(lambda k: users[k], get_user_sampler("minimize_reuse", list(range(len(users)))))
    net = Net(work.module())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    if turns.wait():
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(MANY, MANY, train_cohort_size=len(users), val_cohort_size=0),
            backend=SimulatedBackend(training_data=everyone, val_data=everyone),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
            ),
            model_eval_params=NNEvalHyperParams(work.batch),
            callbacks=[Gate(turns, net)],
        )


if __name__ == "__main__":
    take_part(play)
