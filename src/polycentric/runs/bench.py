"""How fast is a round: against a plain PyTorch loop and against the limit, on the same work in one process.

    ours     a whole round of FedAvg: schedule, receive, learn, mix, step; once for each executor
    plain    what one writes by hand: for every client copy the module, run `torch.optim.SGD`, add up
    limit    one module trained on the same samples without client borders: no simulation of clients can be faster
             unless it computes less, since every sample goes forward and back once in either

All are timed in turns, so that whatever else the machine does meets all of them; what counts is the ratio. Data are
noise of the usual shapes. The first turn of each warms up and is left out; what it took is told apart.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..data import Federation, Split
from ..errors import require, unknown
from ..learn import BatchSchedule, Train
from ..learn.batches import rows_at
from ..methods import fedavg
from ..round import run_round
from ..simulate.auto_executor import EXECUTORS, FirstRound
from ..simulate.clients import Simulation
from ..simulate.ranks import ALONE, Ranks
from ..tasks.task import Task
from .machine import use_precision

Way = tuple[Callable[[], Tensor], Simulation]  # a round, and whom it asks
LR = 0.1
TOGETHER = 2048  # samples the limit takes in one step at most: more would only cost memory


@dataclass(frozen=True)
class Workload:
    """A model, the data it reads, and how many clients make a round of a second or so on one core."""

    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    symbols: int = 0
    executors: tuple[str, ...] = ("looped", "stacked")  # worth comparing on a CPU


WORK = {
    work.model: work
    for work in (
        Workload("mlp", (1, 28, 28), 62, 100, executors=("looped", "stacked", "traced")),
        Workload("femnist-cnn", (1, 28, 28), 62, 8),
        Workload("mnist-cnn", (1, 28, 28), 10, 4),
        Workload("char-lstm", (80,), 80, 2, symbols=80),
        Workload("vgg11", (3, 32, 32), 10, 2),
        Workload("logistic", (1, 28, 28), 62, 100, executors=("looped", "stacked", "traced")),
    )
}
USUAL = tuple(name for name in WORK if name != "logistic")


def federation(work: Workload, clients: int, examples: int) -> Federation:
    """Clients of equal size with noise for data."""
    draw, n = torch.Generator().manual_seed(0), clients * examples
    size, symbols = (n, *work.shape), work.symbols
    x = torch.randint(0, symbols, size, generator=draw) if symbols else torch.rand(size, generator=draw)
    y = torch.randint(0, work.classes, (n,), generator=draw)
    none = Split(x[:0], y[:0], torch.zeros(clients + 1, dtype=torch.int64))
    classes, names = tuple(map(str, range(work.classes))), tuple(map(str, range(clients)))
    full = Split(x, y, torch.arange(clients + 1) * examples)
    return Federation("noise", full, none, none, classes, names, symbols=work.symbols)


def plain(task: Task, data: Split, batches: Tensor) -> dict[str, Tensor]:
    """FedAvg by hand. `batches` are (steps, clients, batch) positions in the data."""
    total: dict[str, Tensor] = {}
    n = batches.shape[1]
    for client in range(n):
        module = copy.deepcopy(task.module)
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        for index in batches[:, client]:
            optimizer.zero_grad()
            cross_entropy(module(data.x[index]), data.y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for name, value in module.state_dict().items():
            total[name] = total.get(name, 0) + value / n
    return total


def limit(task: Task, data: Split, batches: Tensor) -> None:
    """One module on the same samples, gathered as ours are, in as many large steps as memory asks for."""
    module = copy.deepcopy(task.module)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for together in batches.flatten(1):
        for index in together.split(TOGETHER):
            optimizer.zero_grad()
            cross_entropy(module(rows_at(data.x, index)), data.y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@dataclass(frozen=True, eq=False)
class Race:
    """The same work, ready to be done in several ways."""

    work: Workload
    task: Task
    federation: Federation
    steps: int
    batch: int

    @staticmethod
    def of(
        model: str,
        clients: int | None = None,
        steps: int = 3,
        batch: int = 20,
        device: str | torch.device = "cpu",
        precision: str = "float32",
    ) -> Race:
        """Noise for a model of the catalogue of `WORK`."""
        if model not in WORK:
            raise unknown("model to measure", model, WORK)
        work = WORK[model]
        for name, value in (("clients", clients), ("steps", steps), ("batch", batch)):
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}")
        data = federation(work, clients or work.clients, steps * batch).to(device)
        use_precision(precision, torch.device(device), "float32")
        return Race(work, Task.of(data, model, device=device, precision=precision), data, steps, batch)

    @property
    def settings(self) -> dict[str, Any]:
        """Of the clients' training."""
        return {"lr": LR, "batch": self.batch, "epochs": 1}

    def ours(self, executor: str, workers: int = 1, ranks: Ranks = ALONE) -> tuple[Callable[[], Tensor], Simulation]:
        """A round with an executor, and whom it asks; shared out, in blocks as a long run has them."""
        method = fedavg(**self.settings)
        name: Any = executor
        block: Any = {"block": "work"} if workers * ranks.size > 1 else {}
        begins = method.begin(self.task.start(), self.federation.n_clients)
        first = FirstRound(method.at(0), begins, rounds=1) if block else None
        clients = Simulation(
            self.federation, self.task, executor=name, workers=workers, ranks=ranks, first=first, **block
        )
        state = method.begin(self.task.start(), self.federation.n_clients)
        return lambda: run_round(method, state, clients)[0].centers["model"], clients

    def others(self) -> dict[str, Callable[[], object]]:
        """The plain loop and the limit, on the batches of our first round."""
        everyone = Simulation(self.federation, self.task, executor="looped").everyone(0)
        train = self.federation.train
        batches = BatchSchedule(train, everyone, Train(**self.settings).plan(everyone)).index
        return {
            "plain": lambda: self.task.layouts["model"].row(plain(self.task, train, batches)),
            "limit": lambda: limit(self.task, train, batches),
        }


def near(task: Task) -> float:
    """How far two models of the same work may be apart: as far as their numbers are rounded."""
    if task.precision != "float32":
        return 1e-2
    convolves = any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in task.module.modules())
    short = task.device.type == "cuda" and torch.backends.cudnn.allow_tf32 and convolves  # TF32, in any order
    return 1e-3 if short else 1e-4


def measure(
    race: Race, executors: Iterable[str] | None = None, repeats: int = 3, workers: int = 1, ranks: Ranks = ALONE
) -> dict[str, Any]:
    """Seconds of every way, and their ratios. The ways take turns; of each the fastest and the median are told.

    With several ranks, the first alone does what needs one process, and the others wait for it.
    """
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    device = race.task.device
    usual = race.work.executors if device.type == "cpu" else ("stacked",)
    wanted = tuple(executors) if executors is not None else usual
    for name in wanted:
        if name not in EXECUTORS:
            raise unknown("executor", name, EXECUTORS)
    made = _ways(race, wanted, workers, ranks)
    ways: dict[str, Callable[[], object]] = {name: way for name, (way, _) in made.items()}
    ways |= race.others() if ranks.first else {}
    first = {name: _timed(way, device) for name, way in ways.items()}
    for name in made if ranks.first else ():
        same = torch.allclose(first[name][1], first["plain"][1], atol=near(race.task))  # type: ignore[arg-type]
        require(same, f"{name} and the plain loop do not end with the same model: not the same work")
    before = ranks.counted["received"]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(_timed(way, device)[0])
    best = {name: min(taken) for name, taken in times.items()}
    if not ranks.first:
        return {}
    received = (ranks.counted["received"] - before) / repeats / len(wanted)
    return {
        "model": race.work.model,
        "clients": race.federation.n_clients,
        "steps": race.steps,
        "batch": race.batch,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "precision": race.task.precision,
        "auto": Simulation(race.federation, race.task).executor,
        "seconds": best,
        "median_seconds": {name: statistics.median(taken) for name, taken in times.items()},
        "ranks": ranks.size,
        "received_by_a_rank": _travelled(race, list(made.values())[-1][1], received) if ranks.size > 1 else {},
        "first_seconds": {name: first[name][0] for name in made},
        "over_plain": {name: best[name] / best["plain"] for name in made},
        "over_limit": {name: best[name] / best["limit"] for name in (*made, "plain")},
    }


def _ways(race: Race, executors: Sequence[str], workers: int, ranks: Ranks) -> dict[str, Way]:
    """Our rounds: by one process, by several workers, by all ranks; ranks but the first have only the last."""
    made: dict[str, Way] = {}
    if ranks.first:
        made |= {name: race.ours(name) for name in executors}
        made |= {f"{name}, {workers} workers": race.ours(name, workers) for name in executors if workers > 1}
    return made | {f"{name}, {ranks.size} ranks": race.ours(name, 1, ranks) for name in executors if ranks.size > 1}


def _travelled(race: Race, clients: Simulation, received: float) -> dict[str, float]:
    """What the first rank was sent in a round: in bytes, and in models for each block."""
    blocks, model = len(clients.blocks(clients.everyone(0))), race.task.width * race.task.dtype.itemsize
    return {"bytes": received, "blocks": blocks, "models_a_block": received / blocks / model}


def profile(race: Race, executor: str | None = None, rows: int = 12) -> str:
    """Where the time of one round goes, by operator: a table."""
    from torch.profiler import ProfilerActivity

    way, _ = race.ours(executor or Simulation(race.federation, race.task).executor)
    way()
    cuda = race.task.device.type == "cuda"
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])], acc_events=True
    ) as seen:
        way()
        if cuda:
            torch.cuda.synchronize()
    order = "self_device_time_total" if cuda else "self_cpu_time_total"
    table = seen.key_averages().table(  # type: ignore[no-untyped-call]
        sort_by=order, row_limit=rows, max_name_column_width=40
    )
    return str(table)


def _timed(way: Callable[[], object], device: torch.device) -> tuple[float, object]:
    done: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    done()
    began = time.perf_counter()
    result = way()
    done()
    return time.perf_counter() - began, result
