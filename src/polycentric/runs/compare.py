"""Methods on the same federation, over several seeds: every run in a folder of its own, and a row for each method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..methods.recipes import parameters
from .folder import Folder
from .grid import ProgressCallback, grouped, run_cells
from .settings import Settings


def compare(
    methods: Sequence[str],
    data: str = "digits",
    *,
    seeds: int = 3,
    out: str | Path = "runs/compare",
    jobs: int = 1,
    progress: ProgressCallback | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """One row for each method: every metric over the seeds, and the share of clients that would do better alone.

    Arguments:
        methods: by name.
        data: by name or path; a partition beside it says how it is dealt.
        seeds: runs of every method, with seeds 0, 1, ...
        out: a folder for the runs; finished ones in it are not run again.
        jobs: runs beside each other, each in a process of its own.
        settings: of every run, as in `run`; `set={"lr": 0.1}` reaches the methods that have such a setting.
    """
    own = settings.pop("set", {})
    cells = [
        Settings.of({"data": data, **settings, "method": method, "seed": seed, "set": known(method, own)})
        for seed in range(seeds)
        for method in methods
    ]
    return compared(cells, Path(out), jobs, progress)


def known(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Of some settings, those that a method has."""
    return {key: value for key, value in settings.items() if key.partition(".")[0] in parameters(method)}


def compared(
    cells: Sequence[Settings],
    out: Path,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
    names: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """One row for each name, from cells of several seeds.

    `names` has one for each cell, where a method stands in several rows; by default it is the method's.
    """
    summaries = run_cells(cells, out, jobs=jobs, progress=progress)
    alone = {s["seed"]: _accuracies(s) for s in summaries if s["method"] == "nofed" and "metrics" in s}
    named = [s | {"name": n} for s, n in zip(summaries, names or [c.method for c in cells], strict=True)]
    rows = []
    for name, ran in grouped(named, lambda s: s["name"]).items():
        good = [s for s in ran if "metrics" in s]
        row: dict[str, Any] = {"method": name, "runs": len(good), "diverged": len(ran) - len(good)}
        metrics = good[0]["metrics"] if good else {}
        row["metrics"] = {metric: [s["metrics"].get(metric) for s in good] for metric in metrics}
        tuned = [(s.get("personalised") or {}).get("micro_accuracy") for s in good]
        row["personalised"] = [accuracy for accuracy in tuned if accuracy is not None]
        if alone and ran[0]["method"] != "nofed":
            row["share_below_alone"] = [_below(_accuracies(s), alone[s["seed"]]) for s in good if s["seed"] in alone]
        row |= {key: good[0][key] if good else 0 for key in ("bytes_up", "bytes_down")}
        row["seconds"] = sum(s["seconds"] for s in good)
        rows.append(row)
    return rows


def _accuracies(summary: dict[str, Any]) -> dict[str, float]:
    rows = Folder(Path(summary["run_dir"])).read_clients()
    return {row["client"]: float(row["accuracy_in_use"]) for row in rows if row["accuracy_in_use"]}


def _below(scores: dict[str, float], alone: dict[str, float]) -> float:
    both = scores.keys() & alone.keys()
    return sum(scores[name] < alone[name] for name in both) / len(both) if both else float("nan")
