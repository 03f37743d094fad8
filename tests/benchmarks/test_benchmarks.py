"""The scripts of benchmarks/: they run, and a peer that does other work is found out."""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polycentric.data.sources import find

ROOT = Path(__file__).parents[2]


Script = Callable[..., list[str]]
Peers = Callable[[str], tuple[int, list[str]]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    """Runs a script in this process, which has torch already, and returns the lines it prints."""

    def lines(name: str, words: str) -> list[str]:
        monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
        monkeypatch.setattr(sys, "argv", [name, *words.split()])
        capsys.readouterr()
        runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return lines


# -- scale ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"centers": 2}, {"parameters": 1000}])
def test_a_point_of_the_scaling_curves_is_measured(script: Script, more: dict[str, int]) -> None:
    point = json.dumps({"clients": 300, "cohort": 20} | more, separators=(",", ":"))
    row = json.loads(script("scale", f"--alone {point} --repeats 1")[-1])
    assert row["round"] > 0 and row["select"] > 0 and row["parameters"] == (991 if "parameters" in more else 68)


def test_exponents_of_powers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    scale: Any = importlib.import_module("scale")
    rows = [{"n": float(n), "round": 7 * n**1.5, "run_mib": 3 * n**0.5} for n in (1, 10, 100, 1000)]
    found = scale.fits(rows)
    assert found["round"] == pytest.approx(1.5) and found["run_mib"] == pytest.approx(0.5) and found["from"] == 10
    assert found["run_bytes_each"] == pytest.approx(3 * (1000**0.5 - 10**0.5) * 2**20 / 990)


def test_a_run_over_many_made_clients_is_measured(script: Script) -> None:
    row = json.loads(script("million", "--clients 500 --cohort 10 --rounds 3")[-1])
    assert row["visits"] == 30 and row["clients"] == row["distinct"] == 500


# -- for a GPU -----------------------------------------------------------------------------------------------


def test_the_rounds_for_a_gpu_are_measured_on_a_processor(script: Script) -> None:
    said = script("gpu", "--device cpu --models logistic --clients 2 --steps 1 --batch 2 --seconds 0 --profile")
    row = json.loads(said[1])
    assert row["ms"].keys() == {"ours", "plain", "limit"} and row["apart"] < 1e-6 and "aten::" in "".join(said)


def test_steps_of_a_stack_are_measured_on_a_processor(script: Script) -> None:
    said = script("steps", "--device cpu --small --cases 60x10-small --rows 2")
    ways = [line for line in said if "ms a step (" in line]
    assert len(ways) == 6 and all("the same bits" in line for line in ways) and "aten::" in "".join(said)


@pytest.mark.skipif("POLYCENTRIC_DATA" not in os.environ, reason="unipen62 is found through POLYCENTRIC_DATA")
def test_fesem_over_a_few_writers_is_measured(script: Script) -> None:
    said = script("fesem_writers", "--device cpu --model logistic --writers 5 --most 8 --seconds 0")
    row = json.loads(said[-1])
    assert row["ms"].keys() == {"ours", "learning", "limit"} and "5 writers, 40 examples" in row["work"]


# -- peers: in processes of their own --------------------------------------------------------------------------


@pytest.fixture
def peers(script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Peers:
    """Ours in this process, which is not pinned to a core; its exit code, and the lines it prints."""

    def compared(words: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: None, raising=False)
        small = "--models logistic --clients 2 --steps 2 --batch 2 --repeats 1 --executors looped"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # its pipes are closed by its end, which is not ours
            with pytest.raises(SystemExit) as end:
                script("peers", f"{small} {words}")
            code = int(end.value.code or 0)
            del end
            gc.collect()
        return code, capsys.readouterr().out.splitlines()

    return compared


def test_a_peer_takes_turns_and_ends_with_our_model_and_who_is_not_there_is_passed_over(peers: Peers) -> None:
    code, (first, *rows) = peers("--peers flower loop --python-flower false")
    assert code == 0
    ours, theirs = map(json.loads, rows)
    assert first.startswith("flower is not installed")
    assert ours["who"] == "polycentric" and ours["plain"] > 0 and theirs["who"] == "loop"
    assert theirs["apart"] < 1e-6 and theirs["seconds"] > 0 and theirs["times_ours"] > 0


def test_a_peer_that_does_other_work_is_an_error(peers: Peers, tmp_path: Path) -> None:
    hindered = "    import torch\n    torch.optim.SGD.step = lambda self, closure=None: None\n"
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nif 'on_loop.py' in str(sys.orig_argv):\n{hindered}")
    code, said = peers(f"--peers loop --path-loop {tmp_path}")
    assert code == 1 and "not the same work" in "".join(said)


def test_many_clients_are_timed(script: Script) -> None:
    (line,) = script("many", "fesem 24 k=2 warm_up=1")
    assert line.startswith("fesem, 24 clients: ") and "MiB" in line


# -- whole jobs ------------------------------------------------------------------------------------------------


def test_a_whole_job_is_timed_and_who_is_not_there_is_passed_over(tmp_path: Path) -> None:
    """On digits in the place of MNIST, which says nothing about accuracy: too few rounds, and too few examples."""
    pool = find("digits")
    test = np.arange(len(pool.y)) % 5 == 0
    np.savez(tmp_path / "mnist.npz", x=(16 * pool.x[:, 0]).byte().numpy(), y=pool.y.byte().numpy(), test=test)
    words = f"--jobs mnist --ways ours-same plain pfl --rounds 2 --repeats 1 --peers {tmp_path} --json"
    command = [sys.executable, str(ROOT / "benchmarks" / "end_to_end.py"), *words.split(), str(tmp_path / "f.json")]
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"POLYCENTRIC_DATA": str(tmp_path), "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    found = json.loads((tmp_path / "f.json").read_text())["mnist"]
    assert set(found["ways"]) == {"ours-same", "plain"}, done.stderr
    assert all(rows[0]["seconds"] > 0 and rows[0]["processor"] > 0 for rows in found["ways"].values())
    assert found["phases"]["phases"]["rounds"] > 0 and "| plain" in done.stdout
    assert "pfl is not installed" in done.stdout
    apart = abs(found["ways"]["plain"][0]["accuracy"] - found["ways"]["ours-same"][0]["accuracy"])
    assert done.returncode == (apart > 0.015) and ("not the same job" in done.stderr) == (apart > 0.015)
