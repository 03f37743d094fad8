"""Runs that the tests of a page look at: three ways of learning, three seeds each, on small pictures of two kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polycentric as pc
from polycentric.runs.settings import Settings

WAYS = ("nofed", "fedavg", "fesem(k=2)")


def save_pictures(path: Path, clients: int = 8, each: int = 18) -> Path:
    """Pictures of three bars; half of the clients see them lying."""
    draw = np.random.default_rng(0)
    client, n = np.repeat(np.arange(clients), each), clients * each
    y, kind = draw.integers(0, 3, n), client % 2
    x = draw.integers(0, 170, (n, 4, 4))
    for k in range(n):
        x[k, y[k], :] += 70 * (kind[k] == 0)
        x[k, :, y[k]] += 70 * (kind[k] == 1)
    names = {"classes": np.array(["a", "b", "c"]), "group_names": np.array(["standing", "lying"])}
    clients_ = {"client": client, "client_names": np.array([f"site {k}" for k in range(clients)]), "group": kind}
    np.savez(path, x=x.astype(np.uint8), y=y, test=np.arange(n) % 3 == 0, **names, **clients_)
    return path


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder of runs, and what `compare` says of them."""
    folder = tmp_path_factory.mktemp("page")
    data = str(save_pictures(folder / "bars.npz"))
    how: dict[str, Any] = {"rounds": 4, "model": "logistic", "device": "cpu", "executor": "looped", "sketch": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        rows = pc.compare(WAYS, data, seeds=3, out=folder / "runs", set={"lr": 0.3}, **how)
    return folder, rows


@pytest.fixture(scope="session")
def page(compared: tuple[Path, list[dict[str, Any]]]) -> Path:
    """Their report; the reference is nofed, as in the comparison."""
    from polycentric.report.page import write_report

    folder, rows = compared
    return write_report([path for row in rows for path in row["run_dirs"]], folder / "report.html")


def forged_run(folder: Path, changed: dict[str, Any], ended: bool = True, clients: int = 4, name: str = "site") -> Path:
    """A run that never was: its files only."""
    folder.mkdir(parents=True)
    settings = Settings(method="fedavg", rounds=3).model_dump() | changed
    (folder / "config.json").write_text(json.dumps(settings))
    scores = [0.2, 0.4, 0.6, 0.8 - 0.1 * settings["seed"]]
    rows = [
        {"round": r, "bytes_up": r, "bytes_down": r, "simulated_seconds": float(r), "micro_accuracy": a}
        for r, a in enumerate(scores)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not ended:
        return folder
    lines = [f'"{name} {k}",,9,0.1,{0.5 + 0.4 * k / clients:.4f},0.6,2,1,1,3' for k in range(clients)]
    times = ("initial", "in_use", "personalised")
    heads = ",".join(f"{what}_{time}" for what in ("accuracy", "loss") for time in times)
    (folder / "clients.csv").write_text("\n".join([f"client,group,test_examples,{heads},took_part", *lines, ""]))
    last = {key: value for key, value in rows[-1].items() if key != "round"}
    summary = {
        "method": settings["method"],
        "seed": settings["seed"],
        "data": "digits",
        "model": "mlp",
        "clients": clients,
    }
    summary |= {"rounds": 3, "seconds": 1.0, "run_dir": str(folder), "metrics": last, "bytes_up": 3, "bytes_down": 3}
    summary |= {
        "dropped": 0,
        "stopped": None,
        "bytes_by_link": {"client_to_center": 3},
        "personalised": {"micro_accuracy": 0.6},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture(scope="session")
def forged() -> Callable[..., Path]:
    """A run's folder, made by hand: see `forged_run`."""
    return forged_run
