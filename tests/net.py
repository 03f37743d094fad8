"""A net under a change that must not move a number: many short runs, and digests of all they leave behind.

    python tests/net.py record before.json       before the change
    python tests/net.py compare before.json      after it: every difference is named

Runs go through the command, so the net does not care how the package is built inside: every method under two executors,
every topology, what clients keep, attackers, deadlines, held-out clients, state on disk, two ranks, patience, targets,
resumed runs, compared and swept ones. A digest is taken of every tensor of the last checkpoint, of `metrics.jsonl`,
`clients.csv` and `places.csv`, of `summary.json` without what depends on time and place, and of the names that finished
runs of a grid have. Numbers are those of one machine: record and compare on the same one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

METHODS = (
    "nofed fedsgd fedavg fedprox feddane feddist feddws fedcurv reptile maml fomaml meta fesem tkm ifca cfl dpsgd "
    "matcha dpa-sgd mtl mocha gate fedmes hierarchical"
).split()
COMMON = "--data digits --partition dirichlet=0.5 --clients 12 --rounds 3 --device cpu --evaluate-every 1".split()
OWN: dict[str, list[str]] = {
    "mocha": ["--model", "logistic", "--set", "every=2"],
    "fedmes": ["--set", "cells=overlap(u=2,v=2)"],
    "hierarchical": ["--set", "cells=overlap(u=2,v=2)", "--set", "every=2"],
    "meta": ["--set", "rounds=2", "--set", "steps=3"],
    "feddane": ["--set", "lr=0.01"],
    "cfl": ["--set", "t_min=1", "--set", "eps1=1", "--set", "eps2=0", "--set", "gap=-1"],
}

# Runs beside every method under every executor: a name, and the words after `polycentric run`.
CASES: dict[str, str] = {
    "kept layers": "fedavg --set cut=private(dense*)",
    "hidden examples": "fedavg --set hide=dp-sgd(clip=1,noise=1)",
    "kept layers, fesem": "fesem --set k=2 --set select=uniform(n=6)",
    "uniform": "fedavg --set select=uniform(n=5) --set center=momentum(lr=1,beta=0.9)",
    "poisson": "fedavg --set select=poisson(rate=0.4) --set center=adam(lr=0.01)",
    "active": "fedavg --set select=active(n=5)",
    "churn": "dpsgd --set select=churn(away=0.3,rounds=3) --set graph=ring",
    "stragglers": "fedprox --set stragglers=0.5 --set epochs=3",
    "adaptive mu": "fedprox --set adaptive=true",
    "trimmed": "fedavg --set aggregate=trimmed-mean(beta=0.2) --attack sign-flip(share=0.2,scale=5)",
    "krum": "fedavg --set aggregate=krum(keep=2) --attack large-norm(share=0.2)",
    "median": "fedavg --set aggregate=median --attack same-value(share=0.2)",
    "geometric median": "fedavg --set aggregate=geometric-median --attack nan(share=0.2)",
    "label flip": "fedavg --attack label-flip(share=0.2)",
    "attacked clusters": "fesem --set k=3 --attack sign-flip(share=0.2)",
    "deadline": "fedavg --clock physical(deadline=0.3)",
    "delays": "dpsgd --clock delays(spread=0.3,jitter=0.2) --set graph=erdos-renyi(p=0.4)",
    "normalised": "fedmes --set cells=ring(edges=3,u=2,v=2) --clock normalised(t_c=5)",
    "held out": "fesem --set k=3 --held-out 0.3",
    "held out, kept": "fedavg --held-out 0.25 --set cut=private(dense*)",
    "disk": "fedcurv --state disk",
    "disk, last rows": "fesem --set k=3 --set absent=last --set select=uniform(n=6) --state disk",
    "private": "fedavg --set privacy=gaussian(clip=1,noise=0.5)",
    "private cells": "fedmes --set cells=overlap(u=2,v=2) --set privacy=gaussian(clip=1,noise=0.5)",
    "walkers": "fedmes --set cells=map(edges=4,speed=0.1)",
    "walkers, cloud": "hierarchical --set cells=map(edges=4,speed=0.1) --set every=2 --clock physical(fading=true)",
    "regions": "fedmes --set cells=regions(0:4_1:4_0+1:4)",
    "by cell": "fedmes --set cells=overlap(u=2,v=2) --set select=by-cell(n=2)",
    "by cell, active": "fedmes --set cells=overlap(u=2,v=2) --set select=by-cell(n=2,of=active(n=1))",
    "two models": "fedmes --set cells=overlap(u=2,v=2) --set models=2",
    "graphs: torus": "dpa-sgd --set graph=torus",
    "graphs: small world": "matcha --set graph=small-world(k=4,p=0.2) --set budget=0.4",
    "last layer features": "fesem --set k=3 --set features=last_layer --set match=distance --set reseed=true --set "
    "newcomers=steps",
    "optimistic": "fesem --set k=3 --optimistic --dissimilarity",
    "patience": "fedavg --valid 0.2 --patience 1 --rounds 8 --set lr=0.5",
    "target": "fedavg --target 0.3 --rounds 20",
    "no fine-tuning": "ifca --set k=3 --fine-tune 0",
    "float64": "fedavg --dtype float64 --executor stacked",
    "blocks": "fedavg --block 5 --executor stacked",
    "workers": "fedavg --block 3 --workers 2 --executor stacked",
    "convolutions": "fedavg --model mnist-cnn --clients 4 --rounds 2",
    "regression": "fedavg --data teacher --partition natural --clients 6",
    "mixture": "fesem --data mixture(3) --partition natural --clients 6 --set k=3",
    "minority": "fedavg --data minority(8,0.2) --partition natural --clients 8",
    "synthetic": "fedprox --data synthetic(0.5,0.5,clients=8) --partition natural --clients 8",
    "rotations": "fesem --partition rotations=4 --set k=4",
    "shards": "fedavg --partition shards=2",
    "classes": "fedavg --partition classes=2",
    "quantity": "fedavg --partition quantity=1.5",
    "turned": "fedavg --partition iid+rotations=2+sample=600",
    "in cells": "fedmes --partition cells(setting=c,u=2,v=2) --set cells=overlap(u=2,v=2)",
    "in cells, short": "fedavg --partition cells=b",
    "fedcurv, equal": "fedcurv --set implicit=true --set labels=model",
    "alone, too": "fedavg --alone",
    "traced": "fedavg --executor traced --clients 4 --set steps=4",
    "traced, moments": "fedprox --executor traced --clients 4 --set steps=4 --set momentum=0.9",
}

UNSTABLE = ("seconds", "run_dir")  # of a summary: what depends on time and place


def _sha(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]


def _tensors(folder: Path) -> dict[str, str]:
    """Digests of every tensor of the newest checkpoint, and of the best state where there is one."""
    from safetensors.numpy import load_file

    found = {}
    newest = sorted((folder / "checkpoints").glob("round-*.safetensors"))[-1:]
    for file in [*newest, *folder.glob("best.safetensors"), *folder.glob("splits.safetensors")]:
        for name, value in load_file(file).items():
            found[f"{file.name}:{name}"] = _sha(str((value.dtype, value.shape)).encode() + value.tobytes())
        for part in sorted(file.parent.glob(f"{file.stem}.*.bin")):
            found[part.name] = _sha(part.read_bytes())
    return found


def digests(folder: Path) -> dict[str, Any]:
    """All that a run left behind."""
    found: dict[str, Any] = _tensors(folder)
    for name in ("metrics.jsonl", "clients.csv", "places.csv", "edges.csv"):
        if (folder / name).is_file():
            found[name] = _sha((folder / name).read_bytes())
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    found["summary"] = {key: value for key, value in summary.items() if key not in UNSTABLE}
    return found


def command(*words: str, expect: int = 0) -> str:
    """A command of ours in this process; what it printed."""
    from polycentric.cli import outcome

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = outcome(list(words))
    assert code == expect, f"{' '.join(words)}: exit code {code}: {err.getvalue()[-600:]}"
    return out.getvalue()


def cast(folder: Path) -> dict[str, Any]:
    """Every run of the net, and what it left behind."""
    found: dict[str, Any] = {}

    def ran(name: str, *words: str) -> None:
        began, place = time.monotonic(), folder / f"{len(found):03d}"
        command("run", words[0], *COMMON, *words[1:], "--out", str(place), "--quiet")
        found[name] = digests(place)
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    for method in METHODS:
        for executor in ("looped", "stacked"):
            ran(f"{method}, {executor}", method, "--executor", executor, *OWN.get(method, ()))
    for name, line in CASES.items():
        ran(name, *(word.replace("_1:", " 1:").replace("_0+", " 0+") for word in line.split()))
    for method in ("fesem", "fedcurv", "fedmes", "hierarchical", "dpa-sgd", "cfl"):
        found[f"interrupted {method}"] = interrupted(folder / f"interrupted-{method}", method)
    found["two ranks"] = ranks(folder / "ranks")
    found["grids"] = grids(folder)
    return found


def interrupted(folder: Path, method: str) -> dict[str, Any]:
    """A run that loses its newest checkpoint and summary, and is resumed: the same to the bit."""
    words = [method, *COMMON, *OWN.get(method, ()), "--checkpoint-every", "1"]
    command("run", *words, "--out", str(folder), "--quiet")
    whole = digests(folder)
    (folder / "summary.json").unlink()
    for file in (folder / "checkpoints").glob("round-000003*"):
        file.unlink()
    command("resume", str(folder), "--quiet")
    again = digests(folder)
    assert again == whole, f"a resumed {method} differs: {differences(whole, again)}"
    return again


def ranks(folder: Path) -> dict[str, Any]:
    """Two ranks of one run."""
    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "polycentric",
        "run",
        "fesem",
    ]
    words += [*COMMON, "--set", "k=3", "--block", "3", "--out", str(folder), "--quiet"]
    subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=300)
    return digests(folder)


def grids(folder: Path) -> dict[str, Any]:
    """The names of finished runs of `compare` and `sweep`."""
    few = ["--data", "digits", "--clients", "6", "--rounds", "1", "--device", "cpu"]
    words = [
        "--seeds",
        "2",
        "--set",
        "mu=0.3",
        "--set",
        "k=2",
        "--attack",
        "nan(share=0.2)",
        "--clock",
        "delays(link=2)",
    ]
    command("compare", "nofed", "fedprox", "fesem", *few, *words, "--out", str(folder / "compare"), "--quiet")
    cells = folder / "cells.csv"
    cells.write_text("client,edge\n" + "".join(f"{k},{e}\n" for k in range(6) for e in {k % 2, k // 3}), "utf-8")
    here = os.getcwd()
    os.chdir(folder)  # a file's name is part of a run's
    try:
        Path("sweep.toml").write_text(
            'method = "fedmes"\ndata = "digits"\nclients = 6\nrounds = 1\ndevice = "cpu"\nfine_tune = 0\n'
            '[set]\ncells = "table(cells.csv)"\n'
            '[grid]\nseed = [0, 1]\n"set.lr" = [0.1, 0.2]\n"set.alpha_v" = [1, 1.5]\n',
            "utf-8",
        )
        command("sweep", "sweep.toml", "--out", "sweep", "--quiet")
    finally:
        os.chdir(here)
    return {
        grid: {path.name: digests(path)["metrics.jsonl"] for path in sorted((folder / grid).iterdir()) if path.is_dir()}
        for grid in ("compare", "sweep")
    }


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Every leaf in which two records differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [*one, *(key for key in other if key not in one)]
        return [line for key in keys for line in differences(one.get(key), other.get(key), f"{where} / {key}")]
    return [] if one == other else [f"{where.removeprefix(' / ')}: {str(one)[:80]} -> {str(other)[:80]}"]


def main() -> int:
    """Record, or compare with a record."""
    import torch

    torch.set_num_threads(1)
    what, path = sys.argv[1], Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        found = json.loads(json.dumps(cast(Path(folder))))
    if what == "record":
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(f"{len(found)} runs recorded in {path}")
        return 0
    wrong = differences(json.loads(path.read_text("utf-8")), found)
    print("\n".join(wrong) or f"{len(found)} runs: nothing has moved")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
