"""Every method, really deployed: are its bits those of a simulation in blocks of one?

    python tests/reliability/equal.py 33            every method, and some in another shape
    python tests/reliability/equal.py 33 --only 4   one of them

A server and four nodes as processes of their own, with keys and TLS, on this machine; three rounds, scores after each.
Compared are the digests of all that travelled, tensor by tensor, the centers, what the center remembers, and scores.
Noise is a secret in a deployment, so methods that draw it run without.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from polycentric import load, run as simulate
from polycentric.deploy.engine.children import free_port
from polycentric.deploy.engine.link import Link
from polycentric.deploy.first_look import make_keys, nodes_beside
from polycentric.deploy.serve import Waiting, serve
from polycentric.methods import METHODS
from polycentric.runs.loop import Run
from polycentric.runs.record import verify
from polycentric.runs.settings import Settings
from reliability.forked import counted

NODES, ROUNDS = 4, 3
NAMES = [f"ward-{k}" for k in range(NODES)]
DATA: dict[str, Any] = {"data": "digits", "partition": "dirichlet=0.5+sample=300", "clients": NODES}
CELLS = "regions(0:1 1:1 0+1:2)"
OWN: dict[str, dict[str, Any]] = {  # what a method needs, or has in another shape
    "feddane": {"lr": 0.01},
    "meta": {"rounds": 2, "steps": 3},
    "fesem": {"k": 2, "every": 2},
    "fesem, by distance": {"k": 2, "match": "distance"},
    "fesem, by loss": {"k": 2, "match": "loss"},
    "lg-fedavg, warmed up": {"warm_up": 2, "local_lr": 0.04},
    "fedmes": {"cells": CELLS},
    "fedmes, two models": {"cells": CELLS, "models": 2},
    "fedmes, walkers": {"cells": "map(edges=4, speed=0.2)"},
    "hierarchical": {"cells": CELLS, "every": 2},
    "gate": {"hide": "dp-sgd(clip=1, noise=0)"},
    "dp-fedavg": {"select": "churn(away=0)", "clip": 1.0, "noise": 0.0},
    "dp-fed-ls": {"select": "churn(away=0)", "clip": 1.0, "noise": 0.0},
    "cfl": {"t_min": 1, "eps1": 1.0, "eps2": 0.0, "gap": -1.0},
    "fedavg, some": {"select": "uniform(n=2)"},
}
ALL = [*METHODS, *(name for name in OWN if name not in METHODS)]


def asked(name: str) -> dict[str, Any]:
    """The settings of a run, but for its data."""
    method = name.partition(",")[0]
    own = {"lr": 0.05} | OWN.get(name, {})
    model = "logistic" if method == "mocha" else "mlp"
    own = {key: value for key, value in own.items() if key != "lr" or method != "mocha"}
    return {"method": method, "model": model, "rounds": ROUNDS, "fine_tune": 1, "evaluate_every": 1, "set": own}


def difference(served: Run, plain: Run) -> str:
    """The first thing that is not the same; empty: nothing."""
    assert served.folder is not None and plain.folder is not None
    found = verify(served.folder.path, plain.folder.path)
    if found.difference is not None:
        return f"{found.difference.tensor} of {found.difference.what} in round {found.difference.round}"
    if found.rounds != ROUNDS or found.compared < ROUNDS:
        return f"{found.compared} tensors of {found.rounds} rounds"
    for part in ("centers", "memory"):
        mine, other = getattr(served.state, part), getattr(plain.state, part)
        if mine.keys() != other.keys():
            return f"other names in {part}"
        moved = [name for name in mine if not torch.equal(mine[name].cpu(), other[name].cpu())]
        if moved:
            return f"{part}/{moved[0]}"
    for what in served.scores.keys() | plain.scores.keys():
        if served.scores[what].accuracy.tolist() != plain.scores[what].accuracy.tolist():
            return f"accuracies {what}"
    return ""


def equal(n: int, seed: int = 0, jobs: int = 1, only: int | None = None) -> dict[str, Any]:
    """How many of the first n methods differ."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="equal-"))
    bad, tensors, told = list[dict[str, str]](), 0, list[str]()
    names = ALL[:n] if only is None else [ALL[only]]
    torch.set_num_threads(1)
    try:
        keys, public = make_keys(root, NAMES)
        port, data = free_port(), load(DATA["data"], DATA["partition"], clients=NODES)
        with (
            warnings.catch_warnings(),
            Link(root / "engine", port=port, keys=keys, nodes=public, log=told.append) as link,
            nodes_beside(root, Settings.of({"method": "fedavg", **DATA}), NAMES, port, trust=False),
        ):
            warnings.simplefilter("ignore")
            for number, name in enumerate(names):
                words, out = asked(name), root / f"served-{number}"
                try:
                    served = serve(Settings.of(words), link, out, Waiting(NODES, deadline=60), names=NAMES)
                    method, how = words.pop("method"), {"executor": "looped", "block": 1, "record": True}
                    plain = simulate(method, data, out=root / f"plain-{number}", **how, **words)
                    wrong = difference(served, plain)
                    tensors += verify(out, root / f"plain-{number}").compared
                except Exception as error:
                    wrong = f"{type(error).__name__}: {error}"
                told.append(f"{name}: {wrong or 'equal'}")
                if wrong:
                    again = f"python tests/reliability/equal.py 1 --only {ALL.index(name)}"
                    bad.append({"name": name, "wrong": wrong, "again": again})
    finally:
        shutil.rmtree(root, ignore_errors=True)
    found = {"of": len(names), "bad": bad, "tensors": tensors, "seconds": round(time.monotonic() - began, 1)}
    return found | ({"told": told} if only is not None else {})


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    same = found["of"] - len(found["bad"])
    return (
        f"{same} of {found['of']} methods and shapes are equal, {found['tensors']:,} tensors; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(counted(equal, "methods", 1, told))
