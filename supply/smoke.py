"""A few runs of very different methods, a checkpoint, a table and an export, where only polycentric is installed."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile

from polycentric.cli import outcome

COMMANDS = [
    "run fedavg --data digits --clients 8 --rounds 2 --out runs/a",
    "run fesem --data digits --partition rotations=2 --clients 8 --rounds 2 --set k=2 --set warm_up=1 --out runs/b",
    "run dpa-sgd --data digits --clients 6 --rounds 2 --executor looped --out runs/c",
    "run fedmes --data digits --clients 9 --rounds 2 --executor stacked --set cells=map(edges=4) --out runs/d",
    "resume runs/a --rounds 3",
    "clusters runs/b",
    "curves runs/a runs/b --out curves.png",
    "export runs/a --out models",
    "methods fesem",
]


def main() -> None:
    """Exit 1 at the first command that fails."""
    for name in ("torch", "numpy", "scipy", "scikit-learn", "networkx", "pydantic", "typer", "rich", "matplotlib"):
        print(name, importlib.metadata.version(name), end="; ")
    print(flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for command in COMMANDS:
            if code := outcome(command.split()):
                raise SystemExit(f"exit code {code}: polycentric {command}")
    print(f"{len(COMMANDS)} commands succeeded")


if __name__ == "__main__":
    main()
