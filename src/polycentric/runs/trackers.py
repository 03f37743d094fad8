"""Trackers: tools that draw the numbers of a run while it goes, each a `Callback`.

    tracker("tensorboard")      events in the run's folder, tensorboard/
    tracker("mlflow")           a data base in the run's folder, mlflow.db; or where MLFLOW_TRACKING_URI says
    tracker("wandb")            files in the run's folder, wandb/, sent nowhere; or as WANDB_MODE says

They are given the settings of the run, every number of every evaluation by its round, and at the end those of the
summary. Nothing leaves the machine unless a variable of the tool's own says so. A run that goes on tells its tracker
also what was before.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError, require, unknown
from .loop import Callback, Run

PROJECT = "polycentric"  # what MLflow calls an experiment, and W&B a project


class Tracker(Callback):
    """Tells a tool the numbers of a run: what it is told, and where it keeps it, is said here."""

    def on_start(self, run: Run) -> None:
        """The settings, and the evaluations there were."""
        folder = None if run.folder is None else run.folder.path.resolve()
        require(folder is not None, f"{type(self).__name__} needs a folder to write into: give the run out=")
        assert folder is not None
        self.begin(folder, {name: value for name, value in run.settings.model_dump().items() if value is not None})
        for row in run.history:
            self.log(numbers_of(row), int(row["round"]))

    def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
        """One point for each number."""
        self.log(numbers_of(row), int(row["round"]))

    def on_stop(self, run: Run) -> None:
        """Where the run was interrupted, it is over for now."""
        if run.state.round < run.settings.rounds and not run.stopped:
            self.close(finished=False)

    def on_end(self, run: Run) -> None:
        """The numbers of the summary, beside those of the rounds."""
        found = run.summary()
        names = ("metrics", "personalised")
        self.conclude({f"final_{name}": numbers_of(found[name]) for name in names if found[name]})
        self.close(finished=True)

    @abstractmethod
    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """A run begins, or goes on."""

    @abstractmethod
    def log(self, numbers: Mapping[str, float], round: int) -> None:
        """Numbers after a round."""

    def conclude(self, found: Mapping[str, Mapping[str, float]]) -> None:
        """Numbers of the whole run, in groups; by default nothing more than was logged."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """Nothing more will come; `finished`: the run has ended."""


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """What can be drawn: numbers, and no missing ones."""
    return {name: value for name, value in row.items() if isinstance(value, int | float) and name != "round"}


class TensorBoard(Tracker):
    """Every number as a TensorBoard scalar, over rounds."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.make = SummaryWriter

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Events in tensorboard/."""
        self.writer = self.make(str(folder / "tensorboard"))
        self.writer.add_text("settings", "\n".join(f"    {name} = {value}" for name, value in settings.items()))

    def log(self, numbers: Mapping[str, float], round: int) -> None:
        """One scalar for each."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def close(self, finished: bool) -> None:
        """Everything is written."""
        self.writer.close()


class Mlflow(Tracker):
    """A run of MLflow's, in a data base of its own unless MLFLOW_TRACKING_URI says where."""

    def __init__(self) -> None:
        import mlflow

        self.mlflow = mlflow

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """A new run of the experiment `polycentric`; settings are its parameters."""
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').as_posix()}"
        self.client = self.mlflow.MlflowClient(tracking_uri=place)
        known = self.client.get_experiment_by_name(PROJECT)
        experiment = self.client.create_experiment(PROJECT) if known is None else known.experiment_id
        self.id = self.client.create_run(experiment, run_name=folder.name).info.run_id
        for name, value in settings.items():
            self.client.log_param(self.id, name, str(value)[:500])

    def log(self, numbers: Mapping[str, float], round: int) -> None:
        """One metric for each, its step the round."""
        for name, value in numbers.items():
            self.client.log_metric(self.id, name, value, step=round)

    def conclude(self, found: Mapping[str, Mapping[str, float]]) -> None:
        """Metrics called final_metrics/..., final_personalised/..."""
        for group, numbers in found.items():
            for name, value in numbers.items():
                self.client.log_metric(self.id, f"{group}/{name}", value)

    def close(self, finished: bool) -> None:
        """Finished, or killed."""
        self.client.set_terminated(self.id, status="FINISHED" if finished else "KILLED")


class Wandb(Tracker):
    """A run of Weights & Biases, offline unless WANDB_MODE says otherwise."""

    def __init__(self) -> None:
        import wandb

        self.wandb = wandb

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """A new run of the project `polycentric`; settings are its config."""
        mode = os.environ.get("WANDB_MODE") or "offline"
        how = {"project": os.environ.get("WANDB_PROJECT") or PROJECT, "name": folder.name, "dir": str(folder)}
        self.run = self.wandb.init(**how, mode=mode, config=dict(settings))

    def log(self, numbers: Mapping[str, float], round: int) -> None:
        """One history entry, its step the round."""
        self.run.log(dict(numbers), step=round)

    def conclude(self, found: Mapping[str, Mapping[str, float]]) -> None:
        """In the run's summary."""
        self.run.summary.update({f"{group}/{name}": v for group, some in found.items() for name, v in some.items()})

    def close(self, finished: bool) -> None:
        """With exit code 0, or 1 where it was interrupted."""
        self.run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "mlflow": Mlflow, "wandb": Wandb}


def tracker(name: str) -> Tracker:
    """A tracker by its name, for a run with a folder: `pc.run(..., out="one", callbacks=[pc.tracker("mlflow")])`."""
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    try:
        return TRACKERS[name]()
    except ImportError as error:
        raise UsageError(f"tracker {name} is not installed: pip install 'polycentric[{name}]'") from error
