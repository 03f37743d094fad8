"""What would do nothing is refused before a run, or said."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from polycentric import Method, SignFlip, UsageError, cfl, fedavg, mocha, nofed, resume, run
from polycentric.cli import outcome
from polycentric.runs.settings import Settings
from polycentric.runs.start import load_data, prepare
from support import Make, small


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"monitor": "macro_f1"}, "monitor=macro_f1 needs a validation split"),
        ({"held_out_seed": 3}, "held_out_seed=3 draws nobody without held_out"),
        ({"held_out": 0.01}, "held_out=0.01 of 5 clients is nobody"),
        ({"attack": SignFlip(0.01)}, "attack with share=0.01 of 5 clients is nobody"),
    ],
)
def test_what_can_do_nothing_is_refused(how: dict[str, Any], said: str, blobs: Make) -> None:
    with pytest.raises(UsageError, match=said):
        prepare(fedavg(), blobs(), model=small, rounds=1, **how)


def test_what_is_for_classes_is_refused_where_numbers_are_predicted(quadratics: Make) -> None:
    for how, said in (({"target": 0.9}, "target=0.9 is an accuracy"), ({"optimistic": True}, "by their accuracy")):
        with pytest.raises(UsageError, match=said):
            prepare(fedavg(), quadratics(), model="logistic", rounds=1, **how)


def test_checkpoints_need_a_folder(blobs: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="checkpoint_every needs a folder"):
        run(fedavg(), blobs(), model=small, rounds=1, checkpoint_every=1)
    assert run(fedavg(), blobs(), model=small, rounds=1, checkpoint_every=1, out=tmp_path / "run").state.round == 1


def test_a_metric_to_monitor_that_is_none_is_found_before_the_first_round(blobs: Make) -> None:
    made = prepare(fedavg(), blobs(valid=3), model=small, rounds=1, monitor="nothing_at_all")
    with pytest.raises(UsageError, match="unknown metric to monitor 'nothing_at_all'"):
        made.go()
    assert made.state.round == 0


@pytest.mark.parametrize(("rounds", "warned"), [(1, True), (5, True), (6, False), (0, False)])
def test_cfl_says_where_no_center_can_split(rounds: int, warned: bool, blobs: Make, recwarn: Any) -> None:
    run(cfl(t_min=4), blobs(), model=small, rounds=rounds, fine_tune=0)
    assert [str(w.message).startswith("cfl: no center can split before round 6") for w in recwarn] == [True] * warned


def test_the_first_round_of_which_cfl_speaks_is_the_first_in_which_it_splits(blobs: Make) -> None:
    easy = cfl(t_min=4, eps1=1e9, eps2=0.0, gap=-2.0, relative=False, lr=0.5)
    with pytest.warns(UserWarning, match="no center can split before round 6"):
        before = run(easy, blobs(), model=small, rounds=5, fine_tune=0)
    after = run(easy, blobs(), model=small, rounds=6, fine_tune=0)
    assert len(before.state.centers["model"]) == 1 < len(after.state.centers["model"])


def test_fine_tuning_that_cannot_be_is_said(blobs: Make, recwarn: Any) -> None:
    assert "personalised" not in run(mocha(), blobs(), model="logistic", rounds=1).scores
    assert not recwarn.list, "nobody asked for it"
    with pytest.warns(UserWarning, match="fine_tune=3 does nothing in mocha"):
        run(mocha(), blobs(), model="logistic", rounds=1, fine_tune=3)


@pytest.mark.parametrize(("method", "own"), [(nofed(), ["model"]), (fedavg(), None)])
@pytest.mark.filterwarnings("ignore:in nofed every client has whole models")
def test_scores_of_untrained_models_are_marked(method: Method, own: list[str] | None, blobs: Make) -> None:
    found = run(method, blobs(), model=small, rounds=1, held_out=0.4, fine_tune=0).summary()["held_out"]
    assert found.get("untrained") == own


@pytest.mark.filterwarnings("default:patience without valid")
def test_patience_says_what_it_takes_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    fast = ["--clients", "4", "--model", "logistic", "--rounds", "2", "--quiet", "--out", "run"]
    assert outcome(["run", "fedavg", "--data", "digits", "--partition", "iid", "--patience", "1", *fast]) == 0
    said = "patience without valid: 10% of every client's training examples are taken for validation"
    assert said in capfd.readouterr().err
    config = json.loads(Path("run/config.json").read_text())
    assert config["valid"] == 0.1
    warnings.simplefilter("error")
    resume("run", rounds=3)
    load_data(Settings.of({"method": "fedavg", "data": "digits", "patience": 2, "valid": 0.2}))


def test_the_command_says_that_there_are_no_fine_tuned_scores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    fast = ["--data", "digits", "--partition", "iid", "--clients", "4", "--model", "logistic", "--rounds", "1"]
    for more, told in (([], True), (["--fine-tune", "0"], False)):
        assert outcome(["run", "mocha", *fast, "--quiet", *more]) == 0
        assert ("no fine-tuned scores: clients of mocha" in capfd.readouterr().err) is told
