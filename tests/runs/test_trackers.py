"""Trackers: told everything of a run, in its folder, and sent nowhere."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from polycentric import Diverged, UsageError, fedavg, resume, run, tracker
from polycentric.cli import outcome
from polycentric.runs.trackers import TRACKERS
from support import Make, small


class FakeClient:
    """Notes what MLflow is told."""

    made: ClassVar[list[FakeClient]] = []

    def __init__(self, tracking_uri: str) -> None:
        self.uri, self.params, self.metrics, self.status = tracking_uri, {}, {}, ""
        self.experiments: list[str] = []
        FakeClient.made.append(self)

    def get_experiment_by_name(self, name: str) -> Any:
        return None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return "1"

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.name = run_name
        return SimpleNamespace(info=SimpleNamespace(run_id="run"))

    def log_param(self, run: str, name: str, value: str) -> None:
        self.params[name] = value

    def log_metric(self, run: str, name: str, value: float, step: int | None = None) -> None:
        self.metrics[name, step] = value

    def set_terminated(self, run: str, status: str) -> None:
        self.status = status


class FakeRun:
    """Notes what W&B is told."""

    def __init__(self, how: dict[str, Any]) -> None:
        self.how, self.rows, self.summary, self.code = how, {}, dict[str, float](), None

    def log(self, numbers: dict[str, float], step: int) -> None:
        assert step not in self.rows and step >= max(self.rows, default=0), "steps only grow"
        self.rows[step] = numbers

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[FakeClient]:
    module: Any = ModuleType("mlflow")
    module.MlflowClient, FakeClient.made = FakeClient, []
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return FakeClient.made


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    module: Any = ModuleType("wandb")
    made: list[FakeRun] = []
    module.init = lambda **how: made.append(FakeRun(how)) or made[-1]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return made


def test_mlflow_is_told_all_scores_and_keeps_them_in_the_folder(
    mlflow: list[FakeClient], blobs: Make, tmp_path: Path
) -> None:
    out = tmp_path / "one"
    done = run(fedavg(lr=0.1), blobs(), model=small, rounds=2, out=out, callbacks=[tracker("mlflow")])
    (told,) = mlflow
    assert told.uri == f"sqlite:///{(out / 'mlflow.db').as_posix()}" and told.experiments == ["polycentric"]
    assert told.name == "one" and told.params["rounds"] == "2" and told.status == "FINISHED"
    for row in done.history:
        for name in ("micro_accuracy", "micro_loss", "bytes_up"):
            assert told.metrics[name, row["round"]] == row[name]
    assert told.metrics["final_personalised/micro_accuracy", None] == done.summary()["personalised"]["micro_accuracy"]


def test_mlflow_goes_where_its_variable_says(
    mlflow: list[FakeClient], blobs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    run(fedavg(), blobs(), model=small, rounds=0, out=tmp_path / "one", callbacks=[tracker("mlflow")])
    assert mlflow[0].uri == "sqlite:///elsewhere.db"


def test_wandb_is_offline_and_a_resumed_run_tells_what_was_before(
    wandb: list[FakeRun], blobs: Make, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"federation": blobs(), "model": small}
    run(fedavg(lr=0.1), out=tmp_path / "one", rounds=2, callbacks=[tracker("wandb")], **given)
    more = resume(tmp_path / "one", rounds=4, callbacks=[tracker("wandb")], **given)
    first, second = wandb
    assert first.how["mode"] == "offline" and first.how["dir"] == str(tmp_path / "one")
    assert first.how["config"]["method"] == "fedavg" and list(first.rows) == [0, 1, 2] and first.code == 0
    assert list(second.rows) == [row["round"] for row in more.history] == [0, 1, 2, 3, 4]
    assert first.rows[1] == second.rows[1]
    assert second.summary["final_metrics/micro_accuracy"] == more.metrics["micro_accuracy"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_fails_is_not_finished(
    mlflow: list[FakeClient], wandb: list[FakeRun], blobs: Make, tmp_path: Path
) -> None:
    both = [tracker("mlflow"), tracker("wandb")]
    with pytest.raises(Diverged):
        run(fedavg(lr=1e30, epochs=5), blobs(), model=small, rounds=9, out=tmp_path / "one", callbacks=both)
    assert mlflow[0].status == "KILLED" and wandb[0].code == 1


def test_tensorboard_writes_events(blobs: Make, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run(fedavg(), blobs(), model=small, rounds=1, out=tmp_path / "one", callbacks=[tracker("tensorboard")])
    assert list((tmp_path / "one" / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_said_before_anything_is_written(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)
    assert outcome(["run", "fedavg", "--rounds", "0", "--track", name]) == 2
    assert f"tracker {name} is not installed: pip install 'polycentric[{name}]'" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_trackers_need_a_name_and_a_folder(wandb: list[FakeRun], blobs: Make) -> None:
    with pytest.raises(UsageError, match="unknown tracker 'wandbb': did you mean 'wandb'"):
        tracker("wandbb")
    with pytest.raises(UsageError, match="needs a folder to write into"):
        run(fedavg(), blobs(), model=small, rounds=0, callbacks=[tracker("wandb")])


def test_every_tracker_is_an_extra() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert all(f"\n{name} = [" in text for name in TRACKERS)


def test_the_command_tracks_a_run_and_a_resumed_one(
    wandb: list[FakeRun], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    fast = ["--data", "digits", "--clients", "4", "--model", "logistic", "--fine-tune", "0", "--quiet", "--out", "one"]
    assert outcome(["run", "fedavg", *fast, "--rounds", "1", "--track", "wandb"]) == 0
    assert outcome(["resume", "one", "--rounds", "2", "--track", "wandb", "--quiet"]) == 0
    assert [list(one.rows) for one in wandb] == [[0, 1], [0, 1, 2]]
