"""Sketches keep distances about right, change nothing of a run, and are as they would be without an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import polycentric as pc
from polycentric.cli import outcome
from polycentric.errors import UsageError
from polycentric.runs.folder import Folder
from polycentric.runs.sketch import NUMBERS, sketch
from polycentric.runs.start import open as open_run
from support import Make, ready, recorded, went_on

FEW = {"rounds": 4, "checkpoint_every": 1, "dtype": "float32", "sketch": True}


def test_a_sketch_is_linear_and_keeps_inner_products_about_right() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 3000, generator=generator)
    found = sketch(rows)
    assert found.shape == (60, NUMBERS) and torch.allclose(
        sketch(3 * rows + 1) - sketch(torch.ones(1, 3000)), 3 * found, atol=1e-2
    )
    off = ((found @ found.T) - rows @ rows.T) / 3000
    apart = ~torch.eye(60, dtype=torch.bool)
    assert abs(float(off[apart].mean())) < 0.02 and float(off[apart].std()) < 1.2 * (1 / NUMBERS) ** 0.5
    assert float((off.diagonal()).abs().mean()) < 2 * (2 / NUMBERS) ** 0.5


@pytest.mark.parametrize("width", [1, NUMBERS - 1, NUMBERS, NUMBERS + 1])
def test_any_width_can_be_sketched(width: int) -> None:
    row = torch.arange(1.0, width + 1)[None]
    assert float(sketch(row).abs().sum()) > 0 and sketch(row)[0, : min(width, NUMBERS)].abs().tolist()[0] in (
        1.0,
        128.0,
        130.0,
    )


def test_a_run_with_sketches_is_the_run_without(blobs: Make) -> None:
    one, other = (
        ready(pc.fedavg(lr=0.1), blobs(), **FEW | {"sketch": with_, "checkpoint_every": None}).go()
        for with_ in (True, False)
    )
    assert one.history == other.history and torch.equal(one.state.centers["model"], other.state.centers["model"])
    assert sorted(one.sketches) == [1, 2, 3, 4] and not other.sketches
    assert one.sketches[1]["index"].tolist() == [0, 1, 2, 3, 4]


def test_the_last_exchange_that_sends_models_is_sketched(blobs: Make) -> None:
    run = ready(pc.fesem(k=2, lr=0.1), blobs(), **FEW | {"checkpoint_every": None}).go()
    apart = torch.cdist(run.sketches[4]["model"], run.sketches[4]["model"])
    assert float(apart.max()) > 0 and run.sketches[4]["index"].tolist() == [0, 1, 2, 3, 4]


def test_sketches_of_a_resumed_run_have_the_bytes_of_an_uninterrupted_one(blobs: Make, tmp_path: Path) -> None:
    def fresh(rounds: int = 4) -> pc.Run:
        return ready(pc.fedavg(lr=0.1), blobs(), **FEW | {"rounds": rounds, "evaluate_every": 1})

    recorded(fresh(), tmp_path / "whole").go()
    recorded(fresh(3), tmp_path / "cut").go()
    folder = Folder(tmp_path / "cut")
    folder.unfinish()
    for name in ("round-000003.json", "round-000003.safetensors"):
        (tmp_path / "cut/checkpoints" / name).unlink()
    (tmp_path / "cut/sketches/.round-000002.safetensors.1.tmp").write_text("left by a process that was killed")
    went_on(fresh(), folder)
    each = [{p.name: p.read_bytes() for p in (tmp_path / name / "sketches").iterdir()} for name in ("whole", "cut")]
    assert each[0] == each[1] and len(each[0]) == 4
    assert folder.sketched() == [1, 2, 3, 4] and not folder.damaged()


def test_a_changed_sketch_is_refused_and_a_resumed_run_goes_on_without_it(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    pc.run("fedavg", "digits", clients=4, rounds=2, model="logistic", device="cpu", sketch=True, out=out)
    path, folder = out / "sketches/round-000001.safetensors", Folder(out)
    path.write_bytes(path.read_bytes()[:-4] + b"abcd")
    with pytest.raises(UsageError, match="was changed since the run ended"):
        folder.read_sketch(1)
    assert folder.damaged() == ["sketches/round-000001.safetensors"]
    assert outcome(["resume", str(out)]) == 0
    said = capsys.readouterr().err
    assert "is damaged: the map of that round is lost" in said and "written again" not in said
    assert folder.sketched() == [2] and not folder.damaged() and open_run(out).state.round == 2


def test_what_is_no_sketch_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for wrong in (
        {"index": torch.zeros(2)},
        {"index": torch.tensor([0, 1]), "model": torch.full((2, 3), torch.nan)},
        {"index": torch.tensor([-1]), "model": torch.zeros(1, 3)},
        {"index": torch.tensor([1]), "model": torch.zeros(2, 3)},
    ):
        folder.write_sketch(1, wrong)
        with pytest.raises(UsageError, match="holds no sketches of models"):
            folder.read_sketch(1)
