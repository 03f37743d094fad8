"""The demonstration: forty clients, digits turned four ways, and what each way of learning makes of them."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ..report.page import write_report
from ..runs.grid import compared
from ..runs.settings import Settings
from .screen import counting, say, stdout
from .tables import comparison_tables

COMMON: dict[str, Any] = {
    "data": "digits", "partition": "rotations=4", "clients": 40, "model": "mlp", "rounds": 40, "evaluate_every": 4,
    "device": "cpu", "sketch": True,
}  # fmt: skip
TRAINING = {"lr": 0.1, "epochs": 5, "batch": 10}
WAYS: dict[str, dict[str, Any]]
WAYS = {"nofed": {}, "fedsgd": {"lr": 0.5}, "fedavg": {}, "fedprox": {"mu": 0.1}, "fesem": {"k": 4}}
SEEDS = 3


def demonstrate(folder: Path | None, quiet: bool) -> None:
    """Run the comparison, print it, say in plain words what it shows, and write a report of it."""
    import torch

    torch.set_num_threads(1)  # these models are small: a second thread does not help, and waits badly on a busy machine
    began = time.monotonic()
    stdout.print(
        "40 clients hold scikit-learn's handwritten digits, about 36 examples each. A quarter of the clients see them "
        "upright, the others turned by 90, 180 or 270 degrees. The methods are not told which. Five of them:\n",
        highlight=False,
    )
    cells = [
        Settings.of(COMMON | {"method": way, "seed": seed, "set": (TRAINING if way != "fedsgd" else {}) | own})
        for seed in range(SEEDS)
        for way, own in WAYS.items()
    ]
    page = (folder or Path()) / "polycentric-demo.html"
    with tempfile.TemporaryDirectory() as temporary:
        with counting("demo", len(cells), quiet) as progress:
            rows = compared(cells, folder or Path(temporary), progress=progress)
        write_report([path for row in rows for path in row["run_dirs"]], page)
    for table in comparison_tables(rows, SEEDS, cells[0]):
        stdout.print(table)
    for line in what_it_shows({row["method"]: row for row in rows}):
        stdout.print(f"  {line}")
    command = "polycentric" if shutil.which("polycentric") else sys.argv[0]  # what works where this was typed
    say(f"\n{time.monotonic() - began:.0f} s. Next: {command} run fedavg --help")
    say(f"All of it on one page, for a browser: {page.resolve()}")


def what_it_shows(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The table in words, from its own numbers."""

    def of(method: str, metric: str = "micro_accuracy") -> float:
        return 100 * statistics.fmean(rows[method]["metrics"][metric])

    alone, averaged, many = of("nofed"), of("fedavg"), of("fesem")
    below = 100 * statistics.fmean(rows["fedavg"]["share_below_alone"])
    worst, worst_many = of("fedavg", "worst_decile_accuracy"), of("fesem", "worst_decile_accuracy")
    ari = of("fesem", "ari") / 100
    together = "helps" if averaged > alone else "does not help here"
    some = f"The mean hides this: {below:.0f} % of the clients would have done better alone, and"
    hidden = some if below > 0 else "Nobody would have done better alone, but"
    own = f"finds groups of its own (adjusted Rand index with the true ones {ari:.2f})"
    found = "finds the four groups by itself" if ari > 0.99 else own
    better = "better than" if many > averaged else "no better than"
    return [
        f"Learning together {together}: FedAvg reaches {averaged:.0f} %, clients alone {alone:.0f} % "
        f"(mean over {SEEDS} seeds).",
        f"{hidden} the worst tenth of the clients has {worst:.0f} %: one model must serve four rotations.",
        f"FeSEM keeps four centers, {found}, and is {better} one center: {many:.0f} %, worst tenth {worst_many:.0f} %.",
        "All five share one round and differ in the parts they plug into it.",
    ]
