"""A whole job from the command line to the printed result, start-up included, in ours and in others.

    python benchmarks/end_to_end.py --peers peers            # docs/speed.md says how to make the environments in peers/
    python benchmarks/end_to_end.py --jobs mnist --ways ours plain --rounds 10 --repeats 1           # a quick look
    python benchmarks/end_to_end.py --phases                 # where the time of ours goes, nothing else

    mnist        FedAvg as McMahan et al. (AISTATS 2017) have it: MNIST dealt IID to 100 clients, 10 of them a round,
                 their 2NN 784-200-200-10, batches of 10, one epoch, lr 0.1; 100 rounds, and every 5 rounds the
                 accuracy on all 10,000 test images
    unipen62     FeSEM with 4 centers over the 317 writers of unipen62, all in every round, MLP 784-128-62, batches of
                 20, one epoch, lr 0.1; 20 rounds, and every 5 the accuracy of everybody's center on its test examples.
                 The peers have no FeSEM: ours runs against plain PyTorch only

What is timed are processes, by the clock from their start to their end, and by the processor's time of them and of all
whom they start. So whatever a user waits for is in it: imports, reading the data, compiling, the rounds, the
evaluations, shutting down. The ways take turns; the fastest of the repeats counts, and the slowest is told.

    ours           the command as one types it, with its defaults: it also fine-tunes every client at the end, writes a
                   folder that `resume` and `report` read, and computes more scores than accuracy
    ours-same      the same without fine-tuning (`--fine-tune 0`): the work that everybody does
    ours-one       the same by one worker (`--workers 1`); the others have one for each core, by default
    plain, pfl, fedjax, flower    `benchmarks/peer/job_*.py`: what one writes with that library and its own sampler,
                   server loop and evaluation

All read the same data file, the same partition (indices that ours has drawn) and the same first model; who takes part
and in which order a client takes its examples is drawn by each. So accuracies differ a little: by more than 1.5 points
is an error (exit 1). Everybody may use all cores and sets its threads as it does by default: OMP_NUM_THREADS and the
like are taken out of the surroundings. Nobody downloads anything. Who is not installed is passed over with a sentence.
POLYCENTRIC_DATA says where mnist.npz and unipen62.npz are.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NEAR = 0.015  # the accuracies of the same job
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PEERS = {"pfl": "pfl", "fedjax": "fedjax", "flower": "flwr"}  # and the module that must be there
THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Job:
    """What everybody does."""

    data: str
    method: str
    model: str
    hidden: tuple[int, ...]
    partition: str
    clients: int | None
    cohort: int  # 0: all
    rounds: int
    batch: int
    more: dict[str, int] = field(default_factory=dict)
    lr: float = 0.1
    evaluate_every: int = 5
    seed: int = 0
    ways: tuple[str, ...] = ("plain", "pfl", "fedjax", "flower")

    @property
    def command(self) -> list[str]:
        """What a user types after `polycentric`."""
        words = ["run", self.method, "--data", self.data, "--model", self.model, "--rounds", str(self.rounds)]
        if self.clients is not None:
            words += ["--partition", self.partition, "--clients", str(self.clients)]
        settings: dict[str, Any] = {"lr": self.lr, "batch": self.batch, "epochs": 1}
        settings |= (
            {"k": self.more["centers"], "match": "distance", "warm_up": self.more["warm_up"]} if self.more else {}
        )
        words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        words += ["--set", f"select=uniform(n={self.cohort})"] if self.cohort else []
        return [*words, "--evaluate-every", str(self.evaluate_every), "--json"]


JOBS = {
    "mnist": Job("mnist", "fedavg", "2nn", (200, 200), "iid", 100, 10, 100, 10),
    "unipen62": Job(
        "unipen62", "fesem", "mlp", (128,), "natural", None, 0, 20, 20, {"centers": 4, "warm_up": 2}, ways=("plain",)
    ),
}
OURS = {"ours": [], "ours-same": ["--fine-tune", "0"], "ours-one": ["--fine-tune", "0", "--workers", "1"]}
WAYS = (*OURS, "plain", *PEERS)


def write(job: Job, folder: Path) -> None:
    """The partition as indices into the data file, and the first model: those of our run."""
    import numpy as np
    import torch

    from polycentric import load
    from polycentric.data.sources import find, located
    from polycentric.tasks.task import Task

    pool, path = find(job.data), located(job.data)
    assert path is not None
    numbered = replace(pool, x=torch.arange(len(pool.y), dtype=torch.float64)[:, None])  # every example is its number
    federation = load(pool, job.partition, clients=job.clients, seed=job.seed)
    parts = load(numbered, job.partition, clients=job.clients, seed=job.seed)
    arrays: dict[str, Any] = {}
    for name, before in (("train", ""), ("test", "test_")):
        index = getattr(parts, name).x[:, 0].long()
        assert torch.equal(pool.x[index], getattr(federation, name).x), "the examples depend on more than their number"
        arrays |= {name: index.numpy(), f"{before}offset": getattr(federation, name).offset.numpy()}
    module = Task.of(federation, job.model, device=torch.device("cpu"), seed=job.seed).module
    arrays |= {f"start/{name}": value.detach().numpy() for name, value in module.named_parameters()}
    np.savez(folder / "job.npz", **arrays)
    told = {
        "data": str(path.resolve()),
        "method": job.method,
        "hidden": job.hidden,
        "classes": federation.n_outputs,
        "rounds": job.rounds,
        "cohort": job.cohort,
        "batch": job.batch,
        "lr": job.lr,
        "evaluate_every": job.evaluate_every,
        "seed": job.seed,
        "cores": CORES,
        **job.more,
    }
    (folder / "job.json").write_text(json.dumps(told))


# -- a process and all whom it starts ------------------------------------------------------------------------


class Failed(Exception):
    """A way did not do the job."""


def adopt() -> None:
    """Let orphans of our processes become our children, so that none of them is left over."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def below(root: int) -> dict[int, float]:
    """All processes that one has started, whoever is between, with the processor's seconds of each; Linux only."""
    parent, used = dict[int, int](), dict[int, float]()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(entry.parent.name)
        parent[pid], used[pid] = int(words[1]), (int(words[11]) + int(words[12])) / TICKS

    def descends(pid: int) -> bool:
        while pid in parent and pid != root:
            pid = parent[pid]
        return pid == root

    return {pid: used[pid] for pid in parent if pid != root and descends(pid)}


def timed(words: list[str], folder: Path, environment: dict[str, str], limit: float) -> dict[str, Any]:
    """One process from its start to its end, and the last line that it printed."""
    seen: dict[int, float] = {}
    with (folder / "out.txt").open("w+") as out, (folder / "errors.txt").open("w+") as errors:
        began = time.perf_counter()
        environment = environment | {"END_TO_END_BEGAN": repr(time.time())}
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=out, stderr=errors)
        late, waited, looked = False, 0, began
        while not waited:
            waited, status, spent = os.wait4(process.pid, os.WNOHANG)
            now = time.perf_counter()
            if not waited and now - looked > 0.5:  # seldom: looking takes time, too
                looked = now
                seen |= below(os.getpid())
            if not waited and now - began > limit and not late:
                late = True
                process.kill()
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        left = tidy(seen)
        others = sum(used for pid, used in seen.items() if pid != process.pid)
        out.seek(0)
        errors.seek(0)
        said, trouble = out.read().strip().splitlines(), errors.read()
    if late:
        raise Failed(f"did not end within {limit:.0f} s and was stopped\n{trouble[-2000:]}")
    if process.returncode or not said:
        raise Failed(f"ended with {process.returncode}\n{trouble[-3000:]}")
    own = spent.ru_utime + spent.ru_stime  # of it, and of those it has waited for
    alone = not others
    return {"seconds": seconds, "processor": own if alone else max(own, seen.get(process.pid, 0.0) + others),
            "left_over": left, "said": json.loads(said[-1]), "trouble": trouble}  # fmt: skip


def tidy(seen: dict[int, float]) -> int:
    """End whom a process has left behind, and wait for them; how many there were after a second."""
    deadline = time.perf_counter() + 1.0
    while (rest := below(os.getpid())) and time.perf_counter() < deadline:
        seen |= rest
        reap()
        time.sleep(0.02)
    left = below(os.getpid())
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    while left and below(os.getpid()):
        reap()
        time.sleep(0.02)
    return len(left)


def reap() -> None:
    """Wait for children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


# -- the ways ------------------------------------------------------------------------------------------------


def surroundings() -> dict[str, str]:
    """Ours without anything that sets threads; peers find their scripts' neighbours beside them."""
    kept = {name: value for name, value in os.environ.items() if name not in {f"{t}_NUM_THREADS" for t in THREADS}}
    paths = [str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    data = os.pathsep.join(str(Path(place).resolve()) for place in kept["POLYCENTRIC_DATA"].split(os.pathsep))
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return kept | quiet | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "POLYCENTRIC_DATA": data}


def words_of(way: str, job: Job, folder: Path, pythons: dict[str, str]) -> list[str]:
    """How a way is started."""
    if way in OURS:
        return [sys.executable, "-m", "polycentric", *job.command, *OURS[way]]
    return [pythons.get(way, sys.executable), str(HERE / "peer" / f"job_{way}.py"), str(folder)]


def once(way: str, job: Job, folder: Path, pythons: dict[str, str], limit: float) -> dict[str, Any]:
    """A way does the job; what it took, and what came out."""
    with tempfile.TemporaryDirectory() as place:
        environment = surroundings()
        if way not in OURS:  # on its path are its own packages and its neighbours, nothing of ours
            environment["PYTHONPATH"] = str(HERE / "peer")
        found = timed(words_of(way, job, folder, pythons), Path(place), environment, limit)
    said, trouble = found.pop("said"), found.pop("trouble")
    if way in OURS:
        accuracy, more = said["metrics"]["micro_accuracy"], {"rounds_and_evaluation": said["seconds"]}
        return found | {"accuracy": accuracy, "phases": more, "executor": said["executor"]}
    del trouble
    return found | said


def table(job: Job, found: dict[str, list[dict[str, Any]]]) -> str:
    """The fastest of each, in Markdown."""
    base = min((row["seconds"], row["processor"]) for row in found["ours"]) if "ours" in found else None
    lines = ["| way | seconds | slowest | CPU seconds | times ours | CPU, times ours | accuracy |", "|---" * 7 + "|"]
    for way, rows in found.items():
        best = min(rows, key=lambda row: row["seconds"])
        wall, used = best["seconds"], min(row["processor"] for row in rows)
        ratios = (f"{wall / base[0]:.2f}", f"{used / min(r['processor'] for r in found['ours']):.2f}") if base else "--"
        name = f"{way} {best['version']}" if "version" in best else way
        slowest = max(row["seconds"] for row in rows)
        cells = [name, f"{wall:.1f}", f"{slowest:.1f}", f"{used:.1f}", *ratios, f"{best['accuracy']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    absent = [peer for peer in PEERS if peer not in job.ways]
    note = f"\n{', '.join(absent)}: no {job.method} there, so none of them is in this table" if absent else ""
    return "\n".join(lines) + note


def told_apart(job: Job, environment: dict[str, str], extra: list[str], limit: float) -> dict[str, Any]:
    """Where the time of ours goes, by timers around it (`peer/job_ours.py`)."""
    with tempfile.TemporaryDirectory() as place:
        words = [sys.executable, str(HERE / "peer" / "job_ours.py"), *job.command, *extra]
        found = timed(words, Path(place), environment, limit)
    phases = json.loads(found["trouble"].strip().splitlines()[-1])
    phases["shut-down"] = found["seconds"] - sum(phases.values())
    return {"seconds": found["seconds"], "processor": found["processor"], "phases": phases}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def there(python: str, module: str) -> bool:
    if not Path(python).exists():
        return False
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    return subprocess.run([python, "-c", probe], check=False).returncode == 0


def measured(
    name: str, job: Job, ways: list[str], asked: argparse.Namespace, pythons: dict[str, str]
) -> dict[str, Any]:
    """All ways of one job in turns."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as held:
        write(job, Path(held))
        for turn in range(asked.repeats):
            for way in [way for way in ways if way in found]:
                try:
                    row = once(way, job, Path(held), pythons, asked.limit)
                except Failed as error:
                    problems.append(f"{name}: {way} {error}")
                    say(problems[-1])
                    found.pop(way)
                    continue
                found[way].append(row)
                left = f", {row['left_over']} processes left over and ended" if row["left_over"] else ""
                say(f"{name} {turn + 1}/{asked.repeats} {way}: {row['seconds']:.1f} s, processor "
                    f"{row['processor']:.1f} s, accuracy {row['accuracy']:.4f}{left}")  # fmt: skip
    shown = table(job, found) if found else ""
    if shown:
        print(f"\n{name}: polycentric {' '.join(job.command)}\n\n{shown}", flush=True)
    ours = next((rows[0]["accuracy"] for way, rows in found.items() if way in OURS and rows), None)
    for way, rows in found.items():
        far = [row["accuracy"] for row in rows if ours is not None and abs(row["accuracy"] - ours) > NEAR]
        if far:
            problems.append(f"{name}: {way} ends at accuracy {far[0]:.4f} and ours at {ours:.4f}: not the same job")
            say(problems[-1])
    phases = {}
    if any(way in OURS for way in ways):
        phases = told_apart(job, surroundings(), [], asked.limit)
        print("\nours, by phases: " + ", ".join(f"{k} {v:.2f} s" for k, v in phases["phases"].items()), flush=True)
    return {"command": job.command, "ways": found, "phases": phases, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--rounds", type=int, help="instead of the job's")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which a process is stopped")
    parser.add_argument("--phases", action="store_true", help="only where the time of ours goes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument("--peers", type=Path, default=HERE.parent / "peers", help="the folder of their environments")
    asked = parser.parse_args()
    if not os.environ.get("POLYCENTRIC_DATA"):
        sys.exit("set POLYCENTRIC_DATA to the folder that holds mnist.npz and unipen62.npz")
    adopt()
    pythons = {peer: str(asked.peers.resolve() / peer / "bin" / "python") for peer in PEERS}
    ways = [way for way in asked.ways if way not in PEERS or there(pythons[way], PEERS[way])]
    for way in asked.ways:
        if way not in ways:
            print(f"{way} is not installed in {asked.peers / way} and was passed over: `make peers/.made` installs it")
    results: dict[str, Any] = {"cores": CORES, "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    for name in asked.jobs:
        job = JOBS[name] if asked.rounds is None else replace(JOBS[name], rounds=asked.rounds)
        can = [] if asked.phases else [way for way in ways if way in OURS or way in job.ways]
        if asked.phases:
            results[name] = told_apart(job, surroundings(), [], asked.limit) | {"problems": []}
            parts = results[name]["phases"]
            print(f"{name}: " + ", ".join(f"{k} {v:.2f} s" for k, v in parts.items()), flush=True)
        else:
            results[name] = measured(name, job, can, asked, pythons)
        if asked.json:
            asked.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(any(results[name]["problems"] for name in asked.jobs))


if __name__ == "__main__":
    main()
