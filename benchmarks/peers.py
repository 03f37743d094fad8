"""The same round in other simulators: the same first model, clients and batches, in float32 on the same cores.

    python benchmarks/peers.py --python-pfl peers/pfl/bin/python --python-fedjax peers/fedjax/bin/python \\
        --python-flower peers/flower/bin/python                  # docs/speed.md says how to make the three environments
    python benchmarks/peers.py --peers pfl --device cuda         # in this interpreter, where pfl is installed beside us

Every peer runs in an interpreter of its own (`benchmarks/peer/on_*.py`) and does a round when it is asked, in turns
with ours, so that whatever else the machine does meets both; the fastest of each counts, by the clock and, where a
process works alone, also by the processor's time, which a busy machine distorts less. Start-up and the first round,
in which some compile, are told apart. All read the batches of our first round in our order, so a peer must end that
round with our model: `apart` is the largest difference of a parameter, more than 1e-4 is an error (exit 1). On a GPU
convolutions round their factors to TF32, each library in its own order: there more than 1e-3 is.

On the processor everything is pinned to the first `--cores` cores, Flower's actors included. Who is not installed is
passed over with a sentence. `--peers loop` is a plain loop in a process of its own, to see what measuring adds. Ours is
a round as `polycentric bench` has it: no evaluation, nothing written; nor do the peers evaluate.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polycentric.learn import BatchSchedule, Train
from polycentric.runs.bench import LR, WORK, Race, federation, measure, near
from polycentric.runs.machine import device_of, keep_freed_memory
from polycentric.tasks.task import Task

HERE = Path(__file__).resolve().parent
PEERS = {"pfl": "pfl", "fedjax": "fedjax", "flower": "flwr", "loop": "torch"}  # and the module that must be there
SIZES = {  # clients, steps: on the processor, on a GPU
    "mlp": ((100, 3), (100, 10)),
    "femnist-cnn": ((32, 5), (100, 10)),
    "mnist-cnn": ((32, 5), (100, 10)),
    "logistic": ((100, 3), (100, 10)),
}
CLASSES = {"mnist-cnn": 62}  # so that it is 5x5x32-5x5x64-512-62


def race_of(model: str, clients: int | None, steps: int | None, batch: int, device: torch.device) -> Race:
    """The work, with as many clients and steps as the model's target has where nothing else is asked."""
    work = dataclasses.replace(WORK[model], classes=CLASSES.get(model, WORK[model].classes))
    usual = SIZES.get(model, ((work.clients, 3), (100, 10)))[device.type == "cuda"]
    steps = steps or usual[1]
    data = federation(work, clients or usual[0], steps * batch).to(device)
    return Race(work, Task.of(data, model, device=device), data, steps, batch)


def write_work(race: Race, folder: Path, cores: int) -> None:
    """The clients' examples in the order of our first round's batches, and the first model."""
    data, everyone = race.federation.train, race.ours("looped")[1].everyone(0)
    index = BatchSchedule(data, everyone, Train(**race.settings).plan(everyone)).index  # (steps, clients, batch)
    order = index.transpose(0, 1).flatten(1).cpu()
    start = {f"start/{name}": value.detach().cpu().numpy() for name, value in race.task.module.named_parameters()}
    np.savez(folder / "work.npz", x=data.x.cpu()[order].numpy(), y=data.y.cpu()[order].numpy(), **start)
    told = {
        "model": race.work.model,
        "shape": race.work.shape,
        "classes": race.work.classes,
        "batch": race.batch,
        "lr": LR,
        "device": str(race.task.device),
        "cores": cores,
        "tf32": {"products": torch.backends.cuda.matmul.allow_tf32, "convolutions": torch.backends.cudnn.allow_tf32},
    }
    (folder / "work.json").write_text(json.dumps(told))


class Failed(Exception):
    """A peer did not do the work."""


class Peer:
    """Another simulator in a process of its own."""

    def __init__(self, name: str, python: str, path: str, folder: Path) -> None:
        self.name, self.folder, self.log = name, folder, folder / f"{name}.txt"
        self.began = time.perf_counter()
        one = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
        self.process = subprocess.Popen(
            [python, str(HERE / "peer" / f"on_{name}.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
            env=surroundings(path) | one,
        )

    def round(self) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise Failed(f"{self.name} ended early:\n{self.log.read_text()[-3000:]}")
        return dict(json.loads(answer))

    def answer(self) -> dict[str, Tensor]:
        with np.load(self.folder / "answer.npz") as held:
            return {name: torch.as_tensor(held[name]) for name in held.files}

    def end(self) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.terminate()


def surroundings(path: str) -> dict[str, str]:
    """The environment of a peer's process: its packages first, then our models and whatever is on our path."""
    ours = [str(HERE.parent / "src"), str(HERE / "peer"), os.environ.get("PYTHONPATH", "")]
    whole = os.pathsep.join(filter(None, [path, *ours]))
    return os.environ | {"PYTHONPATH": whole, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # the GPU is shared with ours


def is_there(name: str, python: str, path: str) -> bool:
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{PEERS[name]}') is None)"
    return subprocess.run([python, "-c", probe], env=surroundings(path), check=False).returncode == 0


def timed(way: Callable[[], object], device: torch.device) -> dict[str, float]:
    began, used = time.perf_counter(), time.process_time()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - began, "processor": time.process_time() - used}


def compare(race: Race, way: Callable[[], Tensor], peer: Peer, repeats: int) -> dict[str, Any]:
    """A peer in turns with ours."""
    first = peer.round()
    start_up = time.perf_counter() - peer.began - first["seconds"]
    mine, theirs = way().flatten(), race.task.layouts["model"].row(peer.answer())
    apart = float((mine.cpu() - theirs.flatten()).abs().max())
    if apart > near(race.task):
        said = peer.log.read_text()[-3000:]
        raise Failed(f"{peer.name} ends its first round {apart:.2g} from our model: not the same work\n{said}")
    turns = [(timed(way, race.task.device), peer.round()) for _ in range(repeats)]
    ours = {what: min(mine[what] for mine, _ in turns) for what in ("seconds", "processor")}
    theirs = {what: min(row[what] for _, row in turns) for what in ("seconds", "processor")}
    found = {
        "who": peer.name,
        "version": first["version"],
        "seconds": theirs["seconds"],
        "ours_meanwhile": ours["seconds"],
        "times_ours": theirs["seconds"] / ours["seconds"],
        "first_round_more": first["seconds"] - theirs["seconds"],  # where it compiles, that is it
        "start_up_seconds": start_up,
        "apart": apart,
    }
    if race.task.device.type == "cpu" and peer.name != "flower":  # which works in several processes
        found["processor_times_ours"] = theirs["processor"] / ours["processor"]
    return found


def shown(row: dict[str, Any]) -> None:
    print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["mlp", "femnist-cnn"], choices=SIZES)
    parser.add_argument("--clients", type=int, help="by default those of the model's target")
    parser.add_argument("--steps", type=int, help="the same")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--executors", nargs="*", help="of ours; by default those worth comparing for the model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cores", type=int, default=1, help="cores of the processor that everybody is pinned to")
    parser.add_argument("--peers", nargs="*", default=["pfl", "fedjax", "flower"], choices=PEERS)
    for name in PEERS:
        parser.add_argument(f"--python-{name}", default=sys.executable, help=f"the interpreter that has {name}")
        parser.add_argument(f"--path-{name}", default="", help=f"a folder of packages for {name} alone")
    asked = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    device = device_of(asked.device)
    if device.type == "cpu" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])
    there, failed = [], False
    for name in asked.peers:
        where = getattr(asked, f"python_{name}"), getattr(asked, f"path_{name}")
        if is_there(name, *where):
            there.append((name, where))
        else:
            print(f"{name} is not installed here and was passed over; docs/speed.md says how to make room for it")
    for model in asked.models:
        race = race_of(model, asked.clients, asked.steps, asked.batch, device)
        ours = measure(race, asked.executors, asked.repeats)
        ways = {name: value for name, value in ours["seconds"].items() if name not in ("plain", "limit")}
        best = min(ways, key=lambda name: ways[name])
        work = f"{race.federation.n_clients} x {race.steps} x {race.batch}"
        shown({"who": "polycentric", "model": model, "work": work, "device": ours["device"], "fastest": best}
              | ours["seconds"] | {"first_round_more": ours["first_seconds"][best] - ways[best]})  # fmt: skip
        way, _ = race.ours(best)
        way()
        for name, where in there:
            with tempfile.TemporaryDirectory() as folder:
                write_work(race, Path(folder), asked.cores)
                peer = Peer(name, *where, Path(folder))
                try:
                    shown({"model": model, "work": work, **compare(race, way, peer, asked.repeats)})
                except Failed as error:
                    print(error, flush=True)
                    failed = True
                finally:
                    peer.end()
    sys.exit(failed)


if __name__ == "__main__":
    main()
